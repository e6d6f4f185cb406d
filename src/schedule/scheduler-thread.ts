/**
 * The entry of the scheduler's thread. It replays the log first and posts what it found; the opener answers by
 * serving. Then it runs until the broker closes, and exits by itself.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { runAgent } from '../../native-free/agent.js';
import { Arena } from '../../native-free/arena.js';
import { Cell, SEGMENTS_KEPT, Shared, type SharedBuffers, Word } from '../../native-free/layout.js';
import { clockOver } from '../clock.js';
import { MillraceError } from '../errors.js';
import { useChecksum } from '../log/checksum.js';
import { readMarks } from '../log/marks.js';
import { type Recovery, recover } from '../log/recovery.js';
import { type Storage, type StorageModule, storageOf } from '../log/storage.js';
import { Jobs } from './jobs.js';
import { Outcomes } from './outcomes.js';
import { Replies } from './replies.js';
import { Scheduler } from './scheduler.js';

export interface SchedulerThreadData {
  readonly buffers: SharedBuffers;
  readonly dir: string;
  readonly options: {
    readonly nativeFree: boolean;
    readonly segmentBytes: number;
    readonly memoryBytes: number;
    readonly clock?: SharedArrayBuffer;
    readonly storage?: StorageModule;
  };
}

export type SchedulerReply =
  | { readonly type: 'recovered'; readonly recovery: Recovery }
  | {
      readonly type: 'failed';
      readonly code: string;
      readonly message: string;
      readonly facts: Readonly<Record<string, unknown>>;
    };

const { buffers, dir, options } = workerData as SchedulerThreadData;

function start(storage: Storage): Scheduler {
  useChecksum({ nativeFree: options.nativeFree });
  const shared = new Shared(buffers);
  const clock = clockOver(options.clock);
  const arena = new Arena(buffers.arena, 64, buffers.arena.byteLength);
  const replies = new Replies(shared, arena);
  const monotonicMs = Math.floor(clock.monotonicMs() - shared.cells[Cell.MONOTONIC_ZERO_MS]!);
  const jobs = new Jobs(
    shared,
    arena,
    new Outcomes(replies),
    { storage, dir, memoryBytes: options.memoryBytes },
    Math.floor(clock.wallMs()),
    monotonicMs,
  );
  const recovery = recover(storage, dir, (memory, offset, position) => jobs.apply(memory, offset, position), {
    segment: ({ number, base }) => {
      shared.segmentBases[number % SEGMENTS_KEPT] = base;
      shared.cells[Cell.SEGMENT_NEWEST] = number;
    },
  });
  shared.cells[Cell.SEGMENT_FIRST] = recovery.segments[0]?.number ?? 1;
  shared.cells[Cell.LOG_START] = recovery.segments[0]?.base ?? 0;
  // A crash is charged to what was running, if the log does not say that it ended.
  const crashed: number[] = [];
  readMarks(storage, dir, recovery.epoch, ({ id, attempts, crashes }) => {
    const row = jobs.find(id);
    if (row === 0 || !jobs.isLive(row)) return;
    if (jobs.table.attempts(row) === attempts && jobs.table.crashes(row) === crashes) crashed.push(row);
  });
  jobs.serve();
  shared.cells[Cell.RECOVERED] = recovery.records;
  parentPort!.postMessage({ type: 'recovered', recovery } satisfies SchedulerReply);
  return new Scheduler(shared, jobs, replies, clock, { storage, dir, segmentBytes: options.segmentBytes, crashed });
}

try {
  const scheduler = start(await storageOf(options.storage));
  runAgent(scheduler, new Shared(buffers).control, Word.SCHEDULER_ASLEEP);
} catch (error) {
  const message = error instanceof Error ? error.message : String(error);
  const facts: Record<string, unknown> = {};
  if (error instanceof MillraceError) {
    for (const [name, value] of Object.entries(error)) if (typeof value !== 'object') facts[name] = value;
  }
  const code = error instanceof MillraceError ? error.code : 'ERR_MILLRACE_IO';
  parentPort!.postMessage({ type: 'failed', code, message, facts } satisfies SchedulerReply);
  if (!(error instanceof MillraceError)) throw error;
}
