/** Idempotency keys: one job holds a key at a time, whoever asks, whatever comes between. */
import { describe, expect, it } from 'vitest';
import { applied, failureOf, opened, temporaryDirectory, timed, until } from '../brokers.js';
import { attached } from '../threads.js';

describe('a key that is held', () => {
  it('gives the job that holds it, its id and its result', async () => {
    const broker = await opened();
    const queue = broker.queue<string, string>('jobs');
    const first = await queue.enqueue('first', { key: 'k' });
    const second = await queue.enqueue('second', { key: 'k', delay: 1000, priority: -5 });
    expect([first.duplicate, second.duplicate]).toEqual([false, true]);
    expect(second.id).toBe(first.id);
    await second.durable;
    const [lease, none] = await queue.claim({ max: 2 });
    expect(none).toBeUndefined();
    expect(lease).toMatchObject({ id: first.id, payload: 'first' });
    const third = await queue.enqueue('third', { key: 'k' });
    expect(third).toMatchObject({ id: first.id, duplicate: true });
    const results = Promise.all([first.result(), second.result(), third.result()]);
    lease!.ack('r');
    expect(await results).toEqual(['r', 'r', 'r']);
    await applied(broker);
    expect(broker.stats()).toMatchObject({ enqueued: 1, done: 1, jobs: 0 });
  });

  it('is the queue’s own, and exactly that text', async () => {
    const broker = await opened();
    const keys = ['k', 'K', ' k', 'k ', '__proto__', 'constructor', 'é', 'e\u0301', '1:k', ':'];
    const ids = new Set<number>();
    for (const name of ['one', 'two', '1', '2']) {
      for (const key of keys) {
        const job = await broker.queue(name).enqueue(1, { key });
        expect(job.duplicate).toBe(false);
        ids.add(job.id);
      }
    }
    expect(ids.size).toBe(4 * keys.length);
  });

  it('is free when its job is done, cancelled, dead or purged', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs', { attempts: 1 });
    const again = async (): Promise<void> => {
      await applied(broker);
      const job = await queue.enqueue(1, { key: 'k' });
      expect(job.duplicate).toBe(false);
      expect((await queue.enqueue(1, { key: 'k' })).id).toBe(job.id);
    };
    await again();
    (await queue.claim())[0]!.ack();
    await again();
    (await queue.claim())[0]!.fail('x');
    await again();
    // A dead job that comes back does not take its key back.
    expect(await queue.deadLetters.redrive()).toBe(1);
    const leases = await queue.claim({ max: 2 });
    expect(leases).toHaveLength(2);
    for (const lease of leases) lease.ack();
    await again();
    const [last] = await queue.claim();
    expect(await queue.cancel(last!.id)).toBe(true);
    await again();
  });

  it('stays held while its job fails and is retried', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue('jobs', { backoff: { base: 1000, jitter: 'none' } });
    const { id } = await queue.enqueue(1, { key: 'k' });
    for (let attempt = 1; attempt < 4; attempt++) {
      (await queue.claim({ wait: 5000 }))[0]!.fail('x');
      expect(await queue.enqueue(2, { key: 'k' })).toMatchObject({ id, duplicate: true });
      clock.advance(1000 * 2 ** (attempt - 1));
    }
  });

  it('is held as long after the end as keyRetention says, with the result', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue<string, string>('jobs');
    const { id } = await queue.enqueue('p', { key: 'k', keyRetention: 1000 });
    (await queue.claim())[0]!.ack('r');
    await applied(broker);
    clock.advance(999);
    const duplicate = await queue.enqueue('q', { key: 'k' });
    expect(duplicate).toMatchObject({ id, duplicate: true });
    expect(await duplicate.result()).toBe('r');
    expect(await queue.get(id)).toMatchObject({ state: 'done', key: 'k' });
    clock.advance(1);
    await until('it is free', async () => (await queue.get(id)) === undefined);
    expect((await queue.enqueue('q', { key: 'k' })).duplicate).toBe(false);
  });

  it('is held after a restart, and free after one when its time is over', async () => {
    const { broker, clock, dir } = await timed();
    const queue = broker.queue<string, string>('jobs');
    const live = await queue.enqueue('p', { key: 'live' });
    const kept = await queue.enqueue('p', { key: 'kept', keyRetention: 1000, priority: -1 });
    (await queue.claim())[0]!.ack('r');
    await broker.close();
    const second = await opened({ clock }, dir);
    const after = second.queue<string, string>('jobs');
    expect(await after.enqueue('q', { key: 'live' })).toMatchObject({ id: live.id, duplicate: true });
    const duplicate = await after.enqueue('q', { key: 'kept' });
    expect(duplicate).toMatchObject({ id: kept.id, duplicate: true });
    expect(await duplicate.result()).toBe('r');
    await second.close();
    clock.advance(1000);
    const third = (await opened({ clock }, dir)).queue<string, string>('jobs');
    expect(await third.enqueue('q', { key: 'live' })).toMatchObject({ id: live.id, duplicate: true });
    expect((await third.enqueue('q', { key: 'kept' })).duplicate).toBe(false);
  });
});

describe('a duplicate', () => {
  it('does not become a job when its key’s time is over and the log is replayed', async () => {
    const { broker, clock, dir } = await timed();
    const queue = broker.queue<string>('jobs');
    await queue.enqueue('first', { key: 'k', keyRetention: 1000 });
    (await queue.claim())[0]!.ack();
    await applied(broker);
    clock.advance(500);
    expect((await queue.enqueue('second', { key: 'k' })).duplicate).toBe(true);
    await broker.close();
    clock.advance(5000);
    const again = (await opened({ clock }, dir)).queue('jobs');
    expect(again.counts()).toEqual({ ready: 0, delayed: 0, leased: 0, dead: 0, done: 1 });
    expect(await again.claim()).toEqual([]);
  });

  it('is not made of a job that was accepted after its key was free, by a clock that steps back', async () => {
    const { broker, clock, dir } = await timed();
    const queue = broker.queue<string>('jobs');
    const first = await queue.enqueue('first', { key: 'k', keyRetention: 1000 });
    (await queue.claim())[0]!.ack();
    await applied(broker);
    clock.advance(5000);
    await until('the key is free', async () => (await queue.get(first.id)) === undefined);
    const second = await queue.enqueue('second', { key: 'k' });
    expect(second.duplicate).toBe(false);
    clock.step(-3_600_000);
    await broker.close();
    const again = (await opened({ clock }, dir)).queue<string>('jobs');
    expect(again.counts()).toMatchObject({ ready: 1 });
    expect((await again.claim())[0]).toMatchObject({ id: second.id, payload: 'second' });
    expect((await again.enqueue('third', { key: 'k' })).id).toBe(second.id);
  });

  it('takes no room: neither a row nor a place among the jobs there may be', async () => {
    const broker = await opened({ jobsMax: 2 });
    const queue = broker.queue('jobs');
    const { id } = await queue.enqueue(1, { key: 'k' });
    for (let i = 0; i < 20; i++) expect((await queue.enqueue(2, { key: 'k' })).id).toBe(id);
    expect(queue.counts()).toMatchObject({ ready: 1 });
    await queue.enqueue(3);
    await applied(broker);
    expect(broker.stats().jobs).toBe(2);
  });
});

it('is one job when threads race with one key, every time', async () => {
  const broker = await opened();
  const queue = broker.queue<number>('jobs');
  const threads = await Promise.all([attached(broker), attached(broker)]);
  for (let round = 0; round < 50; round++) {
    const key = `k${round}`;
    const jobs = await Promise.all([
      ...threads.map((thread) => thread.enqueue('jobs', round, { key })),
      queue.enqueue(round, { key }),
      queue.enqueue(round, { key }),
    ]);
    expect(new Set(jobs.map(({ id }) => id)).size).toBe(1);
    expect(jobs.filter(({ duplicate }) => !duplicate)).toHaveLength(1);
  }
  expect(queue.counts()).toMatchObject({ ready: 50 });
});

it('is refused where it cannot be told whether it is held', async () => {
  const broker = await opened();
  const queue = broker.queue('jobs');
  const code = 'ERR_MILLRACE_OPTION_INVALID';
  expect((await failureOf(() => queue.tryEnqueue(1, { key: 'k' }))).code).toBe(code);
  expect((await failureOf(() => queue.enqueueMany([{ payload: 1, key: 'k' }]))).code).toBe(code);
});

it('works with run', async () => {
  const broker = await opened();
  const queue = broker.queue<number, number>('jobs');
  queue.process((payload) => payload * 2);
  const results = await Promise.all([
    queue.run(1, { key: 'k', keyRetention: 60_000 }),
    queue.run(2, { key: 'k', keyRetention: 60_000 }),
    queue.run(3, { key: 'l' }),
  ]);
  expect(results).toEqual([2, 2, 6]);
});

it('survives a kill between two enqueues with it', async () => {
  const dir = temporaryDirectory();
  let id: number | undefined;
  for (let run = 0; run < 3; run++) {
    const broker = await opened({}, dir);
    const job = await broker.queue('jobs').enqueue(run, { key: 'k' });
    id ??= job.id;
    expect(job).toMatchObject({ id, duplicate: run > 0 });
    await broker.close();
  }
});
