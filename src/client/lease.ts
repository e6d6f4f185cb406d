/**
 * A lease: one run of one job, held by this thread until it is acked, failed or lost.
 */
import { load } from '../../native-free/atomics.js';
import { MillraceError } from '../errors.js';
import { INTERVAL_MS_MAX, record, span, TIME_MS_MAX } from '../options.js';
import { tokenOf } from '../schedule/lease.js';
import { Question } from '../schedule/questions.js';
import type { Port } from './port.js';
import type { QueueCore } from './queue-core.js';
import { acknowledge, checkpoint, decodeResult, encodeResult, giveUp, isHeld, tryExtend, trySettle } from './settle.js';

const NOTHING = new Uint8Array(0);

export interface FailOptions {
  /** Milliseconds until the next attempt, instead of the queue's backoff. */
  readonly delay?: number;
  /** True: dead at once, whatever attempts are left. */
  readonly dead?: boolean;
}

export class Lease<Payload = unknown> {
  /** The job's id: a safe integer that rises for the life of the directory. */
  readonly id: number;
  readonly payload: Payload;
  /** 1 is the first run. */
  readonly attempt: number;
  /** Milliseconds since 1970. */
  readonly enqueuedAt: number;
  readonly tenant: string | undefined;
  /** Milliseconds one run may take; undefined = no limit. */
  readonly timeout: number | undefined;
  /** Whose row and which word: what the lease is to the shared memory. */
  readonly row: number;
  readonly word: number;
  readonly level: number;
  /** Failed attempts and crashes before this run. */
  readonly attempts: number;
  readonly crashes: number;
  /** An earlier run left a checkpoint. */
  readonly checkpointed: boolean;
  readonly #core: QueueCore;
  #deadline: number;
  #abort: AbortController | undefined;
  #settled = false;

  constructor(
    core: QueueCore,
    row: number,
    word: number,
    level: number,
    id: number,
    payload: Payload,
    attempt: number,
    crashes: number,
    enqueuedAt: number,
    deadline: number,
    tenant: string | undefined,
    timeout: number | undefined,
    checkpointed: boolean,
  ) {
    this.#core = core;
    this.row = row;
    this.word = word;
    this.level = level;
    this.id = id;
    this.payload = payload;
    this.attempt = attempt;
    this.attempts = attempt - 1;
    this.crashes = crashes;
    this.enqueuedAt = enqueuedAt;
    this.#deadline = deadline;
    this.tenant = tenant;
    this.timeout = timeout;
    this.checkpointed = checkpointed;
  }

  get queue(): number {
    return this.#core.id;
  }

  /** A fencing token: a safe integer that rises with every lease of this job, across threads and restarts. */
  get token(): number {
    return tokenOf(this.#port.epoch, this.word);
  }

  /** When the lease expires unless extended, in milliseconds since 1970 (kept by the monotonic clock). */
  get deadline(): number {
    return this.#deadline;
  }

  /** Aborts when the lease is lost: expired, cancelled, or the broker closed. */
  get signal(): AbortSignal {
    if (this.#abort === undefined) {
      this.#abort = new AbortController();
      if (this.#settled) return this.#abort.signal;
      if (!this.held) this.#lost();
      else this.#port.onLost(this.row, this.word, () => this.#lost());
    }
    return this.#abort.signal;
  }

  /** Whether the lease is still this one's. A load of shared memory: a tight loop can poll it. */
  get held(): boolean {
    return !this.#settled && !this.#port.over && isHeld(this.#port, this);
  }

  /**
   * The job is done. False: the lease was lost, and nothing has changed.
   * True: the ack is in the log's order; it is not waited for (a crash before its flush runs the job again).
   * Throws ERR_MILLRACE_PAYLOAD_INVALID or _TOO_LARGE for a result that cannot be stored; the lease is kept.
   */
  ack(result?: unknown): boolean {
    const encoded = encodeResult(this.#port, result, this.#core.resultCoding, `ack job ${this.id}`);
    if (!this.#settle()) return false;
    acknowledge(this.#port, this, encoded);
    return true;
  }

  /** Like `ack`, and resolves when the ack is as durable as the job was. */
  async ackDurably(result?: unknown): Promise<boolean> {
    if (!this.ack(result)) return false;
    await this.#port.ask(Question.SYNC, 0, this.#core.id);
    return true;
  }

  /** The run failed: the job runs again after a backoff, or is dead when its attempts are used up. False: stale. */
  fail(error?: unknown, options: FailOptions = {}): boolean {
    record(`fail job ${this.id}`, options);
    const delayMs =
      options.delay === undefined ? undefined : span(`fail job ${this.id}`, 'delay', options.delay, 0, TIME_MS_MAX, 0);
    if (!this.#settle()) return false;
    giveUp(this.#port, this, this.#core.settings, error, {
      delayMs,
      ...(options.dead === true ? { dead: 'rejected' } : {}),
    });
    return true;
  }

  /** Gives the job back: it runs again after `delay` milliseconds, and no attempt is counted. False: stale. */
  giveBack(delay = 0): boolean {
    const delayMs = span(`give back job ${this.id}`, 'delay', delay, 0, TIME_MS_MAX, 0);
    if (!this.#settle()) return false;
    giveUp(this.#port, this, this.#core.settings, undefined, { delayMs, givenBack: true });
    return true;
  }

  /** For workers: what `RunningJob.checkpoint` does. */
  async checkpoint(value: unknown): Promise<void> {
    const attempted = `checkpoint job ${this.id}`;
    const port = this.#port;
    port.checkSettle(attempted);
    const encoded = encodeResult(port, value, this.#core.resultCoding, attempted, 'value') ?? NOTHING;
    if (!this.held) {
      const message = `cannot ${attempted}: its lease was lost`;
      throw new MillraceError('ERR_MILLRACE_CANCELLED', message, { id: this.id });
    }
    checkpoint(port, this, this.attempts, this.crashes, encoded);
    await port.ask(Question.SYNC, 0, this.#core.id);
  }

  /** For workers: the last checkpoint of an earlier run, undefined when there is none. */
  async lastCheckpoint(): Promise<unknown> {
    const { bytes } = await this.#port.ask(Question.CHECKPOINT, this.id, this.#core.id);
    return bytes === undefined ? undefined : decodeResult(bytes);
  }

  /** For workers: the run ended in a way that has a reason of its own. `dead`: no further attempt. */
  end(error: unknown, reason: 'rejected' | 'timeout', dead: boolean): boolean {
    if (!this.#settle()) return false;
    giveUp(this.#port, this, this.#core.settings, error, dead ? { dead: reason } : { reason });
    return true;
  }

  /** The lease lasts `ms` milliseconds from now. False: it was lost. */
  extend(ms: number): boolean {
    // Nothing is no span of time: there is no default.
    const whole = span(`extend job ${this.id}`, 'ms', ms ?? Number.NaN, 1, INTERVAL_MS_MAX, 1);
    this.#port.checkSettle(`extend job ${this.id}`);
    const { deadline } = this.#port.shared;
    const before = load(deadline, this.row);
    if (this.#settled || !tryExtend(this.#port, this, whole)) return false;
    this.#deadline = this.#port.wallMs() + whole;
    // The row's timer looks at the deadline when it fires; one before that has to be pointed out.
    const isEarlier = ((load(deadline, this.row) - before) | 0) < 0;
    if (isEarlier) this.#port.tell(Question.REARM, this.id, this.#core.id, this.row);
    return true;
  }

  get #port(): Port {
    return this.#core.port;
  }

  #settle(): boolean {
    this.#port.checkSettle(`settle job ${this.id}`);
    if (this.#settled || !trySettle(this.#port, this)) return false;
    this.#settled = true;
    if (this.#abort !== undefined) this.#port.offLost(this.row, this.word);
    return true;
  }

  #lost(): void {
    const error = new MillraceError('ERR_MILLRACE_CANCELLED', `the lease on job ${this.id} was lost`, { id: this.id });
    this.#abort?.abort(error);
  }
}
