/**
 * A fleet: handler modules in worker threads. piscina owns the threads' lives and limits; jobs do not pass through
 * it: each thread has one long task (`runner`) that serves the ready rings. Opener's or any attached thread.
 *
 * F3  A thread that exits is replaced, with a backoff that grows while threads die young; the jobs it held are
 *     released by the scheduler (S4), not by a time-out.
 * F4  A run past its timeout loses its lease at the scheduler's hand; here the thread that still runs it is replaced.
 */
import { existsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';
import { Piscina } from 'piscina';
import { wake } from '../../native-free/agent.js';
import { load, store } from '../../native-free/atomics.js';
import { OwnerWord } from '../../native-free/layout.js';
import type { Broker } from '../client/broker.js';
import { codecOf } from '../client/codec.js';
import type { QueueCore } from '../client/queue-core.js';
import { MillraceError, shown } from '../errors.js';
import { INTERVAL_MS_MAX, type ProcessOptions, span, whole } from '../options.js';
import {
  FleetState,
  FleetWord,
  fileUrl,
  RUNS_WATCHED,
  type RunnerFailure,
  type RunnerTask,
  SlotWord,
} from './runner.js';
import type { Worker, WorkerStats } from './worker.js';

const THREADS_MAX = 128;
const AGAIN_MS_MAX = 5000;
const YOUNG_MS = 1000;

export class Fleet implements Worker {
  readonly ready: Promise<void>;
  readonly #broker: Broker;
  readonly #pool: Piscina;
  readonly #words: Int32Array;
  readonly #threads: number;
  readonly #graceMs: number;
  readonly #slots: Promise<void>[] = [];
  readonly #aborts: (AbortController | undefined)[] = [];
  #closed = false;

  constructor(broker: Broker, module: URL | string, queue: QueueCore | undefined, options: ProcessOptions) {
    const attempted = `process ${shown(queue?.name ?? 'queues')}`;
    this.#broker = broker;
    this.#threads = whole(attempted, 'threads', options.threads, 1, THREADS_MAX, availableParallelism());
    const concurrency = whole(attempted, 'concurrency', options.concurrency, 1, 4096, 1);
    const timeout =
      options.timeout === undefined ? undefined : span(attempted, 'timeout', options.timeout, 1, INTERVAL_MS_MAX, 1);
    this.#graceMs = span(attempted, 'grace', options.grace, 0, INTERVAL_MS_MAX, 0);
    const url = fileUrl(module);
    if (!url.startsWith('data:') && !existsSync(fileURLToPath(url))) {
      throw new MillraceError('ERR_MILLRACE_HANDLER_NOT_FOUND', `cannot ${attempted}: there is no ${shown(url, 200)}`, {
        module: url,
      });
    }
    if (queue !== undefined && codecOf(queue.coding) === 'own') {
      throw new MillraceError(
        'ERR_MILLRACE_OPTION_INVALID',
        `cannot ${attempted}: a codec cannot be sent to another thread; let the module export [handle(definition, handler)]`,
        { option: 'codec' },
      );
    }
    const shared = new SharedArrayBuffer((FleetWord.FIRST + THREADS_MAX * FleetWord.BLOCK) * 4);
    this.#words = new Int32Array(shared);
    this.#pool = new Piscina({
      filename: new URL('./runner.js', import.meta.url).href,
      minThreads: this.#threads,
      maxThreads: this.#threads,
      idleTimeout: Number.POSITIVE_INFINITY,
      concurrentTasksPerWorker: 1,
      atomics: 'disabled',
      ...(options.resourceLimits === undefined ? {} : { resourceLimits: { ...options.resourceLimits } }),
    });
    // A thread that fails between tasks is reported here; its task rejects as well, and that is where it is handled.
    this.#pool.on('error', () => {});
    const task = {
      handle: broker.handle,
      fleet: shared,
      module: url,
      // Without options: what the queue is set to holds in every thread.
      queue: queue?.name,
      concurrency,
      timeout,
    };
    const firsts: Promise<void>[] = [];
    for (let slot = 0; slot < this.#threads; slot++) {
      firsts.push(new Promise((resolve, reject) => this.#slots.push(this.#serve({ ...task, slot }, resolve, reject))));
    }
    this.ready = Promise.all(firsts).then(() => {});
    this.ready.catch((error: Error) => {
      if (broker.listenerCount('error') > 0) broker.emit('error', error);
    });
  }

  /** The lease that a thread holds on `row` is over: after the grace, a thread that is still at it is replaced (F4). */
  overrun(owner: number, row: number, word: number): void {
    for (let slot = 0; slot < this.#threads; slot++) {
      const block = FleetWord.FIRST + slot * FleetWord.BLOCK;
      if (load(this.#words, block + SlotWord.OWNER) !== owner) continue;
      setTimeout(() => {
        if (load(this.#words, block + SlotWord.OWNER) !== owner) return;
        for (let at = block + SlotWord.RUNS, end = at + 2 * RUNS_WATCHED; at < end; at += 2) {
          if (load(this.#words, at) !== row || load(this.#words, at + 1) !== word) continue;
          this.#aborts[slot]?.abort();
          return;
        }
      }, this.#graceMs);
    }
  }

  pause(): void {
    this.#order(FleetState.PAUSED);
  }

  resume(): void {
    this.#order(FleetState.RUNNING);
  }

  async close(options: { readonly timeout?: number } = {}): Promise<void> {
    const timeoutMs = span('close a worker', 'timeout', options.timeout, 0, INTERVAL_MS_MAX, 30_000);
    if (this.#closed) return void (await Promise.all(this.#slots));
    this.#closed = true;
    this.#order(FleetState.STOPPING);
    const timer = setTimeout(() => {
      for (const abort of this.#aborts) abort?.abort();
    }, timeoutMs);
    await Promise.all(this.#slots);
    clearTimeout(timer);
    await this.#pool.destroy();
  }

  /** Tells every thread, and wakes those that sleep. */
  #order(state: number): void {
    store(this.#words, FleetWord.STATE, state);
    const { owners } = this.#broker.port.shared;
    for (let slot = 0; slot < this.#threads; slot++) {
      const owner = load(this.#words, FleetWord.FIRST + slot * FleetWord.BLOCK + SlotWord.OWNER);
      if (owner !== 0) wake(owners, owner * OwnerWord.WORDS + OwnerWord.ASLEEP);
    }
  }

  stats(): WorkerStats {
    const sum = { running: 0, completed: 0, failed: 0, threads: this.#threads };
    for (let slot = 0; slot < this.#threads; slot++) {
      const block = FleetWord.FIRST + slot * FleetWord.BLOCK;
      sum.running += load(this.#words, block + SlotWord.RUNNING);
      sum.completed +=
        load(this.#words, block + SlotWord.COMPLETED) + load(this.#words, block + SlotWord.COMPLETED_BEFORE);
      sum.failed += load(this.#words, block + SlotWord.FAILED) + load(this.#words, block + SlotWord.FAILED_BEFORE);
    }
    return sum;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Keeps one thread at work until the fleet closes (F3). */
  async #serve(task: Omit<RunnerTask, 'loaded'>, loaded: () => void, failed: (error: Error) => void): Promise<void> {
    const block = FleetWord.FIRST + task.slot * FleetWord.BLOCK;
    let againMs = 0;
    while (!this.#closed) {
      const startedMs = performance.now();
      const abort = new AbortController();
      this.#aborts[task.slot] = abort;
      for (const [now, before] of [
        [SlotWord.COMPLETED, SlotWord.COMPLETED_BEFORE],
        [SlotWord.FAILED, SlotWord.FAILED_BEFORE],
      ] as const) {
        this.#words[block + before]! += this.#words[block + now]!;
        this.#words[block + now] = 0;
      }
      store(this.#words, block + SlotWord.RUNNING, 0);
      store(this.#words, block + SlotWord.OWNER, 0);
      for (let i = 0; i < RUNS_WATCHED; i++) store(this.#words, block + SlotWord.RUNS + 2 * i, 0);
      const { port1, port2 } = new MessageChannel();
      port1.once('message', loaded);
      port1.unref();
      try {
        const failure = (await this.#pool.run(
          { ...task, loaded: port2 },
          { transferList: [port2], signal: abort.signal },
        )) as RunnerFailure | undefined;
        if (failure === undefined || this.#closed) return;
        failed(new MillraceError(failure.code, failure.message, { module: task.module }));
        if (failure.code === 'ERR_MILLRACE_HANDLER_NOT_FOUND') return;
      } catch (error) {
        if (this.#closed) return;
        failed(
          new MillraceError('ERR_MILLRACE_THREAD_DIED', `a fleet thread ended: ${shown(String(error))}`, {}, error),
        );
      } finally {
        port1.close();
      }
      againMs = performance.now() - startedMs > YOUNG_MS ? 0 : Math.min(AGAIN_MS_MAX, Math.max(10, 2 * againMs));
      if (againMs > 0) await new Promise((resolve) => setTimeout(resolve, againMs));
    }
  }
}
