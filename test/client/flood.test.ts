/** Many jobs from many threads to many threads: each comes once. */
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { open } from 'millrace';
import { expect, it, onTestFinished } from 'vitest';
import { temporaryDirectory } from '../brokers.js';
import { programPath } from '../children.js';
import type { Flood } from '../programs/flood.js';

async function flooded(producers: number, consumers: number, jobs: number, options = {}): Promise<void> {
  const broker = await open(temporaryDirectory(), options);
  onTestFinished(() => broker.close({ timeout: 1000 }));
  const seen = new Uint8Array(new SharedArrayBuffer(jobs));
  const counts = new Int32Array(new SharedArrayBuffer(4));
  const ended: Promise<number>[] = [];
  const start = (flood: Omit<Flood, 'handle' | 'seen' | 'counts'>): void => {
    const workerData: Flood = { handle: broker.handle, seen, counts, ...flood };
    const worker = new Worker(programPath('flood'), { workerData });
    ended.push(once(worker, 'exit').then(([code]) => code as number));
    onTestFinished(async () => void (await worker.terminate()));
  };
  const share = Math.ceil(jobs / producers);
  for (let i = 0; i < producers; i++) {
    start({ role: 'produce', from: i * share, to: Math.min(jobs, (i + 1) * share) });
  }
  for (let i = 0; i < consumers; i++) start({ role: 'consume', from: 0, to: jobs });
  expect(await Promise.all(ended)).toEqual(new Array(producers + consumers).fill(0));
  expect(counts[0]).toBe(jobs);
  expect(seen.every((count) => count === 1)).toBe(true);
  await broker.queue('flood').get(0);
  expect(broker.queue('flood').counts()).toEqual({ ready: 0, delayed: 0, leased: 0, dead: 0, done: jobs });
  expect(broker.stats()).toMatchObject({ enqueued: jobs, done: jobs, retried: 0, expired: 0, jobs: 0 });
}

it('250,000 jobs from each of 4 threads come once each to 2 that consume', async () => {
  await flooded(4, 2, 1_000_000);
}, 120_000);

it('jobs that find the ring, the table and the arena full wait, and come once each', async () => {
  await flooded(3, 2, 60_000, { ringSlots: 1024, payloadBytesMax: 1024, jobsMax: 500, memoryBytes: 1 << 20 });
}, 60_000);
