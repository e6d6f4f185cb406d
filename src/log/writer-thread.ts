/**
 * The entry of the log writer's thread. The opener starts it early, so that it comes up while the scheduler replays,
 * and posts one `StartWriter` when that is done; the thread answers with one `WriterReply` and then serves until the
 * broker's state is CLOSED. After that it exits by itself.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { runAgent } from '../../native-free/agent.js';
import { Shared, type SharedBuffers, Word } from '../../native-free/layout.js';
import { clockOver } from '../clock.js';
import { MillraceError } from '../errors.js';
import type { Recovery } from './recovery.js';
import { type StorageModule, storageOf } from './storage.js';
import { LogWriter } from './writer.js';

export interface WriterThreadData {
  readonly buffers: SharedBuffers;
  readonly dir: string;
  readonly options: {
    readonly segmentBytes?: number;
    readonly batchRecordsMax?: number;
    readonly batchBytesMax?: number;
    readonly lingerMs?: number;
    /** A manual clock's memory. */
    readonly clock?: SharedArrayBuffer;
    readonly storage?: StorageModule;
  };
}

export interface StartWriter {
  readonly recovery: Recovery;
  readonly idBase: number;
  readonly epoch: number;
}

export type WriterReply =
  | { readonly type: 'serving' }
  | {
      readonly type: 'failed';
      readonly code: string;
      readonly message: string;
      readonly facts: Readonly<Record<string, unknown>>;
    };

parentPort!.once('message', async ({ recovery, idBase, epoch }: StartWriter) => {
  const { buffers, dir, options } = workerData as WriterThreadData;
  const shared = new Shared(buffers);
  const clock = clockOver(options.clock);
  const { segmentBytes, batchRecordsMax, batchBytesMax, lingerMs } = options;
  try {
    const writer = new LogWriter({
      shared,
      storage: await storageOf(options.storage),
      dir,
      recovery,
      idBase,
      epoch,
      segmentBytes,
      batchRecordsMax,
      batchBytesMax,
      lingerMs,
      now: () => clock.monotonicMs(),
      wallMs: clock.wallMs(),
    });
    writer.start();
    parentPort!.postMessage({ type: 'serving' } satisfies WriterReply);
    runAgent(writer, shared.control, Word.WRITER_ASLEEP);
  } catch (error) {
    parentPort!.postMessage(failure(error));
  }
});

function failure(error: unknown): WriterReply {
  const message = error instanceof Error ? error.message : String(error);
  if (!(error instanceof MillraceError)) return { type: 'failed', code: 'ERR_MILLRACE_IO', message, facts: {} };
  const { errno, file, dir } = error;
  return { type: 'failed', code: error.code, message, facts: { errno, file, dir } };
}
