/**
 * A handler over many inputs, each a job of a broker, with their results handed back as they come: what `run` and
 * `fingerprint` are made of. Main thread; the handlers are in worker threads.
 *
 * M1  A job's key is the number of its input, and it stays in the directory with its result when it is done: whoever
 *     comes back with the same inputs gets the result without another run of the handler. Failed jobs lose their key,
 *     and are removed when somebody comes back: they are tried again with all their attempts.
 * M2  A result is handed on only when its ack is committed: whoever wrote it down never sees its input run again.
 * M3  At most JOBS_AT_ONCE jobs and BYTES_AT_ONCE of their inputs are in memory here, however many there are.
 * M4  Without `keeps` nobody comes back: nothing is kept, and nothing is written to the log.
 * M5  An input that was running each time the process died may be why: it is tried again behind all others.
 */
import { totalmem } from 'node:os';
import { type Broker, type EnqueueOptions, MillraceError, open, type Queue, type Worker } from '../index.js';
import { canonical } from './output.js';
import { duration, many, size } from './terminal.js';
import { NotFoundError, UsageError } from './usage.js';

export interface MapOptions {
  readonly dir: string;
  /** Whether somebody may come back to the directory (M1, M4). */
  readonly keeps: boolean;
  readonly queue: string;
  readonly handler: URL;
  readonly threads: number | undefined;
  readonly attempts: number;
  readonly timeoutMs: number | undefined;
}

/** One input: a job to be. */
export interface Input {
  /** 1 is the first. */
  readonly number: number;
  readonly value: unknown;
  /** The value's JSON text. */
  readonly json: string;
  readonly bytes: number;
}

export interface MapEvents {
  done(input: Input, result: unknown): void;
  failed(input: Input, reason: string): void;
}

export const PAYLOAD_BYTES_MAX = 8 << 20;
const JOBS_AT_ONCE = 4096;
const BYTES_AT_ONCE = 64 << 20;
const RETENTION_MS = 365 * 24 * 3_600_000;
const BACKOFF = { base: 100, max: 10_000 } as const;
/** What is set aside for these is untouched at first, but a system refuses a process more than it has. */
const JOBS_MAX = Math.min(16_000_000, Math.floor(totalmem() / 512));
const MEMORY_BYTES = Math.min(2 ** 31, Math.floor(totalmem() / 4));
const TURN_EVERY = 64;
/** Longer than any stop is waited for: a second signal ends that. */
const STOP_MS = 2 ** 31 - 1;

export class DurableMap {
  /** Jobs that ended since this process came. */
  ended = 0;
  failed = 0;
  /** Jobs whose result an earlier process had got. */
  found = 0;
  readonly broker: Broker;
  readonly #options: MapOptions;
  readonly #queue: Queue;
  readonly #worker: Worker;
  readonly #events: MapEvents;
  /** Inputs on their way into the broker. */
  readonly #asking = new Set<Promise<unknown>>();
  /** Keys of jobs that were running too often when a process ended. */
  readonly #last = new Set<string>();
  /** Inputs whose jobs those were, held back until all others have ended (M5). */
  readonly #held: Input[] = [];
  #jobs = 0;
  #bytes = 0;
  #pushed = 0;
  #stopping = false;
  #error: Error | undefined;
  /** Called when a job has ended or everything is over. */
  #stir: () => void = () => {};

  private constructor(broker: Broker, options: MapOptions, events: MapEvents) {
    this.broker = broker;
    this.#options = options;
    this.#events = events;
    this.#queue = broker.queue(options.queue, {
      attempts: options.attempts,
      backoff: BACKOFF,
      durability: options.keeps ? 'fsync' : 'memory',
    });
    this.#worker = this.#queue.process(options.handler, { threads: options.threads, timeout: options.timeoutMs });
    broker.on('poisoned', this.abort);
    broker.on('error', this.abort);
  }

  /** Opens the directory and loads the handler. Rejects as `open` does, and when the handler cannot be loaded. */
  static async open(options: MapOptions, events: MapEvents): Promise<DurableMap> {
    const broker = await open(options.dir, {
      payloadBytesMax: PAYLOAD_BYTES_MAX,
      jobsMax: JOBS_MAX,
      memoryBytes: MEMORY_BYTES,
    });
    try {
      const map = new DurableMap(broker, options, events);
      await map.#worker.ready.catch((error: MillraceError) => {
        if (error.code !== 'ERR_MILLRACE_THREAD_DIED') throw error;
        throw new NotFoundError(`cannot load the handler module ${options.handler}: ${error.message}`);
      });
      if (options.keeps) await map.#forgive();
      return map;
    } catch (error) {
      await broker.close();
      throw error;
    }
  }

  /** Removes the failed jobs of earlier runs (M1), and keeps in mind whom to be wary of (M5). */
  async #forgive(): Promise<void> {
    const { deadLetters } = this.#queue;
    // Answered when the jobs that ran when the last process ended have been charged with it.
    await deadLetters.purge({ dryRun: true });
    for (let after: number | undefined; ; ) {
      const page = await deadLetters.list({ reason: 'crash', after });
      for (const { key } of page) if (key !== undefined) this.#last.add(key);
      after = page.at(-1)?.id;
      if (after === undefined) break;
    }
    await deadLetters.purge();
  }

  /** Takes an input; resolves when there is room for the next. Rejects when the run cannot go on. */
  async push(input: Input): Promise<void> {
    if (this.#last.delete(String(input.number))) this.#held.push(input);
    else await this.#add(input);
  }

  async #add(input: Input): Promise<void> {
    this.#checkRoom();
    // Inputs that are at hand already would fill all the room before the first result has its turn.
    if (++this.#pushed % TURN_EVERY === 0) await new Promise((resolve) => setImmediate(resolve));
    while (this.#jobs >= JOBS_AT_ONCE || (this.#jobs > 0 && this.#bytes + input.bytes > BYTES_AT_ONCE)) {
      if (await this.#stirred()) return;
    }
    if (this.#error !== undefined) throw this.#error;
    this.#jobs++;
    this.#bytes += input.bytes;
    void this.#follow(input);
  }

  /** An input that is not fit to be a job counts as a failed one. */
  refuse(input: Input, reason: string): void {
    this.ended++;
    this.failed++;
    this.#events.failed(input, reason);
  }

  /** Resolves when every job has ended, or the map was stopped. */
  async idle(): Promise<void> {
    await this.#settled();
    for (const input of this.#held.splice(0)) await this.#add(input);
    await this.#settled();
    if (this.#error !== undefined) throw this.#error;
  }

  async #settled(): Promise<void> {
    while (this.#jobs > 0) if (await this.#stirred()) return;
  }

  /** Takes no more, lets running jobs end, and hands on what they gave. */
  async stop(): Promise<void> {
    this.#stopping = true;
    this.#stir();
    await this.#worker.close({ timeout: STOP_MS });
    await Promise.allSettled(this.#asking);
    // Answered behind all that was asked and acked before, so whatever has ended is known then.
    if (this.#error === undefined) await this.#queue.get(1);
    await new Promise((resolve) => setImmediate(resolve));
  }

  /** Ends the run with an error; what is on disk stays good. */
  readonly abort = (error: Error): void => {
    this.#error ??= error;
    this.#stir();
  };

  async close(): Promise<void> {
    this.#stopping = true;
    await this.broker.close();
  }

  async #follow(input: Input): Promise<void> {
    const asking = this.#ask(input);
    this.#asking.add(asking);
    try {
      const { result } = await asking;
      this.#asking.delete(asking);
      const value = await result;
      this.ended++;
      this.#events.done(input, value);
    } catch (error) {
      this.#asking.delete(asking);
      const reason = this.#reasonOf(error as Error);
      if (reason !== undefined) this.refuse(input, reason);
      else if (!this.#stopping) this.abort(error as Error);
    } finally {
      this.#jobs--;
      this.#bytes -= input.bytes;
      this.#stir();
    }
  }

  /** Resolves when the job is accepted and its result asked for. */
  async #ask(input: Input): Promise<{ readonly result: Promise<unknown> }> {
    const job = await this.#queue.enqueue(input.value, this.#options.keeps ? this.#kept(input) : undefined);
    if (job.duplicate) await this.#checkSame(job.id, input);
    return { result: job.result() };
  }

  #kept(input: Input): EnqueueOptions {
    return { key: String(input.number), keyRetention: RETENTION_MS };
  }

  /** The job that holds the input's number must have been made of the same input (M1). */
  async #checkSame(id: number, input: Input): Promise<void> {
    const earlier = await this.#queue.get(id);
    if (earlier === undefined) return;
    if (canonical(earlier.payload) !== canonical(input.value)) throw differs(input.number, this.#options.dir);
    if (earlier.state === 'done') this.found++;
  }

  /** Done jobs that are kept take room for good; rather than wait for it for ever, say so. */
  #checkRoom(): void {
    const { jobs, memoryBytes } = this.broker.stats();
    if (jobs < JOBS_MAX - 2 * JOBS_AT_ONCE && memoryBytes < MEMORY_BYTES - 2 * BYTES_AT_ONCE) return;
    throw new MillraceError(
      'ERR_MILLRACE_FULL',
      `${this.#options.dir} keeps ${many(jobs, 'job')} (${size(memoryBytes)}) and has no room for more; ` +
        'with --out, start again with a fresh --dir: lines whose result is in the file are not computed again',
    );
  }

  /** Waits until a job has ended. True: nothing more is to be waited for. */
  async #stirred(): Promise<boolean> {
    if (this.#error !== undefined) throw this.#error;
    if (this.#stopping) return true;
    await new Promise<void>((resolve) => {
      this.#stir = resolve;
    });
    if (this.#error !== undefined) throw this.#error;
    return this.#stopping;
  }

  /** Why one input failed; undefined when the error is about more than that. */
  #reasonOf(error: Error): string | undefined {
    if (!(error instanceof MillraceError)) return undefined;
    switch (error.code) {
      case 'ERR_MILLRACE_PAYLOAD_INVALID':
      case 'ERR_MILLRACE_PAYLOAD_TOO_LARGE':
      case 'ERR_MILLRACE_CANCELLED':
      case 'ERR_MILLRACE_RESULT_EXPIRED':
        return error.message;
      case 'ERR_MILLRACE_DEAD':
        return this.#deathOf(error);
      default:
        return undefined;
    }
  }

  #deathOf(error: MillraceError): string {
    const { attempts, timeoutMs } = this.#options;
    const cause = error.cause instanceof Error ? error.cause : error;
    const tries = attempts === 1 ? '' : ` (${attempts} attempts)`;
    switch (error.reason) {
      case 'rejected':
        return `given up by the handler: ${cause.message}`;
      case 'timeout':
        return `took longer than ${duration(timeoutMs ?? 0)}${tries}`;
      case 'crash':
        return `took its thread down: ${cause.message}`;
      default:
        return `${cause.name === 'MillraceError' ? '' : `${cause.name}: `}${cause.message}${tries}`;
    }
  }
}

export function differs(line: number, where: string): UsageError {
  return new UsageError(
    `line ${line} of the input is not the line ${line} that ${where} knows: give the same input again, or use another place`,
  );
}
