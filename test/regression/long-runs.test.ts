/**
 * Elsewhere a job that runs for long, or keeps a processor busy, loses its lease and runs twice (user reports 1, 2, 4, 5
 * and 8): whoever should renew it does not get round to it. Here a run in a thread holds its lease as long as the thread
 * lives, and who claims by hand extends by one store.
 */
import { availableParallelism } from 'node:os';
import type { QueueOptions, Worker } from 'millrace';
import { expect, it } from 'vitest';
import { applied, opened, soon, temporaryDirectory, timed, until } from '../brokers.js';

type Spin = { readonly do: 'spin'; readonly ms: number };
const handlers = new URL('../fleet/handlers/kinds.mjs', import.meta.url);
const VISIBILITY_MS = 20;
const OPTIONS: QueueOptions<Spin> = { visibility: VISIBILITY_MS, backoff: { base: 0 } };
const LONG: Spin = { do: 'spin', ms: 10 * VISIBILITY_MS };

async function scene(threads: number) {
  const dir = temporaryDirectory();
  const broker = await opened({}, dir);
  const queue = broker.queue<Spin, number>('jobs', OPTIONS);
  const worker: Worker = queue.process(handlers, { threads });
  await soon('the handlers are loaded', worker.ready);
  return { dir, broker, queue, worker };
}

function counted(worker: Worker): number {
  const { completed, failed } = worker.stats();
  return completed + failed;
}

it('1, 4: threads that spin for ten visibility timeouts, as many as there are processors', async () => {
  const threads = availableParallelism();
  const { broker, queue, worker } = await scene(threads);
  const jobs = await queue.enqueueMany(Array.from({ length: 2 * threads }, () => LONG));
  await soon('they end', Promise.all(jobs.map((job) => job.result())));
  // A thread counts its run after the ack has been told.
  await until('all are counted', () => counted(worker) >= 2 * threads);
  expect(worker.stats()).toMatchObject({ completed: 2 * threads, failed: 0 });
  expect(broker.stats()).toMatchObject({ expired: 0, retried: 0 });
});

it('2: a main thread that is blocked while a job runs in another', async () => {
  const { broker, queue, worker } = await scene(2);
  const job = await queue.enqueue(LONG);
  for (const until = performance.now() + 2 * LONG.ms; performance.now() < until; );
  await soon('it ends', job.result());
  await until('it is counted', () => counted(worker) >= 1);
  expect(worker.stats()).toMatchObject({ completed: 1, failed: 0 });
  expect(broker.stats()).toMatchObject({ expired: 0, retried: 0 });
});

it('5: a close while a job runs waits for it, and it is not run again', async () => {
  const { dir, broker, queue } = await scene(1);
  await queue.enqueue(LONG);
  while (queue.counts().leased === 0) await applied(broker);
  await soon('it closes', broker.close());
  const after = (await opened({}, dir)).queue('jobs');
  expect(after.counts()).toEqual({ ready: 0, delayed: 0, leased: 0, dead: 0, done: 1 });
});

it('8: a lease that is extended ten times over is one attempt, and its old token is worth nothing afterwards', async () => {
  const { broker, clock } = await timed();
  const queue = broker.queue('jobs', { visibility: 2000, backoff: { base: 0 } });
  await queue.enqueue('nobody knows how long');
  const [lease] = await queue.claim({ wait: 5000 });
  for (let seconds = 0; seconds < 20; seconds++) {
    clock.advance(1000);
    expect(lease!.extend(2000)).toBe(true);
    await applied(broker);
  }
  expect(broker.stats().expired).toBe(0);
  clock.advance(2000);
  const [next] = await queue.claim({ wait: 5000 });
  expect([next!.attempt, lease!.extend(2000), lease!.ack()]).toEqual([2, false, false]);
  expect(next!.ack()).toBe(true);
});
