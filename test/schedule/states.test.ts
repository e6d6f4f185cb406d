/** What `get` tells and what `cancel` does in every state that a job can be in; pausing. */
import type { Broker, Lease, Queue } from 'millrace';
import { describe, expect, it } from 'vitest';
import type { ManualClock } from '../../src/clock.js';
import { applied, failureOf, opened, temporaryDirectory, timed, until } from '../brokers.js';
import { attached } from '../threads.js';

interface Scene {
  readonly broker: Broker;
  readonly clock: ManualClock;
  readonly queue: Queue<string, string>;
  readonly id: number;
  readonly lease: Lease<string> | undefined;
}

const OPTIONS = { attempts: 3, resultRetention: 60_000, backoff: { base: 1000, jitter: 'none' } } as const;

/** How to bring a job into each state. */
const STATES: Record<string, (queue: Queue<string, string>) => Promise<{ id: number; lease?: Lease<string> }>> = {
  ready: (queue) => queue.enqueue('p', { priority: 3, tenant: 't', key: 'k' }),
  delayed: (queue) => queue.enqueue('p', { priority: 3, tenant: 't', key: 'k', delay: 5000 }),
  leased: async (queue) => {
    const { id } = await queue.enqueue('p', { priority: 3, tenant: 't', key: 'k' });
    const [lease] = await queue.claim();
    return { id, lease };
  },
  'delayed for a retry': async (queue) => {
    const { id } = await queue.enqueue('p', { priority: 3, tenant: 't', key: 'k' });
    const [lease] = await queue.claim();
    lease!.fail(new Error('once'));
    return { id };
  },
  dead: async (queue) => {
    const { id } = await queue.enqueue('p', { priority: 3, tenant: 't', key: 'k' });
    const [lease] = await queue.claim();
    lease!.fail(new Error('once'), { dead: true });
    return { id };
  },
  done: async (queue) => {
    const { id } = await queue.enqueue('p', { priority: 3, tenant: 't', key: 'k' });
    const [lease] = await queue.claim();
    lease!.ack('r');
    return { id };
  },
};

async function scene(state: string): Promise<Scene> {
  const { broker, clock } = await timed();
  const queue = broker.queue<string, string>('jobs', OPTIONS);
  // Nobody consumes a queue before its first claim: both ways are tried.
  if (state !== 'ready') await queue.claim();
  const { id, lease } = await STATES[state]!(queue);
  await applied(broker);
  return { broker, clock, queue, id, lease };
}

describe('get', () => {
  for (const [state, facts] of [
    ['ready', { state: 'ready', attempt: 0, errors: [] }],
    ['delayed', { state: 'delayed', attempt: 0, errors: [] }],
    ['leased', { state: 'leased', errors: [] }],
    ['delayed for a retry', { state: 'delayed', attempt: 1, errors: [{ message: 'once' }] }],
    ['dead', { state: 'dead', attempt: 1, reason: 'rejected', errors: [{ message: 'once' }] }],
    ['done', { state: 'done', errors: [] }],
  ] as const) {
    it(`tells all of a job that is ${state}, on every thread`, async () => {
      const { broker, clock, queue, id } = await scene(state);
      const info = await queue.get(id);
      expect(info).toMatchObject({
        id,
        queue: 'jobs',
        payload: 'p',
        priority: 3,
        tenant: 't',
        key: 'k',
        enqueuedAt: clock.wallMs(),
        ...facts,
      });
      if (state === 'delayed') expect(info!.runAt).toBe(clock.wallMs() + 5000);
      expect(await (await attached(broker)).get('jobs', id)).toEqual(info);
    });
  }

  it('tells of a job that was offered and not taken that it is ready', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs');
    await queue.claim();
    const { id } = await queue.enqueue(1);
    expect(await queue.get(id)).toMatchObject({ state: 'ready' });
  });

  it('knows no job of another queue, none that never was, and none that is gone', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs');
    const { id } = await queue.enqueue(1);
    expect(await broker.queue('others').get(id)).toBeUndefined();
    for (const other of [0, -1, id + 1, id - 1, 2 ** 52]) expect(await queue.get(other)).toBeUndefined();
    (await queue.claim())[0]!.ack();
    expect(await queue.get(id)).toBeUndefined();
  });

  it('tells of a job that is done until its retention is over', async () => {
    const { clock, queue, id } = await scene('done');
    clock.advance(59_999);
    expect(await queue.get(id)).toMatchObject({ state: 'done' });
    clock.advance(1);
    await until('it is forgotten', async () => (await queue.get(id)) === undefined);
  });
});

describe('cancel', () => {
  for (const state of ['ready', 'delayed', 'leased', 'delayed for a retry']) {
    it(`ends a job that is ${state}, for good`, async () => {
      const { broker, clock, queue, id, lease } = await scene(state);
      const result = queue.result(id);
      result.catch(() => {});
      expect(await queue.cancel(id)).toBe(true);
      expect((await failureOf(() => result)).code).toBe('ERR_MILLRACE_CANCELLED');
      expect(await queue.get(id)).toBeUndefined();
      expect(lease?.ack()).not.toBe(true);
      expect(await queue.cancel(id)).toBe(false);
      clock.advance(1_000_000);
      expect(await queue.claim()).toEqual([]);
      expect(queue.counts()).toEqual({ ready: 0, delayed: 0, leased: 0, dead: 0, done: 0 });
      expect(broker.stats()).toMatchObject({ jobs: 0, cancelled: 1 });
      // The key is free again.
      expect((await queue.enqueue('q', { key: 'k' })).duplicate).toBe(false);
    });
  }

  for (const state of ['dead', 'done']) {
    it(`does nothing to a job that is ${state}`, async () => {
      const { queue, id } = await scene(state);
      expect(await queue.cancel(id)).toBe(false);
      expect(await queue.get(id)).toMatchObject({ state });
    });
  }

  it('does nothing to a job that is gone or never was', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs');
    const { id } = await queue.enqueue(1);
    (await queue.claim())[0]!.ack();
    expect(await queue.cancel(id)).toBe(false);
    expect(await queue.cancel(12_345)).toBe(false);
  });

  it('does nothing to a job of another queue', async () => {
    const broker = await opened();
    const { id } = await broker.queue('jobs').enqueue(1);
    expect(await broker.queue('others').cancel(id)).toBe(false);
    expect(await broker.queue('jobs').get(id)).toMatchObject({ state: 'ready' });
  });

  it('is not undone by a restart', async () => {
    const dir = temporaryDirectory();
    const broker = await opened({}, dir);
    const queue = broker.queue('jobs');
    const jobs = await queue.enqueueMany([1, 2, 3]);
    const [lease] = await queue.claim();
    expect(await queue.cancel(jobs[0]!.id)).toBe(true);
    expect(lease!.held).toBe(false);
    expect(await queue.cancel(jobs[1]!.id)).toBe(true);
    await broker.close();
    const again = (await opened({}, dir)).queue('jobs');
    expect((await again.claim({ max: 5 })).map(({ id }) => id)).toEqual([jobs[2]!.id]);
  });

  it('of a job that was offered leaves nothing behind that can be claimed', async () => {
    const broker = await opened();
    const queue = broker.queue<number>('jobs');
    // From the first claim on jobs are offered.
    expect(await queue.claim()).toEqual([]);
    const jobs = await queue.enqueueMany([1, 2, 3]);
    await applied(broker);
    expect(await queue.cancel(jobs[1]!.id)).toBe(true);
    expect((await queue.claim({ max: 5 })).map(({ payload }) => payload)).toEqual([1, 3]);
    expect(queue.counts()).toMatchObject({ ready: 0, leased: 2 });
  });

  it('and ack race for a lease, and exactly one of them has it', async () => {
    const broker = await opened();
    const queue = broker.queue<number>('jobs');
    const thread = await attached(broker);
    let cancelled = 0;
    for (let round = 0; round < 100; round++) {
      const { id } = await queue.enqueue(round);
      const [lease] = await queue.claim({ wait: 5000 });
      const cancel = thread.tell<boolean>('cancel', 'jobs', id);
      for (let turn = 0; turn < round % 10; turn++) await new Promise((resolve) => setImmediate(resolve));
      const acked = lease!.ack();
      expect(await cancel).toBe(!acked);
      if (!acked) cancelled++;
    }
    await applied(broker);
    expect(queue.counts()).toEqual({ ready: 0, delayed: 0, leased: 0, dead: 0, done: 100 - cancelled });
  });
});

describe('a paused queue', () => {
  it('gives out no job, not even one that was offered, until it is resumed', async () => {
    const broker = await opened();
    const queue = broker.queue<number>('jobs');
    await queue.enqueueMany([1, 2, 3, 4]);
    const [lease] = await queue.claim();
    await queue.pause();
    expect(await queue.claim({ max: 9 })).toEqual([]);
    expect(queue.tryClaim({ max: 9 })).toEqual([]);
    await queue.enqueue(5);
    expect(await queue.claim({ max: 9 })).toEqual([]);
    expect(queue.counts()).toMatchObject({ ready: 4, leased: 1 });
    // What runs goes on.
    expect(lease!.extend(60_000)).toBe(true);
    expect(lease!.ack()).toBe(true);
    const waiting = queue.claim({ max: 9, wait: 10_000 });
    await queue.resume();
    const leases = await waiting;
    while (leases.length < 4) leases.push(...(await queue.claim({ max: 9, wait: 10_000 })));
    expect(leases.map(({ payload }) => payload)).toEqual([2, 3, 4, 5]);
  });

  it('is paused for every thread, and after a restart, and others are not', async () => {
    const dir = temporaryDirectory();
    const broker = await opened({}, dir);
    await broker.queue('jobs').enqueueMany([1, 2]);
    await broker.queue('others').enqueue(1);
    const thread = await attached(broker);
    await broker.queue('jobs').pause();
    expect(await thread.claim('jobs')).toEqual([]);
    expect(await thread.claim('others')).toHaveLength(1);
    await broker.close();
    const again = await opened({}, dir);
    expect(await again.queue('jobs').claim()).toEqual([]);
    await again.queue('jobs').resume();
    expect(await again.queue('jobs').claim({ wait: 5000 })).toHaveLength(1);
    await again.close();
    expect(await (await opened({}, dir)).queue('jobs').claim({ wait: 5000 })).toHaveLength(1);
  });

  it('can be paused and resumed in a row, and loses nothing', async () => {
    const broker = await opened();
    const queue = broker.queue<number>('jobs');
    await queue.enqueueMany(Array.from({ length: 500 }, (_, i) => i));
    const seen: number[] = [];
    for (let round = 0; round < 20; round++) {
      for (const lease of await queue.claim({ max: 20 })) {
        seen.push(lease.payload);
        lease.ack();
      }
      await queue.pause();
      expect(await queue.claim({ max: 20 })).toEqual([]);
      await queue.resume();
    }
    await until('all have come', async () => {
      for (const lease of await queue.claim({ max: 100 })) {
        seen.push(lease.payload);
        lease.ack();
      }
      return seen.length === 500;
    });
    expect(seen).toEqual(Array.from({ length: 500 }, (_, i) => i));
  });
});
