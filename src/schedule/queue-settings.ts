/**
 * What a queue is set to, in shared memory: so that a thread that names a queue without options means the same queue as
 * the thread that gave them. Written by whoever gives options (clients) and by replay; read by every client.
 *
 * 1. The words are written before VERSION is bumped; a reader that meets a new version reads all of them again. One that
 *    reads while somebody writes may see a mixture, for as long as it takes to write: the next look mends it.
 * 2. VERSION 0: nobody has given options, the defaults hold.
 */
import { add, load, store } from '../../native-free/atomics.js';
import { QueueWord, type Shared } from '../../native-free/layout.js';

export const CODECS = ['json', 'bytes', 'own'] as const;

export interface SharedSettings {
  readonly attempts: number;
  readonly crashes: number;
  readonly level: number;
  readonly jitter: 'full' | 'none';
  readonly codec: (typeof CODECS)[number];
  readonly visibilityMs: number;
  readonly priority: number;
  readonly base: number;
  readonly max: number;
  readonly resultRetentionMs: number;
}

/** `block` is the queue's first word. */
export function shareSettings(shared: Shared, block: number, settings: SharedSettings): void {
  const { queues, queueCells } = shared;
  const { attempts, crashes, level, jitter, codec } = settings;
  const bits = level | (CODECS.indexOf(codec) << 2) | (jitter === 'none' ? 16 : 0);
  queueCells[(block + QueueWord.BASE) >>> 1] = settings.base;
  queueCells[(block + QueueWord.MAX) >>> 1] = settings.max;
  queueCells[(block + QueueWord.RETENTION) >>> 1] = settings.resultRetentionMs;
  store(queues, block + QueueWord.VISIBILITY, settings.visibilityMs);
  store(queues, block + QueueWord.PRIORITY, settings.priority);
  store(queues, block + QueueWord.LIMITS, attempts | (crashes << 16) | (bits << 24));
  add(queues, block + QueueWord.VERSION, 1);
}

export function sharedSettings(shared: Shared, block: number): SharedSettings {
  const { queues, queueCells } = shared;
  const limits = load(queues, block + QueueWord.LIMITS);
  const bits = limits >>> 24;
  return {
    attempts: limits & 0xffff,
    crashes: (limits >>> 16) & 0xff,
    level: bits & 3,
    codec: CODECS[(bits >>> 2) & 3] ?? 'json',
    jitter: (bits & 16) !== 0 ? 'none' : 'full',
    visibilityMs: load(queues, block + QueueWord.VISIBILITY),
    priority: load(queues, block + QueueWord.PRIORITY),
    base: queueCells[(block + QueueWord.BASE) >>> 1]!,
    max: queueCells[(block + QueueWord.MAX) >>> 1]!,
    resultRetentionMs: queueCells[(block + QueueWord.RETENTION) >>> 1]!,
  };
}
