/** Results: asked for before the end and after it, on this thread and others, and what a wait that fails says. */
import { MillraceError } from 'millrace';
import { describe, expect, it } from 'vitest';
import { applied, failureOf, opened, timed, until } from '../brokers.js';

const KEPT = { resultRetention: 60_000 };

describe('a result', () => {
  it('is had before the job ends, after it, by id, and by many', async () => {
    const broker = await opened();
    const queue = broker.queue<number, { n: number }>('jobs');
    const job = await queue.enqueue(1);
    const before = [job.result(), job.result(), queue.result(job.id)];
    (await queue.claim())[0]!.ack({ n: 7 });
    const after = [job.result(), queue.result(job.id)];
    for (const result of await Promise.all([...before, ...after])) expect(result).toEqual({ n: 7 });
  });

  it('may be anything JSON holds, bytes, or nothing', async () => {
    const broker = await opened();
    const queue = broker.queue<number, unknown>('jobs');
    for (const result of [null, false, 0, '', 'text é\u2028', [1, [2]], { a: null }, new Uint8Array([0, 1, 255])]) {
      const job = await queue.enqueue(1);
      (await queue.claim())[0]!.ack(result);
      expect(await job.result()).toEqual(result);
    }
    const job = await queue.enqueue(1);
    (await queue.claim())[0]!.ack();
    expect(await job.result()).toBeUndefined();
    const empty = await queue.enqueue(1);
    (await queue.claim())[0]!.ack(new Uint8Array(0));
    expect(await empty.result()).toEqual(new Uint8Array(0));
  });

  it('of many jobs comes to each', async () => {
    const broker = await opened();
    const queue = broker.queue<number, number>('jobs');
    queue.process((n) => n * n, { concurrency: 16 });
    const results = await Promise.all(Array.from({ length: 3000 }, (_, i) => queue.run(i)));
    expect(results).toEqual(Array.from({ length: 3000 }, (_, i) => i * i));
  });

  it('of 1 MiB comes whole, also when more wait than the reply ring holds', async () => {
    const broker = await opened();
    const queue = broker.queue<number, string>('jobs');
    const job = await queue.enqueue(1);
    const text = 'x'.repeat((1 << 20) - 2);
    (await queue.claim())[0]!.ack(text);
    expect(await job.result()).toBe(text);
    const jobs = await queue.enqueueMany(Array.from({ length: 3000 }, (_, i) => i));
    const waits = jobs.map((one) => one.result());
    const leases = [];
    while (leases.length < 3000) leases.push(...(await queue.claim({ max: 3000, wait: 5000 })));
    for (const lease of leases) lease.ack(`${lease.payload}`.padStart(500));
    const results = await Promise.all(waits);
    expect(results.map((result) => Number(result))).toEqual(Array.from({ length: 3000 }, (_, i) => i));
  });
});

describe('a result that is kept', () => {
  it('is there after a restart, until its time is over', async () => {
    const { broker, clock, dir } = await timed();
    const queue = broker.queue<number, string>('jobs', KEPT);
    const job = await queue.enqueue(1);
    (await queue.claim())[0]!.ack('r');
    expect(await job.result()).toBe('r');
    await broker.close();
    clock.advance(59_999);
    const again = await opened({ clock }, dir);
    const reopened = again.queue<number, string>('jobs', KEPT);
    expect(await reopened.result(job.id)).toBe('r');
    expect(await reopened.get(job.id)).toMatchObject({ state: 'done', payload: 1 });
    clock.advance(1);
    await until('it is forgotten', async () => (await reopened.get(job.id)) === undefined);
    expect(again.stats().jobs).toBe(0);
  });

  it('of nothing is kept too', async () => {
    const { broker, clock, dir } = await timed();
    const queue = broker.queue('jobs', KEPT);
    const job = await queue.enqueue(1);
    (await queue.claim())[0]!.ack();
    await broker.close();
    const again = (await opened({ clock }, dir)).queue('jobs', KEPT);
    expect(await again.result(job.id)).toBeUndefined();
  });

  it('does not keep its job live', async () => {
    const { broker } = await timed();
    const queue = broker.queue('jobs', KEPT);
    await queue.enqueue(1);
    (await queue.claim())[0]!.ack('r');
    await applied(broker);
    expect(queue.counts()).toEqual({ ready: 0, delayed: 0, leased: 0, dead: 0, done: 1 });
    expect(await queue.claim()).toEqual([]);
  });
});

describe('a wait', () => {
  it('for a job that dies is rejected with the reason and the last error as its cause', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs', { attempts: 2, backoff: { base: 0 } });
    const job = await queue.enqueue(1);
    const wait = failureOf(() => job.result());
    (await queue.claim({ wait: 5000 }))[0]!.fail(new RangeError('first'));
    (await queue.claim({ wait: 5000 }))[0]!.fail(Object.assign(new RangeError('second'), { code: 'E_OWN' }));
    for (const error of [await wait, await failureOf(() => queue.result(job.id))]) {
      expect(error).toBeInstanceOf(MillraceError);
      expect(error).toMatchObject({ code: 'ERR_MILLRACE_DEAD', id: job.id, reason: 'attempts' });
      expect(error.message).toContain('second');
      expect(error.cause).toMatchObject({ name: 'RangeError', message: 'second', code: 'E_OWN' });
      expect(error.cause).toBeInstanceOf(Error);
    }
  });

  it('for a job that is dead is rejected after a restart too', async () => {
    const { broker, clock, dir } = await timed();
    const { id } = await broker.queue('jobs').enqueue(1);
    (await broker.queue('jobs').claim())[0]!.fail(new Error('why'), { dead: true });
    await broker.close();
    const again = (await opened({ clock }, dir)).queue('jobs');
    expect(await failureOf(() => again.result(id))).toMatchObject({
      code: 'ERR_MILLRACE_DEAD',
      reason: 'rejected',
      cause: { message: 'why' },
    });
  });

  it('goes on through a redrive that is asked for before it', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs');
    const job = await queue.enqueue(1);
    (await queue.claim())[0]!.fail('x', { dead: true });
    await queue.deadLetters.redrive();
    const result = job.result();
    (await queue.claim({ wait: 5000 }))[0]!.ack('second life');
    expect(await result).toBe('second life');
  });

  it('for a job that is cancelled or purged says so', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs');
    const [one, two] = await queue.enqueueMany([1, 2]);
    const cancelled = failureOf(() => one!.result());
    expect(await queue.cancel(one!.id)).toBe(true);
    expect((await cancelled).code).toBe('ERR_MILLRACE_CANCELLED');
    expect((await failureOf(() => one!.result())).code).toBe('ERR_MILLRACE_CANCELLED');
    (await queue.claim())[0]!.fail('x', { dead: true });
    await queue.deadLetters.purge();
    expect((await failureOf(() => two!.result())).code).toBe('ERR_MILLRACE_RESULT_EXPIRED');
  });

  it('for a job that never was, or ended too long ago, says so', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs');
    expect((await failureOf(() => queue.result(12_345))).code).toBe('ERR_MILLRACE_RESULT_EXPIRED');
    const early = await queue.enqueue(0);
    (await queue.claim())[0]!.ack('early');
    for (let round = 0; round < 17; round++) {
      await queue.enqueueMany(Array.from({ length: 1000 }, () => 1));
      for (let left = 1000; left > 0; ) {
        const leases = await queue.claim({ max: 1000, wait: 5000 });
        for (const lease of leases) lease.ack();
        left -= leases.length;
      }
    }
    await applied(broker);
    expect((await failureOf(() => early.result())).code).toBe('ERR_MILLRACE_RESULT_EXPIRED');
  });

  // User report 41: a wait that timed out told from a job that failed.
  it('that takes too long has its own code, and leaves the job alone', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs');
    const job = await queue.enqueue(1);
    const error = await failureOf(() => job.result({ timeout: 5 }));
    expect(error).toMatchObject({ code: 'ERR_MILLRACE_TIMEOUT', id: job.id });
    expect(await queue.get(job.id)).toMatchObject({ state: 'ready', attempt: 0 });
    const [lease] = await queue.claim();
    expect((await failureOf(() => job.result({ timeout: 0 }))).code).toBe('ERR_MILLRACE_TIMEOUT');
    expect(lease!.ack('r')).toBe(true);
    expect(await job.result({ timeout: 5000 })).toBe('r');
  });

  it('can be given up by a signal, alone', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs');
    const job = await queue.enqueue(1);
    const stop = new AbortController();
    const [given, other] = [failureOf(() => job.result({ signal: stop.signal })), job.result()];
    stop.abort(new Error('enough'));
    expect((await given).message).toBe('enough');
    expect((await failureOf(() => job.result({ signal: stop.signal }))).message).toBe('enough');
    expect((await failureOf(() => queue.run(1, { signal: stop.signal }))).message).toBe('enough');
    (await queue.claim())[0]!.ack('r');
    expect(await other).toBe('r');
  });

  it('is rejected when the broker closes', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs');
    const job = await queue.enqueue(1);
    const waits = [
      failureOf(() => job.result()),
      failureOf(() => queue.claim({ wait: 60_000 }).then(() => queue.claim({ wait: 60_000 }))),
    ];
    await applied(broker);
    await broker.close();
    for (const wait of waits) expect((await wait).code).toBe('ERR_MILLRACE_CLOSED');
    expect((await failureOf(() => job.result())).code).toBe('ERR_MILLRACE_CLOSED');
  });
});

describe('run', () => {
  it('resolves with the result, and rejects as the result does', async () => {
    const broker = await opened();
    const queue = broker.queue<number, number>('jobs', { attempts: 1 });
    queue.process((n) => {
      if (n < 0) throw new Error('negative');
      return Math.sqrt(n);
    });
    expect(await queue.run(16)).toBe(4);
    expect(await failureOf(() => queue.run(-1))).toMatchObject({
      code: 'ERR_MILLRACE_DEAD',
      cause: { message: 'negative' },
    });
    expect(await queue.run(9, { priority: 1, delay: 1 })).toBe(3);
  });
});
