/**
 * The public queue: enqueue, claim, ask. The same on every thread.
 */
import { load } from '../../native-free/atomics.js';
import type { EnqueueFields } from '../../native-free/encoder.js';
import { QueueWord } from '../../native-free/layout.js';
import { Level, RecordType } from '../../native-free/record.js';
import { MillraceError, shown } from '../errors.js';
import type { Handler, Worker } from '../fleet/worker.js';
import type {
  ClaimOptions,
  EnqueueOptions,
  ProcessOptions,
  QueueOptions,
  StandardResult,
  StandardSchema,
} from '../options.js';
import * as options from '../options.js';
import { Question, type StoredInfo } from '../schedule/questions.js';
import { DeadLetters } from './dead-letters.js';
import { Job, type ResultOptions, resultOf } from './job.js';
import type { Lease } from './lease.js';
import type { QueueCore } from './queue-core.js';
import { checkReservation, submit } from './submit.js';

/** What `queue.get` tells of a job. Times in milliseconds since 1970. */
export interface JobInfo<Payload = unknown> extends Omit<StoredInfo, 'tenant' | 'key'> {
  readonly payload: Payload;
  readonly tenant: string | undefined;
  readonly key: string | undefined;
}

export interface Counts {
  readonly ready: number;
  readonly delayed: number;
  readonly leased: number;
  readonly dead: number;
  readonly done: number;
}

/** How a queue starts workers: given by the broker, which knows fleets. */
export type StartWorker = (
  core: QueueCore,
  handler: Handler<never, unknown> | URL | string,
  settings: ProcessOptions,
) => Worker;

const NOTHING: EnqueueOptions = {};

export class Queue<Payload = unknown, Result = unknown> {
  readonly name: string;
  readonly deadLetters: DeadLetters<Payload>;
  readonly #core: QueueCore;
  readonly #start: StartWorker;
  readonly #fields: EnqueueFields = {
    queue: 0,
    level: 0,
    priority: 0,
    enqueuedAtMs: 0,
    attemptsMax: 0,
    crashesMax: 0,
    runAtMs: Number.NaN,
    visibilityMs: 0,
    timeoutMs: 0,
    keyRetentionMs: Number.NaN,
    expiresAtMs: Number.NaN,
    watcher: 0,
    request: 0,
    tenant: '',
    key: '',
  };
  #schema: StandardSchema | undefined;

  constructor(core: QueueCore, schema: StandardSchema | undefined, start: StartWorker) {
    this.#core = core;
    this.name = core.name;
    this.#schema = schema;
    this.#start = start;
    this.#fields.queue = core.id;
    this.deadLetters = new DeadLetters<Payload>(core);
  }

  /** The broker's way to apply options given again. */
  configure(given: QueueOptions<never>): void {
    this.#core.configure(given);
    this.#core.declare(true);
    this.#schema = given.schema;
  }

  /** The broker's way to put a job of this queue behind others under one reservation: leaves it in the port's encoder. */
  append(payload: Payload, given: EnqueueOptions, nowMs: number): void {
    this.#core.declare(false);
    if (given.key !== undefined) this.#refuse('key', given.key, 'none beside other queues');
    this.#append(this.#valid(payload), given, nowMs, 0, 0);
  }

  /**
   * Accepts a job; resolves when it is durable. Waits while the ring or the broker is full.
   * Rejects with ERR_MILLRACE_PAYLOAD_INVALID, _PAYLOAD_TOO_LARGE, _OPTION_INVALID, _CLOSED, _IO, _NO_SPACE, or
   * _OUTCOME_UNKNOWN when the log failed before its flush was known to have worked.
   */
  enqueue(payload: Payload, enqueueOptions?: EnqueueOptions): Promise<Job<Result>> {
    if (this.#schema !== undefined) {
      return this.#validated(this.#schema, payload).then((valid) => this.#enqueue(valid, enqueueOptions));
    }
    return this.#enqueue(payload, enqueueOptions);
  }

  /** Accepts several jobs in order, all or none, in one batch. An item is a payload, or { payload, ...options }. */
  enqueueMany(items: readonly (Payload | ({ readonly payload: Payload } & EnqueueOptions))[]): Promise<Job<Result>[]> {
    try {
      return this.#enqueueMany(items);
    } catch (error) {
      return Promise.reject(error as Error);
    }
  }

  /** Like `enqueue` without waiting: undefined when there is no room now. `job.durable` tells when it is durable. */
  tryEnqueue(payload: Payload, enqueueOptions?: EnqueueOptions): Job<Result> | undefined {
    const { port } = this.#core;
    if (enqueueOptions?.key !== undefined) {
      this.#refuse('key', enqueueOptions.key, 'none: only an awaited enqueue can tell whether the key is held');
    }
    this.#encode(this.#valid(payload), enqueueOptions ?? NOTHING, 0, 0);
    if (port.crowded || !port.trySubmitJobs(1)) return undefined;
    return new Job<Result>(port, port.firstId, port.end, false);
  }

  /** Enqueues and waits for the result: a durable `piscina.run`. Rejects as `job.result` does. */
  async run(payload: Payload, runOptions: EnqueueOptions & { readonly signal?: AbortSignal } = {}): Promise<Result> {
    const { port } = this.#core;
    const { signal, ...given } = runOptions;
    const valid = this.#schema === undefined ? payload : await this.#validated(this.#schema, payload);
    if (given.key !== undefined) return (await this.#enqueueKeyed(valid, given)).result({ signal });
    this.#encode(valid, given, port.owner, 0);
    // The wait begins when the job has its id: it may end before this thread hears that it is durable.
    let result!: Promise<Result>;
    await submit(port, 1, () => {
      result = resultOf<Result>(port, port.firstId, { signal }, true);
      result.catch(() => {});
    });
    return result;
  }

  /** Takes leases; waits up to `wait` ms for the first. Resolves with none when the time is over. */
  async claim(claimOptions: ClaimOptions = {}): Promise<Lease<Payload>[]> {
    const { port } = this.#core;
    const { max, visibilityMs, waitMs } = this.#claiming('claim', claimOptions);
    const signal = options.abortSignal('claim', claimOptions.signal);
    signal?.throwIfAborted();
    // A loop of claims that find something goes from microtask to microtask: let timers, ports and sockets have a turn.
    if (port.isTurnDue()) {
      await port.turn();
      port.check('claim');
      signal?.throwIfAborted();
    }
    let leases = this.#core.claim(max, visibilityMs, waitMs > 0) as Lease<Payload>[];
    if (leases.length > 0) return leases;
    if (waitMs === 0) {
      // What this thread enqueued before is applied and offered when the scheduler answers.
      await port.ask(Question.SYNC, 0, this.#core.id);
      leases = this.#core.claim(max, visibilityMs, false) as Lease<Payload>[];
      return leases;
    }
    return await new Promise<Lease<Payload>[]>((resolve, reject) => {
      const finish = (act: () => void): void => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', onAbort);
        port.cancelReady(waiter);
        act();
      };
      const waiter = {
        group: this.#core.group(),
        holds: true,
        attempt: (): boolean => {
          const found = this.#core.claim(max, visibilityMs, true) as Lease<Payload>[];
          if (found.length === 0) return false;
          finish(() => resolve(found));
          return true;
        },
        reject: (error: Error): void => finish(() => reject(error)),
      };
      const onAbort = (): void => finish(() => reject(signal!.reason as Error));
      const timer =
        waitMs === Number.POSITIVE_INFINITY
          ? undefined
          : setTimeout(() => finish(() => resolve([])), Math.min(waitMs, options.INTERVAL_MS_MAX));
      signal?.addEventListener('abort', onAbort, { once: true });
      port.awaitReady(waiter);
    });
  }

  /** Takes what is there, without waiting. */
  tryClaim(claimOptions: Pick<ClaimOptions, 'max' | 'visibility'> = {}): Lease<Payload>[] {
    const { max, visibilityMs } = this.#claiming('tryClaim', claimOptions);
    return this.#core.claim(max, visibilityMs, false) as Lease<Payload>[];
  }

  /**
   * Runs a handler for every job. A function runs on this thread; a URL or path names a module whose default export
   * is the handler, and runs in worker threads.
   */
  process(handler: Handler<Payload, Result> | URL | string, settings: ProcessOptions = {}): Worker {
    this.#core.port.check(`process ${shown(this.name)}`);
    if (typeof handler !== 'function' && typeof handler !== 'string' && !(handler instanceof URL)) {
      this.#refuse('handler', handler, 'a function, a URL or a path');
    }
    options.record(`process ${shown(this.name)}`, settings);
    return this.#start(this.#core, handler as Handler<never, unknown> | URL | string, settings);
  }

  /** A live, dead or kept job; undefined when there is none of that id. */
  async get(id: number): Promise<JobInfo<Payload> | undefined> {
    const { port, coding } = this.#core;
    port.check(`get job ${shown(id)}`);
    this.#id(id);
    const answer = await port.ask(Question.GET, id, this.#core.id);
    if (answer.status === 0) return undefined;
    const [info] = readFrames<Payload>(answer.bytes!, (bytes) => coding.decode(bytes) as Payload);
    return info?.queue === this.name ? info : undefined;
  }

  /** Ends a job in any live state. False: it was not live. A running handler's signal aborts. */
  async cancel(id: number): Promise<boolean> {
    const { port } = this.#core;
    port.check(`cancel job ${shown(id)}`);
    this.#id(id);
    return (await port.ask(Question.CANCEL, id, this.#core.id)).status === 1;
  }

  /** The result of a job by id: see `Job.result`. */
  result(id: number, resultOptions: ResultOptions = {}): Promise<Result> {
    try {
      this.#id(id);
    } catch (error) {
      return Promise.reject(error as Error);
    }
    return resultOf<Result>(this.#core.port, id, resultOptions);
  }

  /** Momentary numbers of jobs. ready + delayed + leased = live; `done` counts all that ever were acked. */
  counts(): Counts {
    const { port, block } = this.#core;
    port.check('count jobs');
    port.catchUp(1);
    const { queues, queueCells } = port.shared;
    const delayed = load(queues, block + QueueWord.DELAYED);
    const leased = Math.max(0, load(queues, block + QueueWord.LEASED));
    const settling = Math.max(0, load(queues, block + QueueWord.SETTLING));
    return {
      ready: Math.max(0, load(queues, block + QueueWord.LIVE) - delayed - leased - settling),
      delayed,
      leased,
      dead: load(queues, block + QueueWord.DEAD),
      done: queueCells[(block + QueueWord.DONE) >>> 1]!,
    };
  }

  /** Milliseconds since the first job in order became ready; 0 when none waits. */
  oldestReadyAge(): number {
    const { port, block } = this.#core;
    port.check('look at the oldest job');
    port.catchUp(1);
    const row = this.#core.offered();
    const runAt = row > 0 ? port.shared.runAt[row]! : port.shared.queueCells[(block + QueueWord.OLDEST_READY) >>> 1]!;
    return runAt === 0 ? 0 : Math.max(0, port.wallMs() - runAt);
  }

  /** No more claims of this queue until `resume`; survives restarts. Running jobs go on. */
  pause(): Promise<void> {
    return this.#mark(RecordType.PAUSE);
  }

  resume(): Promise<void> {
    return this.#mark(RecordType.RESUME);
  }

  async #mark(type: number): Promise<void> {
    const { port, id } = this.#core;
    port.check(`pause or resume ${shown(this.name)}`);
    this.#core.declare(false);
    port.outbox.appendShort(type, Level.FSYNC, 0, id, 0, port.wallMs());
    await port.ask(Question.SYNC, 0, id);
  }

  #enqueue(payload: Payload, given: EnqueueOptions | undefined): Promise<Job<Result>> {
    try {
      if (given?.key !== undefined) return this.#enqueueKeyed(payload, given);
      this.#encode(payload, given ?? NOTHING, 0, 0);
      return submit(this.#core.port, 1, this.#job);
    } catch (error) {
      return Promise.reject(error as Error);
    }
  }

  readonly #job = (): Job<Result> => {
    const { port } = this.#core;
    return new Job<Result>(port, port.firstId, port.end, false);
  };

  /** The verdict on the key comes from the scheduler, when the record is committed. */
  #enqueueKeyed(payload: Payload, given: EnqueueOptions): Promise<Job<Result>> {
    const { port } = this.#core;
    const request = port.request();
    this.#encode(payload, given, port.owner, request);
    const verdict = new Promise<Job<Result>>((resolve, reject) => {
      port.expect(request, {
        resolve: ({ status, id }) => resolve(new Job<Result>(port, id, port.end, status === 1)),
        // The record is durable by then: the job may be accepted, or a duplicate.
        reject: (cause) => {
          const unknown = `cannot tell whether the job was accepted: ${cause.message}`;
          reject(new MillraceError('ERR_MILLRACE_OUTCOME_UNKNOWN', unknown, {}, cause));
        },
      });
    });
    verdict.catch(() => {});
    return submit(port, 1, () => undefined).then(
      () => verdict,
      (error: Error) => {
        port.forget(request);
        throw error;
      },
    );
  }

  async #validated(schema: StandardSchema, payload: Payload): Promise<Payload> {
    return this.#checked(await schema['~standard'].validate(payload));
  }

  /** The same where nothing can be awaited. */
  #valid(payload: Payload): Payload {
    if (this.#schema === undefined) return payload;
    const result = this.#schema['~standard'].validate(payload);
    if (result instanceof Promise) {
      result.catch(() => {});
      return this.#refuse('schema', 'asynchronous', 'a synchronous one; await enqueue() instead');
    }
    return this.#checked(result);
  }

  #checked(result: StandardResult<unknown>): Payload {
    if (result.issues === undefined) return result.value as Payload;
    throw new MillraceError(
      'ERR_MILLRACE_PAYLOAD_INVALID',
      `cannot enqueue into ${shown(this.name)}: ${result.issues.map(({ message }) => message).join('; ')}`,
      { issues: result.issues },
    );
  }

  #enqueueMany(items: readonly (Payload | ({ readonly payload: Payload } & EnqueueOptions))[]): Promise<Job<Result>[]> {
    const { port } = this.#core;
    const { encoder } = port;
    port.check('enqueue');
    if (!Array.isArray(items)) this.#refuse('items', items, 'an array');
    if (items.length === 0) return Promise.resolve([]);
    this.#core.declare(false);
    encoder.clear();
    const slots: number[] = [];
    const nowMs = port.wallMs();
    for (const item of items as unknown[]) {
      slots.push(encoder.slots);
      const given = isItem(item) ? item : undefined;
      if (given?.key !== undefined) this.#refuse('key', given.key, 'none in enqueueMany');
      this.#append(this.#valid((given === undefined ? item : given.payload) as Payload), given ?? NOTHING, nowMs, 0, 0);
    }
    checkReservation(port, 'enqueue', items.length);
    const accepted = (): Job<Result>[] => {
      const jobs = new Array<Job<Result>>(slots.length);
      for (let i = 0; i < slots.length; i++) jobs[i] = new Job<Result>(port, port.firstId + slots[i]!, port.end, false);
      return jobs;
    };
    return submit(port, slots.length, accepted);
  }

  /** Leaves one finished ENQUEUE record in the port's encoder. */
  #encode(payload: unknown, given: EnqueueOptions, watcher: number, request: number): void {
    const { port } = this.#core;
    port.check('enqueue');
    this.#core.declare(false);
    port.encoder.clear();
    this.#append(payload, given, port.wallMs(), watcher, request);
  }

  #append(payload: unknown, given: EnqueueOptions, nowMs: number, watcher: number, request: number): void {
    const { port, settings, coding } = this.#core;
    const { encoder } = port;
    const fields = this.#fields;
    fields.enqueuedAtMs = nowMs;
    fields.crashesMax = settings.crashes;
    fields.watcher = watcher;
    fields.request = request;
    if (given === NOTHING) {
      fields.level = settings.level;
      fields.priority = settings.priority;
      fields.attemptsMax = settings.attempts;
      fields.runAtMs = Number.NaN;
      fields.visibilityMs = 0;
      fields.timeoutMs = 0;
      fields.keyRetentionMs = Number.NaN;
      fields.expiresAtMs = Number.NaN;
      fields.tenant = '';
      fields.key = '';
    } else {
      this.#given(given, nowMs);
    }
    const offset = encoder.appendEnqueue(fields);
    let bytes = 0;
    try {
      const encoded = coding.encode(payload, 'enqueue');
      const limit = port.limits.payloadBytesMax;
      // A text takes at least one byte a unit: no need to encode it to refuse it.
      bytes = encoded.length;
      if (bytes <= limit) {
        bytes =
          typeof encoded === 'string' ? encoder.payloadText(offset, encoded) : encoder.payloadBytes(offset, encoded);
      }
      if (bytes > limit) {
        throw new MillraceError(
          'ERR_MILLRACE_PAYLOAD_TOO_LARGE',
          `cannot enqueue: payload is ${bytes} bytes, the limit is ${limit}`,
          { bytes, limit },
        );
      }
    } catch (error) {
      encoder.truncate(offset);
      throw error;
    }
    encoder.finish(offset);
  }

  #given(given: EnqueueOptions, nowMs: number): void {
    const { settings } = this.#core;
    const fields = this.#fields;
    const a = 'enqueue';
    options.record(a, given);
    if (given.delay !== undefined && given.runAt !== undefined) {
      this.#refuse('delay', given.delay, 'none beside runAt');
    }
    fields.level = options.durabilityLevel(a, given.durability, settings.level);
    fields.priority = options.whole(a, 'priority', given.priority, -(2 ** 31), 2 ** 31 - 1, settings.priority);
    fields.attemptsMax = options.whole(a, 'attempts', given.attempts, 1, 65_535, settings.attempts);
    fields.runAtMs = Number.NaN;
    if (given.delay !== undefined) {
      fields.runAtMs = nowMs + options.span(a, 'delay', given.delay, 0, options.TIME_MS_MAX - 1e13, 0);
    } else if (given.runAt !== undefined) {
      fields.runAtMs = options.moment(a, 'runAt', given.runAt);
    }
    fields.visibilityMs = options.span(a, 'visibility', given.visibility, 1, options.INTERVAL_MS_MAX, 0);
    fields.timeoutMs = options.span(a, 'timeout', given.timeout, 1, options.INTERVAL_MS_MAX, 0);
    fields.keyRetentionMs = options.span(a, 'keyRetention', given.keyRetention, 0, options.TIME_MS_MAX, Number.NaN);
    const expiresIn = options.span(a, 'expiresIn', given.expiresIn, 1, options.TIME_MS_MAX - 1e13, Number.NaN);
    fields.expiresAtMs = nowMs + expiresIn;
    fields.tenant = given.tenant === undefined ? '' : options.label(a, 'tenant', given.tenant);
    fields.key = given.key === undefined ? '' : options.label(a, 'key', given.key);
  }

  #claiming(attempted: string, given: ClaimOptions): { max: number; visibilityMs: number | undefined; waitMs: number } {
    const { port } = this.#core;
    port.check(attempted);
    options.record(attempted, given);
    const visibility = given.visibility;
    return {
      max: options.whole(attempted, 'max', given.max, 1, options.CLAIM_MAX, 1),
      visibilityMs:
        visibility === undefined
          ? undefined
          : options.span(attempted, 'visibility', visibility, 1, options.INTERVAL_MS_MAX, 0),
      waitMs:
        given.wait === Number.POSITIVE_INFINITY
          ? given.wait
          : options.span(attempted, 'wait', given.wait, 0, options.TIME_MS_MAX, 0),
    };
  }

  #id(id: unknown): void {
    if (!Number.isSafeInteger(id)) this.#refuse('id', id, 'a safe integer');
  }

  #refuse(option: string, value: unknown, allowed: string): never {
    throw new MillraceError(
      'ERR_MILLRACE_OPTION_INVALID',
      `cannot use queue ${shown(this.name)}: ${option} is ${shown(value)}, allowed is ${allowed}`,
      { option, value },
    );
  }
}

const ITEM_KEYS = new Set<string>([
  'payload',
  'delay',
  'runAt',
  'priority',
  'key',
  'keyRetention',
  'expiresIn',
  'tenant',
  'attempts',
  'visibility',
  'durability',
  'timeout',
]);

/** An object with `payload` and nothing but enqueue options beside it is an item, not a payload. */
function isItem(value: unknown): value is { readonly payload: unknown } & EnqueueOptions {
  if (typeof value !== 'object' || value === null) return false;
  try {
    return Object.hasOwn(value, 'payload') && Object.keys(value).every((key) => ITEM_KEYS.has(key));
  } catch {
    // A proxy that refuses to be looked at: whoever codes it will say so.
    return false;
  }
}

/** Jobs out of an answer: see `Answers`. */
export function readFrames<Payload>(bytes: Uint8Array, decode: (bytes: Uint8Array) => Payload): JobInfo<Payload>[] {
  const jobs: JobInfo<Payload>[] = [];
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  for (let at = 0; at < bytes.length; ) {
    const infoBytes = view.getUint32(at, true);
    const payloadBytes = view.getUint32(at + 4, true);
    const infoAt = at + 8;
    const payloadAt = infoAt + infoBytes;
    const info = JSON.parse(Buffer.from(bytes.buffer, bytes.byteOffset + infoAt, infoBytes).toString()) as StoredInfo;
    const payload = decode(bytes.slice(payloadAt, payloadAt + payloadBytes));
    jobs.push({
      ...info,
      payload,
      tenant: info.tenant === '' ? undefined : info.tenant,
      key: info.key === '' ? undefined : info.key,
    });
    at = payloadAt + payloadBytes;
  }
  return jobs;
}
