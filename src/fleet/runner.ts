/**
 * What a fleet thread runs: one long task that serves the ready rings until the fleet stops. Loaded by piscina.
 *
 * F1  It attaches to the broker by itself: jobs come through the ready ring, not through piscina's task queue.
 * F2  Its leases last as long as the thread. Nothing renews them, so nothing can fail to.
 */
import { pathToFileURL } from 'node:url';
import type { MessagePort } from 'node:worker_threads';
import { load, store } from '../../native-free/atomics.js';
import { attachBroker, type BrokerHandle } from '../client/broker.js';
import type { Lease } from '../client/lease.js';
import type { Port } from '../client/port.js';
import { type ErrorCode, MillraceError, shown } from '../errors.js';
import type { QueueOptions } from '../options.js';
import type { BoundHandler } from './handle.js';
import { type Handler, LocalWorker } from './worker.js';

/** Words of the fleet's own shared memory: its state, then a block a thread. */
export const FleetWord = { STATE: 0, FIRST: 16, BLOCK: 64 } as const;
/** Runs of one thread that can be found again by row and lease word: more at once are not watched. */
export const RUNS_WATCHED = 28;
export const FleetState = { RUNNING: 0, PAUSED: 1, STOPPING: 2 } as const;
export const SlotWord = {
  OWNER: 0,
  RUNNING: 1,
  COMPLETED: 2,
  FAILED: 3,
  /** Of the threads that stood in this slot before. */
  COMPLETED_BEFORE: 4,
  FAILED_BEFORE: 5,
  /** Row and lease word of each run at hand, two by two; row 0 = none. */
  RUNS: 8,
} as const;

export interface RunnerTask {
  readonly handle: BrokerHandle;
  readonly fleet: SharedArrayBuffer;
  readonly slot: number;
  /** A file URL. */
  readonly module: string;
  /** The queue of a module that exports one handler. */
  readonly queue: string | undefined;
  readonly concurrency: number;
  readonly timeout: number | undefined;
  /** Gets one message when the handlers are loaded. */
  readonly loaded: MessagePort;
}

/** Why a runner ended before it was told to: piscina would strip an error of its code. */
export interface RunnerFailure {
  readonly code: ErrorCode;
  readonly message: string;
}

/** Loads the handler module; rejects with ERR_MILLRACE_HANDLER_NOT_FOUND. */
async function handlersOf(task: RunnerTask): Promise<Handler<never, unknown> | readonly BoundHandler[]> {
  let exported: unknown;
  try {
    exported = ((await import(task.module)) as { default?: unknown }).default;
    // A CommonJS module compiled from one with a default export.
    if (typeof exported === 'object' && exported !== null && 'default' in exported) exported = exported.default;
  } catch (cause) {
    const why = `cannot load the handler module ${task.module}: ${shown(String(cause), 400)}`;
    throw new MillraceError('ERR_MILLRACE_HANDLER_NOT_FOUND', why, { module: task.module }, cause);
  }
  if (task.queue !== undefined && typeof exported === 'function') return exported as Handler<never, unknown>;
  if (task.queue === undefined && Array.isArray(exported)) return exported as readonly BoundHandler[];
  const wanted = task.queue === undefined ? 'an array of handle(definition, handler)' : 'a function';
  throw new MillraceError(
    'ERR_MILLRACE_HANDLER_NOT_FOUND',
    `cannot use the handler module ${task.module}: its default export is ${shown(exported)}, not ${wanted}`,
    { module: task.module },
  );
}

export default async function run(task: RunnerTask): Promise<RunnerFailure | undefined> {
  try {
    await serve(task);
    return undefined;
  } catch (error) {
    if (!(error instanceof MillraceError)) throw error;
    return { code: error.code, message: error.message };
  }
}

async function serve(task: RunnerTask): Promise<void> {
  const words = new Int32Array(task.fleet);
  const block = FleetWord.FIRST + task.slot * FleetWord.BLOCK;
  const handlers = await handlersOf(task);
  const broker = attachBroker(task.handle);
  const { port } = broker;
  store(words, block + SlotWord.OWNER, port.owner);
  const options = { concurrency: task.concurrency, timeout: task.timeout };
  const workers: LocalWorker[] = [];
  if (typeof handlers === 'function') {
    const core = broker.core(task.queue!, undefined);
    workers.push(new LocalWorker(core, handlers, options, true));
  } else {
    for (const { definition, handler } of handlers) {
      const core = broker.core(definition.name, definition.options as QueueOptions<never>);
      workers.push(new LocalWorker(core, handler as Handler<never, unknown>, options, true));
    }
  }
  for (const worker of workers) worker.onRun = (lease, runs) => list(words, block, lease, runs);
  task.loaded.postMessage('loaded');
  task.loaded.close();

  await obey(port, words, block, workers);
  await Promise.all(workers.map((worker) => worker.close({ timeout: 2 ** 31 - 1 })));
  await broker.close();
}

/** Enters a run into the thread's list, or takes it out, for the fleet to see who is still at it. */
function list(words: Int32Array, block: number, lease: Lease, runs: boolean): void {
  const from = block + SlotWord.RUNS;
  for (let at = from; at < from + 2 * RUNS_WATCHED; at += 2) {
    if (runs ? words[at] !== 0 : words[at] !== lease.row || words[at + 1] !== lease.word) continue;
    // The word first: a row that is there has the word that belongs to it.
    if (runs) store(words, at + 1, lease.word);
    store(words, at, runs ? lease.row : 0);
    return;
  }
}

/** Follows the fleet's orders until it is told to stop. The fleet wakes this thread after changing its state. */
function obey(port: Port, words: Int32Array, block: number, workers: readonly LocalWorker[]): Promise<void> {
  let followed: number = FleetState.RUNNING;
  return new Promise((resolve) => {
    port.orders = {
      stirred: () => load(words, FleetWord.STATE) !== followed,
      follow: () => {
        for (const [word, count] of [
          [SlotWord.RUNNING, 'running'],
          [SlotWord.COMPLETED, 'completed'],
          [SlotWord.FAILED, 'failed'],
        ] as const) {
          let sum = 0;
          for (const worker of workers) sum += worker[count];
          words[block + word] = sum;
        }
        const state = load(words, FleetWord.STATE);
        if (state === followed) return;
        followed = state;
        if (state === FleetState.STOPPING) return resolve();
        for (const worker of workers) {
          if (state === FleetState.PAUSED) worker.pause();
          else worker.resume();
        }
      },
    };
    port.attend();
  });
}

export function fileUrl(module: URL | string): string {
  return module instanceof URL ? module.href : pathToFileURL(module).href;
}
