/**
 * A job as its producer holds it.
 */
import { MillraceError } from '../errors.js';
import { abortSignal, INTERVAL_MS_MAX, record, span } from '../options.js';
import { Outcome, Question, type StoredError } from '../schedule/questions.js';
import type { Port } from './port.js';
import { decodeResult, revivedError } from './settle.js';

export interface ResultOptions {
  /** Ends the wait alone; the job goes on. */
  readonly signal?: AbortSignal;
  /** Milliseconds to wait; then rejects with ERR_MILLRACE_TIMEOUT and the job goes on. Default: for ever. */
  readonly timeout?: number;
}

export class Job<Result = unknown> {
  /** A safe integer, unique and rising for the life of the directory. */
  readonly id: number;
  /** True: an earlier job holds the key, and this is that one. */
  readonly duplicate: boolean;
  readonly #port: Port;
  readonly #end: number;

  constructor(port: Port, id: number, end: number, duplicate: boolean) {
    this.#port = port;
    this.id = id;
    this.#end = end;
    this.duplicate = duplicate;
  }

  /** Resolves when the job is as durable as its queue asks; rejects when that failed or cannot be known. */
  get durable(): Promise<void> {
    return this.duplicate ? Promise.resolve() : this.#port.durable(this.#end);
  }

  /**
   * The handler's result. Rejects with ERR_MILLRACE_DEAD (reason, cause: the last error), _CANCELLED,
   * _RESULT_EXPIRED (the job ended too long ago), _TIMEOUT (the wait), or _CLOSED.
   */
  result(options: ResultOptions = {}): Promise<Result> {
    return resultOf<Result>(this.#port, this.id, options);
  }
}

/** Waits for a job to end, from now on or in the recent past. */
export async function resultOf<Result>(
  port: Port,
  id: number,
  options: ResultOptions,
  watched = false,
): Promise<Result> {
  const attempted = `wait for job ${id}`;
  record(attempted, options);
  const timeoutMs =
    options.timeout === undefined ? undefined : span(attempted, 'timeout', options.timeout, 0, INTERVAL_MS_MAX, 0);
  abortSignal(attempted, options.signal);
  return new Promise<Result>((resolve, reject) => {
    port.check(attempted);
    let timer: NodeJS.Timeout | undefined;
    const ended = (status: number, bytes: Uint8Array | undefined): void => {
      clearTimeout(timer);
      options.signal?.removeEventListener('abort', onAbort);
      settle(id, status, bytes, resolve as (value: unknown) => void, reject);
    };
    const stop = (error: unknown): void => {
      clearTimeout(timer);
      options.signal?.removeEventListener('abort', onAbort);
      port.unwatch(id, ended);
      reject(error as Error);
    };
    const onAbort = (): void => stop(options.signal?.reason);
    if (options.signal?.aborted === true) return reject(options.signal.reason as Error);
    options.signal?.addEventListener('abort', onAbort, { once: true });
    if (timeoutMs !== undefined) {
      const late = (): void =>
        stop(
          new MillraceError('ERR_MILLRACE_TIMEOUT', `cannot ${attempted} any longer: ${timeoutMs} ms are over`, { id }),
        );
      timer = setTimeout(late, timeoutMs);
    }
    port.watch(id, ended);
    if (!watched) port.tell(Question.WATCH, id, 0, 0);
  });
}

function settle(
  id: number,
  status: number,
  bytes: Uint8Array | undefined,
  resolve: (value: unknown) => void,
  reject: (error: Error) => void,
): void {
  switch (status) {
    case Outcome.DONE:
      return resolve(undefined);
    case Outcome.DONE_WITH_RESULT:
      return resolve(decodeResult(bytes!));
    case Outcome.DEAD: {
      const told = JSON.parse(Buffer.from(bytes!).toString()) as { reason: string; error?: StoredError };
      const cause = told.error === undefined ? undefined : revivedError(told.error);
      const why = cause === undefined ? '' : `: ${cause.message}`;
      return reject(
        new MillraceError(
          'ERR_MILLRACE_DEAD',
          `job ${id} is dead (${told.reason})${why}`,
          { id, reason: told.reason },
          cause,
        ),
      );
    }
    case Outcome.CANCELLED:
      return reject(new MillraceError('ERR_MILLRACE_CANCELLED', `job ${id} was cancelled`, { id }));
    case Outcome.REMOVED:
      return reject(new MillraceError('ERR_MILLRACE_RESULT_EXPIRED', `job ${id} was purged`, { id }));
    default: {
      if (bytes !== undefined) {
        return reject(new MillraceError('ERR_MILLRACE_CLOSED', Buffer.from(bytes).toString(), { id }));
      }
      const why = `cannot give the result of job ${id}: there is no such job, or it ended too long ago`;
      return reject(new MillraceError('ERR_MILLRACE_RESULT_EXPIRED', why, { id }));
    }
  }
}
