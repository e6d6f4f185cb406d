/**
 * Every option a user can give: its type, default, limits, and the check that refuses a bad one with
 * ERR_MILLRACE_OPTION_INVALID. Times are milliseconds unless a `Date` is meant.
 */
import { NAME_BYTES_MAX } from '../native-free/layout.js';
import { Level, RECORD_BYTES_MAX } from '../native-free/record.js';
import type { Clock } from './clock.js';
import { MillraceError, shown } from './errors.js';
import type { StorageModule } from './log/storage.js';

/** 'fsync': flushed before ok. 'os': written, survives the process. 'memory': not logged. */
export type Durability = 'fsync' | 'os' | 'memory';

export interface BrokerOptions {
  /** What a queue gets that does not say. Default 'fsync'. */
  readonly durability?: Durability;
  /** Milliseconds the log writer waits for more before it flushes. Default 0: it flushes what arrived meanwhile. */
  readonly linger?: number;
  /** Most records in one batch. Default 65,536. */
  readonly batchRecordsMax?: number;
  /** Bytes of a log segment. Default 64 MiB. */
  readonly segmentBytes?: number;
  /** Most jobs at once (live, dead, and done ones that are still kept). Default 16,000,000. */
  readonly jobsMax?: number;
  /** Most bytes of one encoded payload or result. Default 1 MiB, at most 8 MiB. */
  readonly payloadBytesMax?: number;
  /**
   * Bytes of jobs in memory at which enqueues begin to wait. From three quarters of it on payloads of waiting jobs are
   * kept in the log alone. Default 2 GiB, at most 3 GiB.
   */
  readonly memoryBytes?: number;
  /** Slots (32 bytes) of the submit ring, a power of two. Default 262,144. */
  readonly ringSlots?: number;
  /** True: no native add-on is loaded. Default false. */
  readonly nativeFree?: boolean;
  /** Another disk, for tests and benches. Default: the file system. */
  readonly storage?: StorageModule;
  /** Time, for tests: see `millrace/testing`. */
  readonly clock?: Clock;
  /** Chance, for tests: used for backoff on the calling thread. Default Math.random. */
  readonly random?: () => number;
}

export interface Backoff {
  /** Milliseconds before the second attempt, at most. Default 1,000. */
  readonly base?: number;
  /** Milliseconds that no delay exceeds. Default 3,600,000. */
  readonly max?: number;
  /** 'full': a random part of the delay. Default 'full'. */
  readonly jitter?: 'full' | 'none';
}

/** Payloads to bytes and back. `decode` gets bytes it may keep. */
export interface Codec<Value> {
  encode(value: Value): Uint8Array;
  decode(bytes: Uint8Array): Value;
}

/** The part of Standard Schema v1 that is used; see https://standardschema.dev. */
export interface StandardSchema<Output = unknown> {
  readonly '~standard': {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => StandardResult<Output> | Promise<StandardResult<Output>>;
  };
}
export type StandardResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly { readonly message: string }[] };

export interface QueueOptions<Payload = unknown> {
  /** Runs before a job is dead, 1 to 65,535. Default 20. */
  readonly attempts?: number;
  /** Times a job may take its thread or process down before it is dead, 1 to 255. Default 3. */
  readonly crashes?: number;
  /** Delay between attempts: exponential with full jitter, or a function of the attempt that failed. */
  readonly backoff?: Backoff | ((attempt: number) => number);
  /** Milliseconds a lease lasts unless extended, 1 to 2^31 - 1. Default 30,000. */
  readonly visibility?: number;
  readonly durability?: Durability;
  /** Default 'json'. */
  readonly codec?: 'json' | 'bytes' | Codec<Payload>;
  /** Checked at enqueue. */
  readonly schema?: StandardSchema<Payload>;
  /** Milliseconds a result can be asked for after the job is done, also after a restart. Default 0: while recent. */
  readonly resultRetention?: number;
  /** Priority of jobs that do not say; lower runs first. Default 0. */
  readonly priority?: number;
}

export interface EnqueueOptions {
  /** Milliseconds from now before the job may run. */
  readonly delay?: number;
  /** When the job may run, as a Date or milliseconds since 1970. */
  readonly runAt?: Date | number;
  /** Lower runs first, -2^31 to 2^31 - 1. */
  readonly priority?: number;
  /** Idempotency key: while a job holds it, another enqueue returns that job. At most 255 bytes. */
  readonly key?: string;
  /** Milliseconds the key is held after the job is done. Default: until then. */
  readonly keyRetention?: number;
  /** Milliseconds within which the job has to start, or it is dead with reason 'expired'. Default: it may wait for ever. */
  readonly expiresIn?: number;
  /** Whose job it is. At most 255 bytes. */
  readonly tenant?: string;
  readonly attempts?: number;
  readonly visibility?: number;
  readonly durability?: Durability;
  /** Milliseconds one run in a fleet thread may take, 1 to 2^31 - 1. */
  readonly timeout?: number;
}

export interface ClaimOptions {
  /** Most leases to take, 1 to 4,096. Default 1. */
  readonly max?: number;
  /** Milliseconds. Default: the queue's. */
  readonly visibility?: number;
  /** Milliseconds to wait for a first job; Infinity waits for ever. Default 0. */
  readonly wait?: number;
  readonly signal?: AbortSignal;
}

export interface ProcessOptions {
  /** Worker threads of a handler module. Default: the number of cores. */
  readonly threads?: number;
  /** Jobs at once in this thread (function handlers) or in each thread. Default 1. */
  readonly concurrency?: number;
  /** Milliseconds one run may take; for function handlers the signal aborts, a fleet thread is replaced. */
  readonly timeout?: number;
  /** Milliseconds between the signal and the replacement of a fleet thread. Default 0. */
  readonly grace?: number;
  /** Limits of each worker thread, as in node:worker_threads. */
  readonly resourceLimits?: {
    readonly maxOldGenerationSizeMb?: number;
    readonly maxYoungGenerationSizeMb?: number;
    readonly stackSizeMb?: number;
  };
}

export const TIME_MS_MAX = 2 ** 52;
export const INTERVAL_MS_MAX = 2 ** 31 - 1;
export const CLAIM_MAX = 4096;

function refuse(attempted: string, what: string, value: unknown, allowed: string): never {
  throw new MillraceError(
    'ERR_MILLRACE_OPTION_INVALID',
    `cannot ${attempted}: ${what} is ${shown(value)}, allowed is ${allowed}`,
    { option: what, value },
  );
}

/** A whole number within limits, or the default when it is undefined. */
export function whole(
  attempted: string,
  what: string,
  value: unknown,
  min: number,
  max: number,
  otherwise: number,
): number {
  if (value === undefined) return otherwise;
  if (typeof value !== 'number' || !Number.isInteger(value) || value < min || value > max) {
    refuse(attempted, what, value, `a whole number from ${min} to ${max}`);
  }
  return value;
}

/** A span of time: any number of milliseconds from `min` to `max`, rounded up to whole ones. */
export function span(
  attempted: string,
  what: string,
  value: unknown,
  min: number,
  max: number,
  otherwise: number,
): number {
  if (value === undefined) return otherwise;
  if (typeof value !== 'number' || !(value >= min && value <= max)) {
    refuse(attempted, what, value, `milliseconds from ${min} to ${max}`);
  }
  return Math.ceil(value);
}

export function choice<T extends string>(
  attempted: string,
  what: string,
  value: unknown,
  allowed: readonly T[],
  otherwise: T,
): T {
  if (value === undefined) return otherwise;
  if (!allowed.includes(value as T)) refuse(attempted, what, value, allowed.map((one) => `'${one}'`).join(', '));
  return value as T;
}

/** Refuses anything that is not a plain options object. */
export function record<T extends object>(attempted: string, options: T | undefined): T {
  if (options === undefined) return {} as T;
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    refuse(attempted, 'options', options, 'an object');
  }
  return options;
}

/** An AbortSignal, or nothing. */
export function abortSignal(attempted: string, value: unknown): AbortSignal | undefined {
  if (value !== undefined && !(value instanceof AbortSignal)) refuse(attempted, 'signal', value, 'an AbortSignal');
  return value;
}

export function levelOfDurability(durability: Durability): number {
  return durability === 'fsync' ? Level.FSYNC : durability === 'os' ? Level.OS : Level.MEMORY;
}

const DURABILITIES = ['fsync', 'os', 'memory'] as const;

export interface BrokerSettings {
  readonly level: number;
  readonly lingerMs: number;
  readonly batchRecordsMax: number;
  readonly segmentBytes: number;
  readonly jobsMax: number;
  readonly payloadBytesMax: number;
  readonly memoryBytes: number;
  readonly ringSlots: number;
  readonly nativeFree: boolean;
}

const MIB = 1 << 20;

export function brokerSettings(options: BrokerOptions): BrokerSettings {
  const a = 'open';
  seams(options);
  const settings = {
    level: levelOfDurability(choice(a, 'durability', options.durability, DURABILITIES, 'fsync')),
    lingerMs: span(a, 'linger', options.linger, 0, 10_000, 0),
    batchRecordsMax: whole(a, 'batchRecordsMax', options.batchRecordsMax, 1, 1_000_000, 65_536),
    segmentBytes: whole(a, 'segmentBytes', options.segmentBytes, 4096, 2 ** 40, 64 * MIB),
    jobsMax: whole(a, 'jobsMax', options.jobsMax, 1, 100_000_000, 16_000_000),
    payloadBytesMax: whole(a, 'payloadBytesMax', options.payloadBytesMax, 1, 8 * MIB, MIB),
    memoryBytes: whole(a, 'memoryBytes', options.memoryBytes, MIB, 3072 * MIB, 2048 * MIB),
    ringSlots: whole(a, 'ringSlots', options.ringSlots, 64, 2 ** 24, 262_144),
    nativeFree: options.nativeFree ?? false,
  };
  if (Math.log2(settings.ringSlots) % 1 !== 0) refuse(a, 'ringSlots', settings.ringSlots, 'a power of two');
  // Half the ring takes the longest record, with its header and optional fields.
  const slots = 2 * Math.ceil((settings.payloadBytesMax + 1024) / 32);
  const ringSlots =
    options.ringSlots === undefined
      ? Math.max(settings.ringSlots, 2 ** Math.ceil(Math.log2(slots)))
      : settings.ringSlots;
  if (slots > ringSlots) {
    refuse(
      a,
      'ringSlots',
      ringSlots,
      `at least ${2 ** Math.ceil(Math.log2(slots))} for payloads of ${settings.payloadBytesMax} bytes`,
    );
  }
  return { ...settings, ringSlots };
}

/** What only tests and benches give. A clock has to be one that every thread can see. */
function seams({ clock, random, storage, nativeFree }: BrokerOptions): void {
  if (nativeFree !== undefined && typeof nativeFree !== 'boolean') {
    refuse('open', 'nativeFree', nativeFree, 'true or false');
  }
  if (clock !== undefined) {
    const told = typeof clock?.wallMs === 'function' && typeof clock.monotonicMs === 'function';
    if (!told || !(clock.shared instanceof SharedArrayBuffer)) {
      refuse('open', 'clock', clock, 'a clock whose memory is shared');
    }
  }
  if (random !== undefined && typeof random !== 'function') refuse('open', 'random', random, 'a function');
  if (storage !== undefined) {
    const module = storage?.module as unknown;
    if (typeof module !== 'string' && !(module instanceof URL)) refuse('open', 'storage', storage, '{ module, data }');
  }
}

/** A queue's options after defaults. */
export interface QueueSettings {
  readonly attempts: number;
  readonly crashes: number;
  readonly base: number;
  readonly max: number;
  readonly jitter: 'full' | 'none';
  readonly backoff: ((attempt: number) => number) | undefined;
  readonly visibilityMs: number;
  readonly level: number;
  readonly resultRetentionMs: number;
  readonly priority: number;
}

export function queueSettings(name: string, options: QueueOptions<never>, level: number): QueueSettings {
  const a = `use queue ${shown(name)}`;
  const backoff = options.backoff;
  if (backoff !== undefined && typeof backoff !== 'function' && (typeof backoff !== 'object' || backoff === null)) {
    refuse(a, 'backoff', backoff, '{ base, max, jitter } or a function');
  }
  const exponential = typeof backoff === 'object' ? backoff : {};
  const schema = options.schema as StandardSchema | undefined;
  if (schema !== undefined && typeof schema?.['~standard']?.validate !== 'function') {
    refuse(a, 'schema', schema, 'a Standard Schema');
  }
  return {
    attempts: whole(a, 'attempts', options.attempts, 1, 65_535, 20),
    crashes: whole(a, 'crashes', options.crashes, 1, 255, 3),
    base: span(a, 'backoff.base', exponential.base, 0, TIME_MS_MAX, 1000),
    max: span(a, 'backoff.max', exponential.max, 0, TIME_MS_MAX, 3_600_000),
    jitter: choice(a, 'backoff.jitter', exponential.jitter, ['full', 'none'], 'full'),
    backoff: typeof backoff === 'function' ? backoff : undefined,
    visibilityMs: span(a, 'visibility', options.visibility, 1, INTERVAL_MS_MAX, 30_000),
    level:
      options.durability === undefined
        ? level
        : levelOfDurability(choice(a, 'durability', options.durability, DURABILITIES, 'fsync')),
    resultRetentionMs: span(a, 'resultRetention', options.resultRetention, 0, TIME_MS_MAX, 0),
    priority: whole(a, 'priority', options.priority, -(2 ** 31), 2 ** 31 - 1, 0),
  };
}

export function durabilityLevel(attempted: string, durability: unknown, otherwise: number): number {
  if (durability === undefined) return otherwise;
  return levelOfDurability(choice(attempted, 'durability', durability, DURABILITIES, 'fsync'));
}

/** A point in time: a Date, or milliseconds since 1970. */
export function moment(attempted: string, what: string, value: unknown): number {
  const ms = value instanceof Date ? value.getTime() : value;
  if (typeof ms !== 'number' || !(ms >= 0 && ms <= TIME_MS_MAX))
    refuse(attempted, what, value, 'a valid Date or milliseconds');
  return Math.ceil(ms);
}

/** A key or tenant: well-formed text of 1 to 255 UTF-8 bytes. */
export function label(attempted: string, what: string, value: unknown): string {
  if (typeof value !== 'string' || value === '' || Buffer.byteLength(value) > 255 || !value.isWellFormed()) {
    refuse(attempted, what, value, 'text of 1 to 255 bytes');
  }
  return value;
}

/** A queue's name: 1 to 255 bytes of well-formed text without control characters. */
export function queueName(name: unknown): string {
  const problem =
    typeof name !== 'string'
      ? `it is ${typeof name === 'object' ? 'an object' : shown(name)}, not text`
      : name === ''
        ? 'it is empty'
        : Buffer.byteLength(name) > NAME_BYTES_MAX
          ? `it is ${Buffer.byteLength(name)} bytes, the limit is ${NAME_BYTES_MAX}`
          : !name.isWellFormed()
            ? 'it holds half a surrogate pair'
            : // biome-ignore lint/suspicious/noControlCharactersInRegex: refusing them is the point.
              /[\u0000-\u001f\u007f-\u009f]/.test(name)
              ? 'it holds a control character'
              : '';
  if (problem !== '') {
    throw new MillraceError('ERR_MILLRACE_NAME_INVALID', `cannot use queue ${shown(name)}: ${problem}`, {
      queue: name,
    });
  }
  return name as string;
}

/** The longest record there may be, for a payload limit. */
export function recordBytesMax(payloadBytesMax: number): number {
  return Math.min(RECORD_BYTES_MAX, payloadBytesMax + 1024);
}
