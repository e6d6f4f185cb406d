/** A queue is set to the same on every thread: what one gives holds for those that name the queue alone. */
import { expect, it } from 'vitest';
import { applied, failureOf, opened, temporaryDirectory, timed, until } from '../brokers.js';
import { attached } from '../threads.js';

const OPTIONS = {
  attempts: 2,
  crashes: 7,
  backoff: { base: 500, max: 700, jitter: 'none' },
  visibility: 1234,
  resultRetention: 60_000,
  priority: -3,
  durability: 'memory',
} as const;

it('a thread that names a queue means the queue that another one set', async () => {
  const { broker, clock } = await timed();
  const queue = broker.queue<string>('jobs', OPTIONS);
  // At once: nothing has been written of it yet.
  const thread = await attached(broker);
  const { id } = await thread.enqueue('jobs', 'theirs');
  const { flushes } = broker.stats();
  await thread.enqueue('jobs', 'more', { priority: 5 });
  expect(broker.stats().flushes, "durability: 'memory'").toBe(flushes);
  expect(await queue.get(id)).toMatchObject({ priority: -3 });
  const [first] = await thread.claim('jobs', { wait: 5000 });
  expect(first).toMatchObject({ id, payload: 'theirs' });
  await thread.tell('fail', first, 'once');
  expect(await queue.get(id)).toMatchObject({ state: 'delayed', runAt: clock.wallMs() + 500 });
  const [other] = await thread.claim('jobs', { wait: 5000 });
  clock.advance(500);
  const [again] = await thread.claim('jobs', { wait: 5000 });
  expect(again).toMatchObject({ id, attempt: 2 });
  clock.advance(1234 - 500);
  await until('the first of the two leases is over', () => broker.stats().expired === 1);
  expect(await thread.tell('ack', other)).toBe(false);
  await thread.tell('fail', again, 'twice');
  await applied(broker);
  expect(await queue.get(id)).toMatchObject({ state: 'dead', reason: 'attempts' });
});

it('options that are given later hold on threads that named the queue before', async () => {
  const broker = await opened();
  const thread = await attached(broker);
  await thread.enqueue('jobs', 1);
  broker.queue('jobs', { attempts: 1, codec: 'bytes' });
  const { id } = await thread.enqueue('jobs', new Uint8Array([1, 2]));
  const queue = broker.queue<Uint8Array>('jobs');
  expect((await queue.get(id))!.payload).toEqual(new Uint8Array([1, 2]));
  await thread.tell('queue', 'jobs', { attempts: 3 });
  // A thread that gave options of its own keeps to them.
  await queue.enqueue(new Uint8Array([3]));
  expect(await thread.tell('enqueue', 'jobs', 'json').then(() => 'accepted')).toBe('accepted');
});

it('a fleet serves a queue as it is set, whoever set it', async () => {
  const broker = await opened();
  broker.queue('jobs', { attempts: 1, codec: 'bytes' });
  const queue = broker.queue<Uint8Array, number>('jobs');
  queue.process(new URL('../fleet/handlers/size.mjs', import.meta.url), { threads: 1 });
  expect(await queue.run(new Uint8Array(5))).toBe(5);
  expect(await failureOf(() => queue.run(new Uint8Array(0)))).toMatchObject({ reason: 'attempts' });
  const own = { encode: () => new Uint8Array(1), decode: () => 1 };
  expect(
    (await failureOf(() => broker.queue('own', { codec: own }).process(new URL('file:///dev/null')))).code,
  ).toMatch(/OPTION_INVALID|HANDLER_NOT_FOUND/);
});

it('a queue is set as it was after a restart, unless it is set anew', async () => {
  const dir = temporaryDirectory();
  const before = await opened({}, dir);
  const { durability: _, ...options } = OPTIONS;
  await before.queue('jobs', options).enqueue(1);
  await before.close();
  const after = await opened({}, dir);
  const queue = after.queue('jobs');
  const { id } = await queue.enqueue(2);
  expect(await queue.get(id)).toMatchObject({ priority: -3 });
  for (let attempt = 1; attempt <= 2; attempt++) {
    await until('both have failed', async () => {
      const leases = await queue.claim({ max: 2 });
      for (const lease of leases) {
        expect(lease.attempt).toBe(attempt);
        lease.fail('x', { delay: 0 });
      }
      await applied(after);
      return attempt === 1 ? after.stats().retried === 2 : after.stats().dead === 2;
    });
  }
  const anew = after.queue('jobs', {});
  await anew.enqueue(3);
  const [lease] = await anew.claim();
  lease!.fail('x', { delay: 0 });
  expect(await anew.get(lease!.id)).toMatchObject({ priority: 0, state: 'ready' });
});

it('a queue that nobody has set is set by the broker’s defaults on every thread', async () => {
  const broker = await opened({ durability: 'memory' });
  const thread = await attached(broker);
  // What declares the queue is flushed.
  await thread.enqueue('jobs', 1);
  await applied(broker);
  await broker.queue('jobs').enqueue(2);
  await applied(broker);
  const { flushes } = broker.stats();
  await thread.enqueue('jobs', 3);
  await broker.queue('jobs').enqueue(4);
  await applied(broker);
  expect(broker.stats().flushes).toBe(flushes);
});
