/**
 * A thread that enqueues, or consumes, until somebody ends it (test/crash/threads). What it was told it writes into
 * shared memory before it goes on: ids that were accepted, ids whose ack is durable, how far it is.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { attach, type BrokerHandle } from 'millrace';

export interface Mortal {
  readonly handle: BrokerHandle;
  readonly role: 'produce' | 'consume';
  /** Ids, as many as `Count` says. */
  readonly accepted: Float64Array;
  readonly acked: Float64Array;
  readonly counts: Int32Array;
}
export const Count = { ACCEPTED: 0, ACKED: 1, PROGRESS: 2 } as const;

const mortal = workerData as Mortal | undefined;

/** An id is written before it counts: a thread that dies in between only leaves a place empty. */
function note(ids: Float64Array, counts: Int32Array, count: number, id: number): void {
  const at = Atomics.add(counts, count, 1);
  if (at < ids.length) ids[at] = id;
}

async function run({ handle, role, accepted, acked, counts }: Mortal): Promise<never> {
  const queue = attach(handle).queue<number>('jobs', { backoff: { base: 0 }, attempts: 1000, crashes: 255 });
  for (let n = 0; ; ) {
    if (role === 'produce') {
      const jobs = await Promise.all([
        queue.enqueue(n++),
        queue.enqueue(n++, { priority: n % 4 }),
        queue.enqueue(n++, { key: `k${n % 20}` }),
        ...Array.from({ length: 4 }, () => queue.enqueue(n++)),
      ]);
      for (const { id } of [...jobs, ...(await queue.enqueueMany([n++, n++, n++]))]) {
        note(accepted, counts, Count.ACCEPTED, id);
      }
    } else {
      for (const lease of await queue.claim({ max: 20, wait: 1000 })) {
        if (lease.payload % 7 === 0) lease.giveBack();
        else if (lease.payload % 11 === 0) lease.fail(new Error('once more'));
        else if (lease.payload % 3 === 0) lease.ack();
        else if (await lease.ackDurably()) note(acked, counts, Count.ACKED, lease.id);
      }
    }
    Atomics.add(counts, Count.PROGRESS, 1);
  }
}

if (mortal !== undefined && parentPort !== null) {
  parentPort.on('message', (how: 'exit' | 'throw') => {
    if (how === 'exit') process.exit(3);
    throw new Error('ended by a throw');
  });
  void run(mortal);
}
