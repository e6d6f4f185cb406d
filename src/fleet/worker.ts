/**
 * What runs handlers: the public `Worker`, and the one for function handlers on the calling thread.
 */

import type { Lease } from '../client/lease.js';
import type { ReadyWaiter } from '../client/port.js';
import type { Bound, QueueCore } from '../client/queue-core.js';
import { MillraceError } from '../errors.js';
import { INTERVAL_MS_MAX, type ProcessOptions, span, TIME_MS_MAX, whole } from '../options.js';

/** What a handler gets beside the payload. */
export interface RunningJob {
  readonly id: number;
  /** A fencing token: rises with every run of this job, across threads and restarts. */
  readonly token: number;
  /** 1 is the first run. */
  readonly attempt: number;
  readonly tenant: string | undefined;
  /** Aborts when the lease is lost, the job is cancelled, or its time is over. */
  readonly signal: AbortSignal;
  /** Milliseconds since 1970. */
  readonly enqueuedAt: number;
  /** The same as `signal.aborted` for code that never yields: a load of shared memory, so a tight loop can poll it. */
  cancelled(): boolean;
  /**
   * Says how far the job is; resolves when that is as durable as the job. The next run of this job sees it, whatever ended
   * this one. JSON or a Uint8Array, up to `payloadBytesMax`; undefined takes the last one back.
   * Rejects with ERR_MILLRACE_CANCELLED when the lease was lost, _PAYLOAD_INVALID, _PAYLOAD_TOO_LARGE, _CLOSED, _IO.
   */
  checkpoint(value: unknown): Promise<void>;
  /** What an earlier run of this job said last; undefined when none has. */
  readonly lastCheckpoint: unknown;
}

/** Does the work of one job. What it returns is the job's result; what it throws counts as a failed attempt. */
export type Handler<Payload = unknown, Result = unknown> = (
  payload: Payload,
  job: RunningJob,
) => Result | Promise<Result>;

/** Thrown by a handler: give the job back, to run again after `after` milliseconds. Not an error, no attempt counted. */
export class Retry extends Error {
  override readonly name = 'Retry';
  readonly after: number;

  constructor(options: { readonly after?: number } = {}) {
    super('the job asks to be run again');
    this.after = span('retry a job', 'after', options.after, 0, TIME_MS_MAX, 0);
  }
}

/** Thrown by a handler: the job goes straight to the dead letters, with this reason as its error. */
export class Dead extends Error {
  override readonly name = 'Dead';
}

export interface WorkerStats {
  readonly running: number;
  readonly completed: number;
  readonly failed: number;
  readonly threads: number;
}

/** Handlers at work on a queue. It holds the process open until it is closed. */
export interface Worker {
  /** Resolves when the handlers are loaded in every thread; rejects with ERR_MILLRACE_HANDLER_NOT_FOUND. */
  readonly ready: Promise<void>;
  /** Takes no more jobs until `resume`; running ones go on. */
  pause(): void;
  resume(): void;
  /** Takes no more jobs and waits for the running ones, at most `timeout` ms (default 30,000); then lets go of them. */
  close(options?: { readonly timeout?: number }): Promise<void>;
  stats(): WorkerStats;
  [Symbol.asyncDispose](): Promise<void>;
}

/**
 * Runs a handler on one lease and ends the lease by what came of it. True: acked.
 * `bound`: the run's limit is the lease's deadline, which the scheduler keeps.
 */
export async function runJob(
  lease: Lease,
  handler: Handler<never, unknown>,
  timeoutMs: number | undefined,
  bound: boolean,
): Promise<boolean> {
  const limit = bound ? undefined : (lease.timeout ?? timeoutMs);
  let timer: NodeJS.Timeout | undefined;
  let late: AbortController | undefined;
  let lastCheckpoint: unknown;
  const job: RunningJob = {
    id: lease.id,
    token: lease.token,
    attempt: lease.attempt,
    tenant: lease.tenant,
    get signal() {
      return late === undefined ? lease.signal : AbortSignal.any([lease.signal, late.signal]);
    },
    enqueuedAt: lease.enqueuedAt,
    cancelled: () => !lease.held || late?.signal.aborted === true,
    checkpoint: (value) => lease.checkpoint(value),
    get lastCheckpoint() {
      return lastCheckpoint;
    },
  };
  const timedOut = (): MillraceError =>
    new MillraceError('ERR_MILLRACE_TIMEOUT', `job ${lease.id} ran longer than ${limit} ms`, { id: lease.id, limit });
  if (limit !== undefined) {
    late = new AbortController();
    timer = setTimeout(() => {
      const error = timedOut();
      late!.abort(error);
      lease.end(error, 'timeout', false);
    }, limit);
  }
  try {
    if (lease.checkpointed) lastCheckpoint = await lease.lastCheckpoint();
    const returned = handler(lease.payload as never, job);
    const result = isThenable(returned) ? await returned : returned;
    return lease.ack(result);
  } catch (error) {
    settleFailure(lease, error);
    return false;
  } finally {
    clearTimeout(timer);
  }
}

function isThenable(value: unknown): value is Promise<unknown> {
  return typeof value === 'object' && value !== null && typeof (value as { then?: unknown }).then === 'function';
}

/** Errors know their kind by name too: a handler module may have loaded its own copy of this one. */
function settleFailure(lease: Lease, error: unknown): void {
  try {
    if (error instanceof Error && error.name === 'Retry' && typeof (error as Retry).after === 'number') {
      lease.giveBack((error as Retry).after);
    } else if (error instanceof Error && error.name === 'Dead') {
      lease.end(error, 'rejected', true);
    } else {
      lease.fail(error);
    }
  } catch (closed) {
    // The broker closed or its log failed while the handler ran: the job runs again after the next open.
    if (!(closed instanceof MillraceError)) throw closed;
  }
}

/** Runs a function handler on this thread, up to `concurrency` jobs at once. */
export class LocalWorker implements Worker {
  /** Function handlers are there from the start. */
  readonly ready = Promise.resolve();
  /** Called when a run starts and when it is over. */
  onRun: ((lease: Lease, runs: boolean) => void) | undefined;
  running = 0;
  completed = 0;
  failed = 0;
  readonly #core: QueueCore;
  readonly #handler: Handler<never, unknown>;
  readonly #concurrency: number;
  readonly #timeoutMs: number | undefined;
  readonly #waiter: ReadyWaiter;
  readonly #idle: (() => void)[] = [];
  readonly #bound: Bound | undefined;
  #paused = false;
  #closed = false;

  constructor(core: QueueCore, handler: Handler<never, unknown>, options: ProcessOptions, bound = false) {
    const attempted = `process ${core.name}`;
    this.#core = core;
    this.#handler = handler;
    this.#concurrency = whole(attempted, 'concurrency', options.concurrency, 1, 4096, 1);
    this.#timeoutMs =
      options.timeout === undefined ? undefined : span(attempted, 'timeout', options.timeout, 1, INTERVAL_MS_MAX, 1);
    this.#bound = bound ? { timeoutMs: this.#timeoutMs ?? 0 } : undefined;
    this.#waiter = {
      group: core.group(),
      holds: true,
      attempt: () => this.#pull(),
      reject: () => {
        this.#closed = true;
      },
    };
    core.port.awaitReady(this.#waiter);
  }

  pause(): void {
    this.#paused = true;
    this.#core.port.cancelReady(this.#waiter);
  }

  resume(): void {
    if (!this.#paused || this.#closed) return;
    this.#paused = false;
    this.#core.port.awaitReady(this.#waiter);
  }

  async close(options: { readonly timeout?: number } = {}): Promise<void> {
    const timeoutMs = span('close a worker', 'timeout', options.timeout, 0, INTERVAL_MS_MAX, 30_000);
    this.#closed = true;
    this.#core.port.cancelReady(this.#waiter);
    if (this.running === 0) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, timeoutMs);
      this.#idle.push(() => {
        clearTimeout(timer);
        resolve();
      });
    });
  }

  stats(): WorkerStats {
    return { running: this.running, completed: this.completed, failed: this.failed, threads: 0 };
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Claims as many jobs as there are places. True: every place is taken, so there is nothing to wait for. */
  #pull(): boolean {
    if (this.#closed || this.#paused) return true;
    const free = this.#concurrency - this.running;
    if (free > 0) {
      const leases = this.#core.claim(free, undefined, true, this.#bound);
      if (leases.length > 0) this.#mark(leases);
      for (const lease of leases) void this.#run(lease);
    }
    return this.running >= this.#concurrency;
  }

  /** Says what is about to run, before it does: one write for all of them. */
  #mark(leases: readonly Lease[]): void {
    const { marks } = this.#core.port;
    if (marks === undefined) return;
    for (const lease of leases) marks.add(lease);
    marks.write();
  }

  async #run(lease: Lease): Promise<void> {
    this.running++;
    this.#core.port.retain(1);
    // The handler starts in a task of its own turn, not in the middle of whoever looked for work.
    await undefined;
    this.onRun?.(lease, true);
    if (await runJob(lease, this.#handler, this.#timeoutMs, this.#bound !== undefined)) this.completed++;
    else this.failed++;
    // Sync handlers would go from job to job in microtasks: let timers, ports and sockets have their turn.
    const { port } = this.#core;
    if (port.isTurnDue()) await port.turn();
    this.running--;
    this.#core.port.marks?.delete(lease);
    this.onRun?.(lease, false);
    this.#core.port.retain(-1);
    if (this.#closed) {
      if (this.running === 0) for (const idle of this.#idle.splice(0)) idle();
      return;
    }
    if (!this.#paused) this.#core.port.awaitReady(this.#waiter);
  }
}
