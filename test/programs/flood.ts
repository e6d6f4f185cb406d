/** A thread of the flood (test/client/flood): it enqueues its share, or consumes until all have come. */
import { parentPort, workerData } from 'node:worker_threads';
import { attach, type BrokerHandle, defineQueue } from 'millrace';

const flood = defineQueue<Uint8Array>('flood', { codec: 'bytes', visibility: 600_000 });
const PAYLOAD_BYTES = 64;

export interface Flood {
  readonly handle: BrokerHandle;
  readonly role: 'produce' | 'consume';
  /** Producers: the numbers [from, to) are this thread's. */
  readonly from: number;
  readonly to: number;
  /** How often each number has come. */
  readonly seen: Uint8Array;
  /** [0]: how many have come. */
  readonly counts: Int32Array;
}

const AT_ONCE = 2500;

async function produce({ handle, from, to }: Flood): Promise<void> {
  const queue = attach(handle).queue(flood);
  for (let at = from; at < to; ) {
    const waiting: Promise<unknown>[] = [];
    for (const end = Math.min(to, at + AT_ONCE); at < end; at++) {
      const payload = new Uint8Array(PAYLOAD_BYTES);
      new DataView(payload.buffer).setUint32(0, at);
      waiting.push(queue.enqueue(payload));
    }
    await Promise.all(waiting);
  }
}

async function consume({ handle, to, seen, counts }: Flood): Promise<void> {
  const queue = attach(handle).queue(flood);
  while (Atomics.load(counts, 0) < to) {
    for (const lease of await queue.claim({ max: 1000, wait: 500 })) {
      const { buffer, byteOffset, length } = lease.payload;
      if (length !== PAYLOAD_BYTES) throw new Error(`a payload of ${length} bytes`);
      const number = new DataView(buffer, byteOffset).getUint32(0);
      if (!lease.ack()) continue;
      Atomics.add(seen, number, 1);
      Atomics.add(counts, 0, 1);
    }
  }
}

const given = workerData as Flood | undefined;
if (parentPort !== null && given !== undefined) {
  if (given.role === 'produce') await produce(given);
  else await consume(given);
}
