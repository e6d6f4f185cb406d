/** Among the ready jobs of one queue: lower priority value first, then run-at, then id. */
import fc from 'fast-check';
import type { Queue } from 'millrace';
import { expect, it } from 'vitest';
import { applied, opened, taken, temporaryDirectory, timed, until } from '../brokers.js';

interface Ordered {
  readonly priority: number;
  readonly runAt: number;
  readonly id: number;
}

function inOrder(jobs: readonly Ordered[]): Ordered[] {
  return [...jobs].sort((a, b) => a.priority - b.priority || a.runAt - b.runAt || a.id - b.id);
}

/** Claims one after the other, each acked at once, until `count` are through: their payloads. */
async function drained<Payload>(queue: Queue<Payload>, count: number): Promise<Payload[]> {
  const payloads: Payload[] = [];
  await until('every job has come', async () => {
    for (const lease of await queue.claim()) {
      payloads.push(lease.payload);
      lease.ack();
    }
    return payloads.length === count;
  });
  return payloads;
}

it('holds for jobs that were all there before the first claim', async () => {
  const { broker, clock } = await timed();
  const queue = broker.queue<Ordered>('jobs');
  const made: Ordered[] = [];
  const start = clock.wallMs();
  for (let i = 0; i < 300; i++) {
    const priority = [0, 5, -5, 2 ** 31 - 1, -(2 ** 31), 1][(i * 7) % 6]!;
    const runAt = start - ((i * 13) % 10);
    const { id } = await queue.enqueue({ priority, runAt, id: i }, { priority, runAt });
    made.push({ priority, runAt, id });
  }
  const order = inOrder(made).map(({ id }) => made.findIndex((job) => job.id === id));
  expect((await drained(queue, 300)).map(({ id }) => id)).toEqual(order);
});

it('holds for jobs that become due at different times, and again after a restart', async () => {
  const { broker, clock, dir } = await timed();
  const queue = broker.queue<Ordered>('jobs');
  const made: Ordered[] = [];
  for (let i = 0; i < 200; i++) {
    const [priority, delay] = [(i * 5) % 3, 1 + ((i * 37) % 50)];
    const { id } = await queue.enqueue({ priority, runAt: clock.wallMs() + delay, id: i }, { priority, delay });
    made.push({ priority, runAt: clock.wallMs() + delay, id });
  }
  const order = inOrder(made).map(({ id }) => made.findIndex((job) => job.id === id));
  await broker.close();
  clock.advance(1000);
  const again = await opened({ clock }, dir);
  expect((await drained(again.queue<Ordered>('jobs'), 200)).map(({ id }) => id)).toEqual(order);
});

it('lets a job of a lower priority value pass those that were ready before it', async () => {
  const broker = await opened();
  const queue = broker.queue<string>('jobs');
  // The queue has a consumer, so that what is ready is offered to it at once.
  expect(await queue.claim()).toEqual([]);
  await queue.enqueueMany(['a', 'b', 'c']);
  await applied(broker);
  await queue.enqueue('urgent', { priority: -1 });
  await queue.enqueue('more urgent', { priority: -2 });
  await queue.enqueue('can wait', { priority: 1 });
  await applied(broker);
  expect(await drained(queue, 6)).toEqual(['more urgent', 'urgent', 'a', 'b', 'c', 'can wait']);
});

it('lets a job with an earlier run-at pass those that were ready before it', async () => {
  const { broker, clock } = await timed();
  const queue = broker.queue<string>('jobs');
  expect(await queue.claim()).toEqual([]);
  await queue.enqueueMany(['a', 'b']);
  await applied(broker);
  await queue.enqueue('older', { runAt: clock.wallMs() - 60_000 });
  await applied(broker);
  expect(await drained(queue, 3)).toEqual(['older', 'a', 'b']);
});

it('gives a job that comes back its place by its new run-at', async () => {
  const { broker, clock } = await timed();
  const queue = broker.queue<string>('jobs', { backoff: { base: 0 } });
  await queue.enqueueMany(['a', 'b', 'c']);
  const [a] = await queue.claim();
  clock.advance(1);
  a!.fail('x');
  expect(await drained(queue, 3)).toEqual(['b', 'c', 'a']);
});

it('is the order of a claim of many, and that of ids in a batch', async () => {
  const broker = await opened();
  const queue = broker.queue<number>('jobs');
  const jobs = await queue.enqueueMany(Array.from({ length: 3000 }, (_, i) => i));
  const leases = await taken(queue, 3000);
  expect(leases.map(({ payload }) => payload)).toEqual(jobs.map((_, i) => i));
});

it('holds whatever comes and goes between', async () => {
  const broker = await opened();
  let round = 0;
  type Step = { readonly priority: number } | 'claim' | 'fail';
  const step: fc.Arbitrary<Step> = fc.oneof(
    { weight: 3, arbitrary: fc.record({ priority: fc.integer({ min: -2, max: 2 }) }) },
    { weight: 2, arbitrary: fc.constant<Step>('claim') },
    { weight: 1, arbitrary: fc.constant<Step>('fail') },
  );
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 25 }), async (steps) => {
      const queue = broker.queue<number>(`round ${round++}`, { backoff: { base: 0 }, attempts: 1000 });
      let waiting: { id: number; priority: number; turn: number }[] = [];
      let turn = 0;
      for (const what of steps) {
        if (typeof what === 'object') {
          const { id } = await queue.enqueue(turn, { priority: what.priority, runAt: ++turn });
          waiting.push({ id, priority: what.priority, turn });
          continue;
        }
        await applied(broker);
        const [lease] = await queue.claim();
        waiting.sort((a, b) => a.priority - b.priority || a.turn - b.turn || a.id - b.id);
        expect(lease?.id).toBe(waiting[0]?.id);
        waiting = waiting.slice(1);
        if (lease === undefined) continue;
        if (what === 'claim') lease.ack();
        else lease.end(new Error('dead'), 'rejected', true);
      }
    }),
    { numRuns: 40 },
  );
});

it('is kept by each queue for itself', async () => {
  const dir = temporaryDirectory();
  const broker = await opened({}, dir);
  const [one, two] = [broker.queue<number>('one', { priority: 3 }), broker.queue<number>('two')];
  await one.enqueue(1);
  await two.enqueue(2, { priority: 9 });
  await one.enqueue(3, { priority: 2 });
  expect([await drained(one, 2), await drained(two, 1)]).toEqual([[3, 1], [2]]);
});
