/** Names queues, one after another, each at the moment when all threads are about to: for races for one name. */
import { parentPort, workerData } from 'node:worker_threads';
import { add, load, notify, wait } from '../../native-free/atomics.js';
import { Shared, type SharedBuffers } from '../../native-free/layout.js';
import { queueNamed } from '../../native-free/names.js';

export interface NamesThread {
  readonly buffers: SharedBuffers;
  readonly names: readonly string[];
  /** How many threads are at the line. */
  readonly line: SharedArrayBuffer;
  readonly threads: number;
}

const SPINS = 5000;
const { buffers, names, line, threads } = workerData as NamesThread;
const shared = new Shared(buffers);
const words = new Int32Array(line);
const ids = new Int32Array(names.length);

for (const [i, name] of names.entries()) {
  // All come to the line before any goes on; the last one to come lets the others go.
  const all = (i + 1) * threads;
  let here = add(words, 0, 1) + 1;
  if (here === all) notify(words, 0);
  for (let spins = 0; here < all; here = load(words, 0)) if (++spins > SPINS) wait(words, 0, here, Infinity);
  ids[i] = queueNamed(shared, name);
}
parentPort!.postMessage(ids);
