/** Delays follow the wall clock, leases the monotonic one; neither is early, neither wraps. */
import { describe, expect, it } from 'vitest';
import { applied, opened, taken, timed, until } from '../brokers.js';

const DAY = 86_400_000;
const HOUR = 3_600_000;

// User report 46: delays above 2^31 - 1 ms fire at once.
describe('a delayed job', () => {
  for (const [what, delay] of [
    ['1 ms', 1],
    ['2^31 - 2 ms', 2 ** 31 - 2],
    ['2^31 - 1 ms', 2 ** 31 - 1],
    ['2^31 ms', 2 ** 31],
    ['30 days', 30 * DAY],
    ['2^32 + 5 ms', 2 ** 32 + 5],
    ['one year', 365 * DAY],
    ['a thousand years', 365_000 * DAY],
  ] as const) {
    it(`of ${what} is not there a millisecond before its time, and is there at it`, async () => {
      const { broker, clock } = await timed();
      const queue = broker.queue('jobs');
      const { id } = await queue.enqueue('late', { delay });
      expect(await queue.get(id)).toMatchObject({ state: 'delayed', runAt: clock.wallMs() + delay });
      clock.advance(delay - 1);
      expect(await queue.claim()).toEqual([]);
      expect(queue.counts()).toMatchObject({ ready: 0, delayed: 1 });
      clock.advance(1);
      const [lease] = await queue.claim({ wait: 5000 });
      expect(lease).toMatchObject({ id, payload: 'late', attempt: 1 });
    });
  }

  it('with a run-at in the past, or now, is ready at once', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue('jobs');
    await queue.enqueue(1, { runAt: 0 });
    await queue.enqueue(2, { runAt: new Date(clock.wallMs()) });
    await queue.enqueue(3, { delay: 0 });
    await applied(broker);
    expect(queue.counts()).toMatchObject({ ready: 3, delayed: 0 });
  });

  it('is still delayed after a restart, and comes when it is due', async () => {
    const { broker, clock, dir } = await timed();
    await broker.queue('jobs').enqueueMany([
      { payload: 'near', delay: 1000 },
      { payload: 'far', delay: 40 * DAY },
    ]);
    await broker.close();
    clock.advance(999);
    const again = await opened({ clock }, dir);
    const queue = again.queue<string>('jobs');
    expect(queue.counts()).toMatchObject({ ready: 0, delayed: 2 });
    clock.advance(1);
    expect((await queue.claim({ wait: 5000 }))[0]!.payload).toBe('near');
    await again.close();
    clock.advance(40 * DAY);
    const third = await opened({ clock }, dir);
    const left = await third.queue<string>('jobs').claim({ max: 5 });
    expect(left.map(({ payload }) => payload).sort()).toEqual(['far', 'near']);
  });

  it('of 100,000 each comes once, none early', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue<number>('jobs');
    const start = clock.wallMs();
    const delays = Array.from({ length: 100_000 }, (_, i) => ((i * 7919) % 100_000) * 97);
    for (let from = 0; from < delays.length; from += 10_000) {
      await queue.enqueueMany(delays.slice(from, from + 10_000).map((delay) => ({ payload: delay, delay })));
    }
    const seen = new Set<number>();
    for (let step = 0; step < 10; step++) {
      clock.advance(970_000);
      await until(
        'what is due is ready',
        () => queue.counts().delayed === 100_000 - Math.min(100_000, 10_000 * (step + 1) + 1),
      );
      for (;;) {
        const leases = await queue.claim({ max: 4000 });
        if (leases.length === 0) break;
        for (const lease of leases) {
          expect(lease.payload).toBeLessThanOrEqual(clock.wallMs() - start);
          seen.add(lease.payload);
          lease.ack();
        }
      }
    }
    expect(seen.size).toBe(100_000);
  });
});

describe('a step of the wall clock', () => {
  for (const [what, step] of [
    ['an hour back', -HOUR],
    ['an hour forward', HOUR],
    ['ten years forward', 3650 * DAY],
    ['ten years back', -3650 * DAY],
  ] as const) {
    it(`of ${what} ends no lease and burns no attempt`, async () => {
      const { broker, clock } = await timed();
      const queue = broker.queue('jobs', { visibility: 30_000 });
      await queue.enqueueMany([1, 2]);
      const [lease, other] = await queue.claim({ max: 2 });
      clock.advance(29_000);
      clock.step(step);
      await applied(broker);
      expect([lease!.held, other!.held]).toEqual([true, true]);
      expect(lease!.extend(30_000)).toBe(true);
      clock.advance(999);
      await applied(broker);
      expect(other!.held).toBe(true);
      clock.advance(1);
      await until('the one that was not extended expires', () => !other!.held);
      expect(lease!.ack()).toBe(true);
      expect(broker.stats().expired).toBe(1);
    });
  }

  it('forward makes the jobs due that it passes, back takes none of them away', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue<string>('jobs');
    await queue.enqueue('hour', { delay: HOUR });
    await queue.enqueue('year', { delay: 365 * DAY });
    clock.step(HOUR - 1);
    expect(await queue.claim()).toEqual([]);
    clock.step(1);
    await until('the first is due', () => queue.counts().ready === 1);
    clock.step(-2 * HOUR);
    await applied(broker);
    expect(queue.counts()).toMatchObject({ ready: 1, delayed: 1 });
    expect((await queue.claim())[0]!.payload).toBe('hour');
    clock.step(3650 * DAY);
    expect((await queue.claim({ wait: 5000 }))[0]!.payload).toBe('year');
  });

  it('back makes delayed jobs wait for their wall-clock time', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue<string>('jobs');
    await queue.enqueue('x', { delay: 1000 });
    clock.step(-HOUR);
    clock.advance(1000);
    expect(await queue.claim()).toEqual([]);
    clock.advance(HOUR - 1);
    expect(await queue.claim()).toEqual([]);
    clock.advance(1);
    expect(await queue.claim({ wait: 5000 })).toHaveLength(1);
  });

  it('back does not hold a job that asked for no delay, not even through a restart or a compaction', async () => {
    const { broker, clock, dir } = await timed();
    const queue = broker.queue<string>('jobs');
    await queue.enqueue('before');
    await queue.enqueue('dead');
    (await taken(queue, 2)).find(({ payload }) => payload === 'dead')!.fail('x', { dead: true });
    await queue.deadLetters.redrive();
    clock.step(-HOUR);
    await queue.enqueue('after');
    await broker.close();
    const again = await opened({ clock }, dir);
    const queueAgain = again.queue<string>('jobs');
    expect(queueAgain.counts()).toMatchObject({ ready: 3, delayed: 0 });
    const leases = await taken(queueAgain, 3);
    expect(leases.find(({ payload }) => payload === 'dead')!.ack()).toBe(true);
    await again.compact();
    await again.close();
    clock.step(-HOUR);
    const third = (await opened({ clock }, dir)).queue<string>('jobs');
    expect(third.counts()).toMatchObject({ ready: 2, delayed: 0 });
    const payloads = (await taken(third, 2)).map(({ payload }) => payload);
    expect(payloads.sort()).toEqual(['after', 'before']);
  });

  it('back and forth a hundred times loses no delayed job', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue<number>('jobs');
    await queue.enqueueMany(Array.from({ length: 1000 }, (_, i) => ({ payload: i, delay: 1 + i * 1000 })));
    let acked = 0;
    for (let i = 0; i < 100; i++) {
      clock.step(i % 2 === 0 ? -HOUR : HOUR);
      clock.advance(10_000);
      for (const lease of await queue.claim({ max: 4096 })) if (lease.ack()) acked++;
    }
    clock.step(HOUR);
    await until('all have come', async () => {
      for (const lease of await queue.claim({ max: 4096 })) if (lease.ack()) acked++;
      return acked === 1000;
    });
    await applied(broker);
    expect(queue.counts()).toEqual({ ready: 0, delayed: 0, leased: 0, dead: 0, done: 1000 });
  });
});

describe('a lease', () => {
  it('of the longest visibility lasts as long as it says, past positions that wrap', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue('jobs', { visibility: 2 ** 31 - 1 });
    for (let round = 0; round < 4; round++) {
      await queue.enqueue(1);
      const [lease] = await queue.claim();
      for (let i = 0; i < 4; i++) {
        clock.advance(2 ** 29 - 1);
        await applied(broker);
        expect(lease!.held).toBe(true);
      }
      expect(lease!.ack()).toBe(true);
      clock.advance(2 ** 29);
      await applied(broker);
    }
  });

  it('does not expire because a flush takes long', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue('jobs', { visibility: 1000, backoff: { base: 0 } });
    await queue.enqueue(1);
    const [lease] = await queue.claim();
    clock.advance(999);
    expect(lease!.ack()).toBe(true);
    // Settled in time; that its record is applied later changes nothing.
    clock.advance(10_000);
    await until('it is done', () => queue.counts().done === 1);
    expect(broker.stats().expired).toBe(0);
  });

  it('on a job that nobody claims for long is not there to expire', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue('jobs', { visibility: 1000 });
    expect(await queue.claim()).toEqual([]);
    await queue.enqueueMany([1, 2, 3]);
    for (let i = 0; i < 10; i++) {
      clock.advance(999);
      await applied(broker);
    }
    const leases = await queue.claim({ max: 3 });
    expect(leases.map(({ attempt }) => attempt)).toEqual([1, 1, 1]);
    expect(broker.stats().expired).toBe(0);
    // And when it is claimed at last, it is there again.
    clock.advance(1000);
    await until('they expire', () => leases.every(({ held }) => !held));
    expect(broker.stats().expired).toBe(3);
  });
});

describe('the age of the oldest ready job', () => {
  it('is that of the first in order, 0 when none waits', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue('jobs');
    expect(queue.oldestReadyAge()).toBe(0);
    await queue.enqueue(1);
    clock.advance(5000);
    await queue.enqueue(2);
    await applied(broker);
    expect(queue.oldestReadyAge()).toBe(5000);
    const leases = await queue.claim({ max: 2 });
    for (const lease of leases) lease.ack();
    await applied(broker);
    expect(queue.oldestReadyAge()).toBe(0);
  });
});
