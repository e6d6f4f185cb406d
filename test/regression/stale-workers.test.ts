/**
 * What becomes of a job whose worker lost it, or of a worker whose job was taken away (user reports 7, 9, 13, 15, 17, 25).
 */
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Broker, RunningJob } from 'millrace';
import { expect, it } from 'vitest';
import { Question } from '../../src/schedule/questions.js';
import { applied, opened, temporaryDirectory, timed, until } from '../brokers.js';

const AT_ONCE = { base: 0 };

/** What the table says of itself: every live row is ready, delayed or leased. */
async function audit(broker: Broker): Promise<unknown> {
  const { bytes } = await broker.port.ask(Question.AUDIT, 0, 0);
  return JSON.parse(Buffer.from(bytes!).toString());
}

it('7: an expired run goes on while the next one starts: its signal aborts, and its result counts for nothing', async () => {
  const { broker, clock } = await timed();
  const queue = broker.queue<string, string>('jobs', { visibility: 1000, backoff: AT_ONCE });
  const runs: { job: RunningJob; end: (result: string) => void }[] = [];
  queue.process((_, job) => new Promise<string>((end) => runs.push({ job, end })), { concurrency: 2 });
  const job = await queue.enqueue('slow');
  await until('the first run starts', () => runs.length === 1);
  // Asked for while the lease is held: from here on the worker has to be told.
  const { signal } = runs[0]!.job;
  expect(signal.aborted).toBe(false);
  clock.advance(1000);
  await until('the second run starts', () => runs.length === 2);
  await until('the first is told', () => signal.aborted);
  expect(runs[1]!.job.attempt).toBe(2);
  expect(runs[1]!.job.signal.aborted).toBe(false);
  runs[0]!.end('first');
  await applied(broker);
  expect(queue.counts()).toMatchObject({ leased: 1, done: 0 });
  runs[1]!.end('second');
  expect(await job.result()).toBe('second');
});

it('9: a store that remembers the highest token of a job refuses what an older run writes', async () => {
  const { broker, clock } = await timed();
  const queue = broker.queue('jobs', { visibility: 1000, backoff: AT_ONCE });
  const { id } = await queue.enqueue('charge the card');
  const highest = new Map<number, number>();
  const write = (job: number, token: number): boolean => {
    if (token < (highest.get(job) ?? 0)) return false;
    highest.set(job, token);
    return true;
  };
  const [first] = await queue.claim({ wait: 5000 });
  clock.advance(1000);
  const [second] = await queue.claim({ wait: 5000 });
  expect([write(id, second!.token), write(id, first!.token), write(id, second!.token)]).toEqual([true, false, true]);
});

it('13, 18: a job that ran when the process was killed is ready at once, whatever its visibility', async () => {
  const dir = temporaryDirectory();
  const script = join(temporaryDirectory(), 'work.mjs');
  writeFileSync(
    script,
    `import { open } from ${JSON.stringify(import.meta.resolve('millrace'))};
     const broker = await open(${JSON.stringify(dir)});
     const queue = broker.queue('jobs', { visibility: 4 * 3_600_000, attempts: 1 });
     await queue.enqueue('long');
     queue.process(() => process.kill(process.pid, 'SIGKILL'));
     setInterval(() => {}, 1000);`,
  );
  expect(spawnSync(process.execPath, [script], { timeout: 30_000 }).signal).toBe('SIGKILL');
  const queue = (await opened({}, dir)).queue('jobs');
  // The charge for the crash is a record of its own, which is durable before the job is offered again.
  const [lease] = await queue.claim({ wait: 10_000 });
  expect(lease).toMatchObject({ payload: 'long', attempt: 1, crashes: 1 });
  expect(lease!.ack()).toBe(true);
});

it('15, 17: one expiry of five attempts leads to the second after its backoff, and never to a job that is nowhere', async () => {
  const { broker, clock } = await timed();
  const queue = broker.queue('jobs', {
    visibility: 1000,
    attempts: 5,
    backoff: { base: 5000, jitter: 'none' },
  });
  const { id } = await queue.enqueue('slow');
  const [lease] = await queue.claim({ wait: 5000 });
  expect(await audit(broker)).toEqual([]);
  clock.advance(1000);
  await until('it is delayed', () => queue.counts().delayed === 1);
  expect(lease!.held).toBe(false);
  expect(await queue.get(id)).toMatchObject({ state: 'delayed', attempt: 1 });
  expect(await audit(broker)).toEqual([]);
  clock.advance(4999);
  await applied(broker);
  expect(await queue.claim()).toEqual([]);
  clock.advance(1);
  expect(await queue.claim({ wait: 5000 })).toMatchObject([{ id, attempt: 2 }]);
  expect(queue.counts()).toEqual({ ready: 0, delayed: 0, leased: 1, dead: 0, done: 0 });
  expect(await audit(broker)).toEqual([]);
});

it('25: of five jobs of which one runs, what has not started can be cancelled, and that one completes', async () => {
  const broker = await opened();
  const queue = broker.queue<number, string>('jobs');
  let end: (() => void) | undefined;
  queue.process((n) => new Promise<string>((resolve) => (end = () => resolve(`ran ${n}`))), { concurrency: 1 });
  const jobs = await queue.enqueueMany([1, 2, 3, 4, 5]);
  await until('the first runs', () => end !== undefined);
  const states = await Promise.all(jobs.map(async ({ id }) => (await queue.get(id))!.state));
  const waiting = jobs.filter((_, i) => states[i] !== 'leased');
  expect(waiting).toHaveLength(4);
  expect(await Promise.all(waiting.map(({ id }) => queue.cancel(id)))).toEqual([true, true, true, true]);
  const [running] = jobs.filter((job) => !waiting.includes(job));
  end!();
  expect(await running!.result()).toBe('ran 1');
  expect(queue.counts()).toEqual({ ready: 0, delayed: 0, leased: 0, dead: 0, done: 1 });
  expect(broker.stats()).toMatchObject({ cancelled: 4 });
});
