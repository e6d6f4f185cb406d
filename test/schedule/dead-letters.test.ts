/** What becomes of jobs whose runs fail: backoff, the budgets, and the dead letters with all that can be done to them. */
import { type Broker, MillraceError, type Queue } from 'millrace';
import { describe, expect, it } from 'vitest';
import { applied, failureOf, opened, taken, temporaryDirectory, timed, until } from '../brokers.js';
import { attached } from '../threads.js';

/** Jobs that died one after the other, the payload being the reason. */
async function buried(broker: Broker, queue: Queue<number>, payloads: readonly number[]): Promise<number[]> {
  const jobs = await queue.enqueueMany(payloads);
  for (const lease of await taken(queue, payloads.length)) lease.fail(new Error(`no ${lease.payload}`), { dead: true });
  await applied(broker);
  return jobs.map(({ id }) => id);
}

describe('a job that fails', () => {
  it('runs again after a full-jitter backoff that doubles up to its maximum', async () => {
    const chances = [0, 0.25, 0.5, 0.999, 0.5, 0.5];
    let i = 0;
    const { broker, clock } = await timed({ random: () => chances[i++]! });
    const queue = broker.queue('jobs', { backoff: { base: 1000, max: 8000 }, visibility: 60_000 });
    const { id } = await queue.enqueue(1);
    for (const delay of [0, 500, 2000, 7992, 4000, 4000]) {
      const [lease] = await queue.claim({ wait: 5000 });
      const failedAt = clock.wallMs();
      lease!.fail(new Error('x'));
      expect((await queue.get(id))!.runAt).toBe(failedAt + delay);
      if (delay > 0) {
        clock.advance(delay - 1);
        expect(await queue.claim()).toEqual([]);
        clock.advance(1);
      }
    }
  });

  it('runs again after the delay without jitter, by a function, or by what fail says', async () => {
    const { broker, clock } = await timed({ random: () => 0.5 });
    const exact = broker.queue('exact', { backoff: { base: 10, jitter: 'none' } });
    const own = broker.queue('own', { backoff: (attempt) => attempt * 7.5 });
    for (const [queue, delays] of [
      [exact, [10, 20, 40]],
      [own, [8, 15, 23]],
    ] as const) {
      const { id } = await queue.enqueue(1);
      for (const delay of delays) {
        const [lease] = await queue.claim({ wait: 5000 });
        lease!.fail(new Error('x'));
        expect((await queue.get(id))!.runAt - clock.wallMs()).toBe(delay);
        clock.advance(delay);
      }
      const [lease] = await queue.claim({ wait: 5000 });
      lease!.fail(new Error('x'), { delay: 123 });
      expect((await queue.get(id))!.runAt - clock.wallMs()).toBe(123);
    }
  });

  it('is dead after its attempts: the queue’s, or its own', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs', { attempts: 3, backoff: { base: 0 } });
    const byQueue = await queue.enqueue('queue');
    const byJob = await queue.enqueue('job', { attempts: 1 });
    const runs: string[] = [];
    await until('both are dead', async () => {
      for (const lease of await queue.claim()) {
        runs.push(`${lease.payload} ${lease.attempt}`);
        lease.fail(new Error(`run ${lease.attempt}`));
      }
      return queue.deadLetters.size === 2;
    });
    expect(runs.sort()).toEqual(['job 1', 'queue 1', 'queue 2', 'queue 3']);
    expect(await queue.get(byQueue.id)).toMatchObject({ state: 'dead', reason: 'attempts', attempt: 3 });
    expect((await queue.get(byQueue.id))!.errors.map(({ message }) => message)).toEqual(['run 1', 'run 2', 'run 3']);
    expect(await queue.get(byJob.id)).toMatchObject({ state: 'dead', reason: 'attempts', attempt: 1 });
    expect(broker.stats()).toMatchObject({ dead: 2, retried: 2 });
  });

  it('keeps its last errors, with what they say of themselves', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs', { backoff: { base: 0 } });
    const { id } = await queue.enqueue(1);
    for (let run = 1; run <= 8; run++) {
      const [lease] = await queue.claim({ wait: 5000 });
      lease!.fail(Object.assign(new TypeError(`run ${run}`, { cause: 'why' }), { code: 'E_CODE' }));
    }
    const { errors } = (await queue.get(id))!;
    expect(errors.map(({ message }) => message)).toEqual([4, 5, 6, 7, 8].map((run) => `run ${run}`));
    expect(errors[0]).toMatchObject({ name: 'TypeError', code: 'E_CODE', cause: 'why' });
    expect(errors[0]!.stack).toContain('dead-letters.test');
  });

  it('that expired is retried like any other, and dead when it was the last attempt', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue('jobs', { visibility: 1000, attempts: 2, backoff: { base: 0 } });
    const { id } = await queue.enqueue(1);
    for (let attempt = 1; attempt <= 2; attempt++) {
      const [lease] = await queue.claim({ wait: 5000 });
      expect(lease!.attempt).toBe(attempt);
      clock.advance(1000);
      await until('it expires', () => !lease!.held);
    }
    await until('it is dead', () => queue.deadLetters.size === 1);
    expect(await queue.get(id)).toMatchObject({ state: 'dead', attempt: 2 });
  });

  it('given back counts no attempt, however often', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs', { attempts: 1 });
    const { id } = await queue.enqueue(1);
    for (let i = 0; i < 30; i++) {
      const [lease] = await queue.claim({ wait: 5000 });
      expect(lease!.attempt).toBe(1);
      expect(lease!.giveBack()).toBe(true);
    }
    expect(await queue.get(id)).toMatchObject({ state: 'ready', attempt: 0, errors: [] });
  });

  it('survives a restart with its attempts, errors and delay', async () => {
    const { broker, clock, dir } = await timed();
    const queue = broker.queue('jobs', { attempts: 3, backoff: { base: 5000, jitter: 'none' } });
    const { id } = await queue.enqueue(1, { tenant: 't', priority: 7 });
    (await queue.claim())[0]!.fail(new Error('first'));
    const before = await queue.get(id);
    await broker.close();
    const again = (await opened({ clock }, dir)).queue('jobs');
    expect(await again.get(id)).toEqual(before);
    clock.advance(5000);
    const [lease] = await again.claim({ wait: 5000 });
    expect(lease).toMatchObject({ id, attempt: 2, tenant: 't' });
  });
});

describe('dead letters', () => {
  it('are listed by pages, the longest dead first, also when the page’s last job has left meanwhile', async () => {
    const broker = await opened();
    const queue = broker.queue<number>('jobs');
    const ids = await buried(broker, queue, [1, 2, 3, 4, 5, 6, 7]);
    expect(queue.deadLetters.size).toBe(7);
    const first = await queue.deadLetters.list({ limit: 3 });
    expect(first.map(({ payload }) => payload)).toEqual([1, 2, 3]);
    expect(first[0]).toMatchObject({
      id: ids[0],
      queue: 'jobs',
      state: 'dead',
      reason: 'rejected',
      attempt: 1,
      errors: [{ name: 'Error', message: 'no 1' }],
    });
    expect(await queue.deadLetters.purge({ ids: [ids[2]!] })).toBe(1);
    const second = await queue.deadLetters.list({ limit: 3, after: ids[2] });
    expect(second.map(({ payload }) => payload)).toEqual([4, 5, 6]);
    const third = await queue.deadLetters.list({ limit: 3, after: ids[5] });
    expect(third.map(({ payload }) => payload)).toEqual([7]);
    expect(await queue.deadLetters.list({ after: ids[6] })).toEqual([]);
    expect(await queue.deadLetters.list()).toHaveLength(6);
  });

  it('are read through by pages, every one once', async () => {
    const broker = await opened();
    const queue = broker.queue<number>('jobs');
    await buried(
      broker,
      queue,
      Array.from({ length: 2500 }, (_, i) => i),
    );
    const payloads: number[] = [];
    for (let after: number | undefined; ; ) {
      const page = await queue.deadLetters.list({ limit: 1000, after });
      if (page.length === 0) break;
      payloads.push(...page.map(({ payload }) => payload));
      after = page.at(-1)!.id;
    }
    expect(payloads).toEqual(Array.from({ length: 2500 }, (_, i) => i));
  });

  it('are told apart by reason', async () => {
    const broker = await opened();
    const queue = broker.queue<string>('jobs', { attempts: 1 });
    await queue.enqueueMany(['attempts', 'rejected', 'attempts']);
    for (const lease of await taken(queue, 3)) {
      if (lease.payload === 'rejected') lease.fail(new Error('x'), { dead: true });
      else lease.fail(new Error('x'));
    }
    await applied(broker);
    const list = async (reason: string) => (await queue.deadLetters.list({ reason })).map(({ payload }) => payload);
    expect(await list('attempts')).toEqual(['attempts', 'attempts']);
    expect(await list('rejected')).toEqual(['rejected']);
    expect(await list('crash')).toEqual([]);
    expect(await queue.deadLetters.redrive({ reason: 'rejected' })).toBe(1);
    expect(await queue.deadLetters.purge({ reason: 'rejected' })).toBe(0);
    expect(await queue.deadLetters.purge({ reason: 'attempts', limit: 1 })).toBe(1);
    expect(queue.counts()).toMatchObject({ dead: 1, ready: 1 });
  });

  it('redriven run again with all their attempts, and their errors are kept', async () => {
    const dir = temporaryDirectory();
    const broker = await opened({}, dir);
    const queue = broker.queue<number>('jobs', { attempts: 2, backoff: { base: 0 } });
    const [one, two, three] = await buried(broker, queue, [1, 2, 3]);
    expect(await queue.deadLetters.redrive({ dryRun: true })).toBe(3);
    expect(queue.deadLetters.size).toBe(3);
    expect(await queue.deadLetters.redrive({ ids: [two!, 999_999] })).toBe(1);
    expect(await queue.deadLetters.redrive({ limit: 1 })).toBe(1);
    expect((await queue.deadLetters.list()).map(({ id }) => id)).toEqual([three]);
    expect(await queue.get(two!)).toMatchObject({ state: 'ready', attempt: 0, errors: [{ message: 'no 2' }] });
    const leases = await taken(queue, 2);
    expect(leases.map(({ id, attempt }) => [id, attempt]).sort((a, b) => a[0]! - b[0]!)).toEqual([
      [one, 1],
      [two, 1],
    ]);
    for (const lease of leases) lease.fail(new Error('again'));
    for (const lease of await taken(queue, 2)) {
      expect(lease.attempt).toBe(2);
      lease.fail(new Error('for good'));
    }
    await applied(broker);
    expect(queue.deadLetters.size).toBe(3);
    await broker.close();
    const again = (await opened({}, dir)).queue<number>('jobs');
    expect(again.counts()).toEqual({ ready: 0, delayed: 0, leased: 0, dead: 3, done: 0 });
    expect((await again.deadLetters.list()).map(({ reason }) => reason)).toEqual(['rejected', 'attempts', 'attempts']);
  });

  it('purged are gone, also after a restart', async () => {
    const dir = temporaryDirectory();
    const broker = await opened({}, dir);
    const queue = broker.queue<number>('jobs');
    const [one, two, three] = await buried(broker, queue, [1, 2, 3]);
    const waiting = queue.result(two!);
    expect((await failureOf(() => waiting)).code).toBe('ERR_MILLRACE_DEAD');
    expect(await queue.deadLetters.purge({ dryRun: true, ids: [two!] })).toBe(1);
    expect(await queue.deadLetters.purge({ ids: [two!, two!] })).toBe(1);
    expect(await queue.get(two!)).toBeUndefined();
    expect(await queue.deadLetters.purge({ ids: [two!] })).toBe(0);
    expect(queue.deadLetters.size).toBe(2);
    await broker.close();
    const again = (await opened({}, dir)).queue<number>('jobs');
    expect((await again.deadLetters.list()).map(({ id }) => id)).toEqual([one, three]);
    expect(await again.deadLetters.purge()).toBe(2);
    expect(await again.deadLetters.list()).toEqual([]);
    expect(again.counts()).toEqual({ ready: 0, delayed: 0, leased: 0, dead: 0, done: 0 });
  });

  it('of one queue are not those of another', async () => {
    const broker = await opened();
    const [one, two] = [broker.queue<number>('one'), broker.queue<number>('two')];
    const [id] = await buried(broker, one, [1]);
    await buried(broker, two, [2]);
    expect(await two.deadLetters.purge({ ids: [id!] })).toBe(0);
    expect(await two.deadLetters.redrive({ ids: [id!] })).toBe(0);
    expect(await one.deadLetters.purge()).toBe(1);
    expect(two.deadLetters.size).toBe(1);
  });

  it('redriven by two threads at once run once', async () => {
    const broker = await opened();
    const queue = broker.queue<number>('jobs');
    await buried(
      broker,
      queue,
      Array.from({ length: 50 }, (_, i) => i),
    );
    const counts = await Promise.all([
      queue.deadLetters.redrive(),
      queue.deadLetters.redrive(),
      queue.deadLetters.redrive({ limit: 10 }),
    ]);
    expect(counts[0]).toBe(50);
    expect(await taken(queue, 50)).toHaveLength(50);
    expect(await queue.claim()).toEqual([]);
    expect(queue.counts()).toMatchObject({ ready: 0, leased: 50, dead: 0 });
  });

  it('hold the job of a thread that went down too often, with the reason', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs', { crashes: 2, attempts: 5 });
    const { id } = await queue.enqueue(1);
    for (let crash = 1; crash <= 2; crash++) {
      const thread = await attached(broker);
      const [lease] = await thread.claim('jobs', { wait: 5000 });
      expect(lease).toMatchObject({ id, attempt: 1 });
      await thread.worker.terminate();
    }
    await until('it is dead', () => queue.deadLetters.size === 1);
    expect(await queue.get(id)).toMatchObject({ state: 'dead', reason: 'crash', attempt: 0, crashes: 2 });
    const error = await failureOf(() => queue.result(id));
    expect(error).toBeInstanceOf(MillraceError);
    expect(error).toMatchObject({ code: 'ERR_MILLRACE_DEAD', reason: 'crash', id });
  });
});
