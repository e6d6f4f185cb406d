/**
 * How a lease ends at its holder's hand, and how errors and results become bytes. Used by leases and runners.
 */

import { types } from 'node:util';
import { ARENA_UNIT_BYTES } from '../../native-free/arena.js';
import { add, compareExchange, load, store } from '../../native-free/atomics.js';
import { backoffMs } from '../../native-free/backoff.js';
import { LeaseState, QueueWord, reservationSlotsMax } from '../../native-free/layout.js';
import * as record from '../../native-free/record.js';
import { BODY, limitsWord, REASONS, type Reason, RecordType, SLOT_BYTES } from '../../native-free/record.js';
import { MillraceError, shown } from '../errors.js';
import type { QueueSettings } from '../options.js';
import { withState } from '../schedule/lease.js';
import type { StoredError } from '../schedule/questions.js';
import type { Coding } from './codec.js';
import type { Port } from './port.js';

const TEXT_MAX = 8192;
/** With the wall clock's time it stays below what a wheel can hold. */
const DELAY_MS_MAX = 2 ** 51;
const ACKS_AT_ONCE = 256;

/** A lease as its holder knows it: the row, and the lease word while it is held. */
export interface Held {
  readonly row: number;
  readonly word: number;
  readonly id: number;
  readonly queue: number;
  readonly level: number;
}

/** LEASED -> SETTLED. False: the lease was lost, and nothing has changed. */
export function trySettle(port: Port, held: Held): boolean {
  const { lease, queues } = port.shared;
  const settled = withState(held.word, LeaseState.SETTLED);
  const expiring = withState(held.word, LeaseState.EXPIRING);
  let found: number;
  do found = compareExchange(lease, held.row, held.word, settled);
  while (found === expiring);
  if (found !== held.word) return false;
  const block = held.queue * QueueWord.WORDS;
  add(queues, block + QueueWord.LEASED, -1);
  add(queues, block + QueueWord.SETTLING, 1);
  return true;
}

/** Whether the lease is still this holder's. */
export function isHeld(port: Port, held: Held): boolean {
  const { lease } = port.shared;
  const expiring = withState(held.word, LeaseState.EXPIRING);
  let found: number;
  do found = load(lease, held.row);
  while (found === expiring);
  return found === held.word;
}

/** Moves the deadline to `ms` from now. False: the lease was lost. */
export function tryExtend(port: Port, held: Held, ms: number): boolean {
  if (!isHeld(port, held)) return false;
  store(port.shared.deadline, held.row, (port.monotonicMs() + ms) | 0);
  return isHeld(port, held);
}

/** Writes the ACK of a settled lease. `result` as `encodeResult` gave it. */
export function acknowledge(port: Port, held: Held, result: string | Uint8Array | undefined): void {
  const { outbox } = port;
  if (result === undefined) {
    outbox.appendAck(held.id, held.row, held.queue, held.level, port);
  } else {
    const at = outbox.append(RecordType.ACK, held.level, held.id, held.queue, held.row, port.wallMs(), 0);
    if (typeof result === 'string') outbox.payloadText(at, result);
    else outbox.payloadBytes(at, result);
    outbox.finish(at);
  }
  if (outbox.bytes > ACKS_AT_ONCE * 16) port.flush();
  else port.flushSoon();
}

/** Writes how far a run is. `value` as `encodeResult` gave it. */
export function checkpoint(
  port: Port,
  held: Held,
  attempts: number,
  crashes: number,
  value: string | Uint8Array,
): void {
  const { outbox } = port;
  const limits = limitsWord(attempts, crashes, 0);
  const at = outbox.append(RecordType.CHECKPOINT, held.level, held.id, held.queue, held.row, port.wallMs(), limits);
  if (typeof value === 'string') outbox.payloadText(at, value);
  else outbox.payloadBytes(at, value);
  outbox.finish(at);
}

/** What a failed run asks for besides the backoff. */
export interface Failing {
  /** Milliseconds until the next attempt. Default: the queue's backoff. */
  readonly delayMs?: number;
  /** The job is dead at once, with this reason. */
  readonly dead?: Reason;
  /** The reason kept with the attempt, and with the job if it was the last. */
  readonly reason?: Reason;
  /** Not an error: no attempt is counted. */
  readonly givenBack?: boolean;
}

/** Writes the RETRY or DEAD of a settled lease. */
export function giveUp(port: Port, held: Held, settings: QueueSettings, error: unknown, failing: Failing): void {
  const { shared, outbox } = port;
  const counts = shared.counts[held.row]!;
  const offset = shared.ref[held.row]! * ARENA_UNIT_BYTES - BODY;
  const attemptsMax = record.attemptsOf(shared.arena, offset);
  const attempts = Math.min(0xffff, (counts & 0xffff) + (failing.givenBack === true ? 0 : 1));
  const crashes = (counts >>> 16) & 0xff;
  const exhausted = failing.givenBack !== true && attempts >= attemptsMax;
  const dead = failing.dead !== undefined || exhausted;
  const kept = failing.reason ?? (failing.givenBack === true ? 'given-back' : 'none');
  const reason: Reason = dead ? (failing.dead ?? failing.reason ?? 'attempts') : kept;
  const delayMs = dead ? 0 : (failing.delayMs ?? delayAfter(settings, attempts, port));
  // The lease is settled: from here to the record nothing may throw, or the job would stay so until its thread ends.
  const told = failing.givenBack === true ? undefined : errorText(error, recordBytesMax(port));
  const type = dead ? RecordType.DEAD : RecordType.RETRY;
  const limits = limitsWord(attempts, crashes, REASONS.indexOf(reason));
  const at = outbox.append(type, held.level, held.id, held.queue, held.row, port.wallMs() + delayMs, limits);
  if (told !== undefined) outbox.payloadText(at, told);
  outbox.finish(at);
  port.flushSoon();
}

/** A backoff of the user's own that throws, or gives no time, is not one: then the default holds. */
function delayAfter(settings: QueueSettings, attempt: number, port: Port): number {
  if (settings.backoff !== undefined) {
    try {
      const delay = settings.backoff(attempt);
      if (typeof delay === 'number' && delay >= 0) return Math.ceil(Math.min(delay, DELAY_MS_MAX));
    } catch {}
  }
  return backoffMs(settings, attempt, port.random);
}

/** Bytes that one record may have beside its header: a reservation holds it whole. */
function recordBytesMax(port: Port): number {
  return reservationSlotsMax(port.shared.sizes) * SLOT_BYTES - 2 * SLOT_BYTES;
}

/** A code unit takes at most 6 bytes of JSON. */
const UNIT_BYTES = 6;

function errorText(error: unknown, bytesMax: number): string {
  const stored = storedError(error);
  const text = JSON.stringify(stored);
  if (text.length * 3 <= bytesMax || Buffer.byteLength(text) <= bytesMax) return text;
  // A small ring: the first words of it.
  const units = Math.floor(bytesMax / UNIT_BYTES / 4);
  return JSON.stringify({ name: stored.name.slice(0, units), message: stored.message.slice(0, units).toWellFormed() });
}

/** An error, or whatever was thrown, in the form that is stored. Reading it may run the user's code; this never throws. */
export function storedError(error: unknown): StoredError {
  try {
    if (error instanceof Error) {
      const { code, stack, cause } = error as { code?: unknown; stack?: unknown; cause?: unknown };
      return {
        name: cut(error.name),
        message: cut(error.message ?? ''),
        ...(typeof code === 'string' ? { code: cut(code) } : {}),
        ...(typeof stack === 'string' ? { stack: cut(stack) } : {}),
        ...(cause === undefined ? {} : { cause: cut(cause) }),
      };
    }
    return { name: 'Error', message: error === undefined ? 'failed without an error' : cut(error) };
  } catch {
    return { name: 'Error', message: 'failed with an error that cannot be read' };
  }
}

function cut(value: unknown): string {
  const text = typeof value === 'string' ? value : shown(value, TEXT_MAX);
  return (text.length > TEXT_MAX ? text.slice(0, TEXT_MAX) : text).toWellFormed();
}

/** An Error from its stored form. */
export function revivedError(stored: StoredError): Error {
  const error = new Error(stored.message);
  error.name = stored.name;
  error.stack = stored.stack ?? `${stored.name}: ${stored.message}`;
  if (stored.cause !== undefined) error.cause = stored.cause;
  if (stored.code !== undefined) Object.assign(error, { code: stored.code });
  return error;
}

const RAW = 0;

/** A handler's result as it is stored: JSON text, or a zero byte and raw bytes. undefined: no result. */
export function encodeResult(
  port: Port,
  result: unknown,
  coding: Coding,
  attempted: string,
  what = 'result',
): string | Uint8Array | undefined {
  if (result === undefined) return undefined;
  let encoded: string | Uint8Array;
  if (types.isUint8Array(result)) {
    encoded = new Uint8Array(result.length + 1);
    encoded[0] = RAW;
    encoded.set(result, 1);
  } else {
    encoded = coding.encode(result, attempted);
  }
  const bytes = typeof encoded === 'string' ? Buffer.byteLength(encoded) : encoded.length;
  const limit = port.limits.payloadBytesMax;
  if (bytes > limit) {
    throw new MillraceError(
      'ERR_MILLRACE_PAYLOAD_TOO_LARGE',
      `cannot ${attempted}: the ${what} is ${bytes} bytes, the limit is ${limit}`,
      { bytes, limit },
    );
  }
  return encoded;
}

export function decodeResult(bytes: Uint8Array): unknown {
  return bytes[0] === RAW
    ? bytes.slice(1)
    : JSON.parse(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString());
}
