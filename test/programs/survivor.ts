/**
 * `survivor DIR`: a process that is going to be killed. It starts 4 threads that enqueue and 4 that consume, waits for
 * its turn, opens the directory, checks what its predecessors were told, and then works until it dies. Its threads
 * write what they are told straight into pipes: ids that are accepted into 3, ids that are done for good into 4.
 */
import { writeSync } from 'node:fs';
import { isMainThread, parentPort, Worker } from 'node:worker_threads';
import { attach, type Broker, type BrokerHandle, defineQueue, open } from 'millrace';

const TOLD_ACCEPTED = 3;
const TOLD_DONE = 4;
const RETENTION_MS = 3_600_000;

const survivors = defineQueue<number>('survivors', {
  resultRetention: RETENTION_MS,
  backoff: { base: 0 },
  attempts: 3,
  crashes: 255,
});

/** What the parent sends: the directory is free, and what is to be checked in it. */
export interface Turn {
  readonly accepted: readonly number[];
  readonly done: readonly number[];
}
export interface Checked {
  readonly openMs: number;
  /** Ids that were accepted and are not there, and ids that were done and are not. */
  readonly lost: readonly number[];
  readonly undone: readonly number[];
  readonly recovered: number;
}

function tell(pipe: number, ids: readonly number[]): void {
  // Less than a pipe takes at once: a kill leaves all of it or nothing.
  for (let from = 0; from < ids.length; from += 256) {
    const some = Float64Array.from(ids.slice(from, from + 256));
    writeSync(pipe, new Uint8Array(some.buffer));
  }
}

async function produce(broker: Broker): Promise<void> {
  const queue = broker.queue(survivors);
  for (let n = 0; ; ) {
    // Alone, several at once, a batch, with a key, later: every way in.
    const jobs = await Promise.all([
      queue.enqueue(n++),
      queue.enqueue(n++, { priority: n % 3 }),
      queue.enqueue(n++, { delay: n % 5 }),
      queue.enqueue(n++, { key: `k${n % 50}` }),
      ...Array.from({ length: 4 }, () => queue.enqueue(n++)),
    ]);
    const many = await queue.enqueueMany([n++, n++, n++, n++]);
    tell(
      TOLD_ACCEPTED,
      [...jobs, ...many].map(({ id }) => id),
    );
  }
}

async function consume(broker: Broker): Promise<void> {
  const queue = broker.queue(survivors);
  for (;;) {
    for (const lease of await queue.claim({ max: 8, wait: 1000 })) {
      switch (lease.payload % 8) {
        case 0:
          lease.fail(new Error('once more'));
          break;
        case 1:
          lease.fail(new Error('for good'), { dead: true });
          break;
        case 2:
          // Held until the process dies.
          break;
        case 3:
          lease.giveBack();
          break;
        default:
          if (await lease.ackDurably('done')) tell(TOLD_DONE, [lease.id]);
      }
    }
  }
}

async function check(broker: Broker, { accepted, done }: Turn): Promise<Omit<Checked, 'openMs'>> {
  const queue = broker.queue(survivors);
  const states = await Promise.all(accepted.map(async (id) => (await queue.get(id))?.state));
  const ends = await Promise.all(done.map(async (id) => (await queue.get(id))?.state));
  return {
    lost: accepted.filter((_, i) => states[i] === undefined),
    undone: done.filter((_, i) => ends[i] !== 'done'),
    recovered: broker.stats().recovered,
  };
}

if (isMainThread) {
  const workers = Array.from({ length: 8 }, () => new Worker(new URL(import.meta.url)));
  process.once('message', async (turn: Turn) => {
    const from = performance.now();
    const broker = await open(process.argv[2]!, { memoryBytes: 256 << 20, jobsMax: 1_000_000 });
    const openMs = performance.now() - from;
    const checked: Checked = { openMs, ...(await check(broker, turn)) };
    process.send!(checked);
    for (const [i, worker] of workers.entries()) {
      worker.postMessage({ handle: broker.handle, role: i < 4 ? 'produce' : 'consume' });
    }
  });
} else if (parentPort !== null) {
  parentPort.once('message', async ({ handle, role }: { handle: BrokerHandle; role: string }) => {
    const broker = attach(handle);
    await (role === 'produce' ? produce(broker) : consume(broker));
  });
}
