/** Function handlers on the thread that calls: how many at once, how a run ends, how a worker stops. */
import { Dead, defineQueue, handle, Retry, type RunningJob } from 'millrace';
import { describe, expect, it } from 'vitest';
import { applied, failureOf, opened, soon, timed, until } from '../brokers.js';

const IMMEDIATELY = { backoff: { base: 0 } };

describe('a function handler', () => {
  it('gets payload and job, and what it returns is the result', async () => {
    const broker = await opened();
    const queue = broker.queue<{ n: number }, string>('jobs');
    let seen: RunningJob | undefined;
    queue.process((payload, job) => {
      seen = job;
      return `got ${payload.n}`;
    });
    const job = await queue.enqueue({ n: 1 }, { tenant: 't' });
    expect(await job.result()).toBe('got 1');
    expect(seen).toMatchObject({ id: job.id, attempt: 1, tenant: 't' });
    expect(seen!.token).toBeGreaterThan(0);
    expect(seen!.signal.aborted).toBe(false);
  });

  // User report 35: at full concurrency further jobs fail instead of waiting.
  it('is run on as many jobs at once as it is told, and the others wait', async () => {
    const broker = await opened();
    const queue = broker.queue<number, number>('jobs');
    const open: (() => void)[] = [];
    let most = 0;
    let now = 0;
    const worker = queue.process(
      async (n) => {
        most = Math.max(most, ++now);
        await new Promise<void>((resolve) => open.push(resolve));
        now--;
        return n;
      },
      { concurrency: 3 },
    );
    const jobs = await queue.enqueueMany([1, 2, 3, 4, 5, 6, 7]);
    const results = Promise.all(jobs.map((job) => job.result()));
    await until('three run', () => open.length === 3);
    await applied(broker);
    expect(worker.stats()).toMatchObject({ running: 3, threads: 0 });
    expect(queue.counts()).toMatchObject({ leased: 3, ready: 4 });
    for (let done = 0; done < 7; done++) {
      await until('another runs', () => open.length > 0);
      open.shift()!();
    }
    expect(await results).toEqual([1, 2, 3, 4, 5, 6, 7]);
    expect(most).toBe(3);
    expect(worker.stats()).toMatchObject({ running: 0, completed: 7, failed: 0 });
  });

  it('that throws, anything, synchronously or later, has failed that run', async () => {
    const broker = await opened();
    const queue = broker.queue<number, string>('jobs', { ...IMMEDIATELY, attempts: 5 });
    const thrown = [new Error('sync'), 'text', undefined, Object.create(null) as object];
    const worker = queue.process((_, { attempt }) => {
      if (attempt % 2 === 1) throw thrown[attempt - 1];
      return attempt > 4 ? 'done' : Promise.reject(thrown[attempt - 1]);
    });
    const job = await queue.enqueue(1);
    const error = await soon(
      'it is dead',
      failureOf(() => job.result()),
    );
    expect(error).toMatchObject({ code: 'ERR_MILLRACE_DEAD', reason: 'attempts' });
    expect(worker.stats()).toMatchObject({ failed: 5, completed: 0, running: 0 });
  });

  it('may give its job back or up', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue<string, number>('jobs', { attempts: 1 });
    let runs = 0;
    queue.process((payload, { attempt }) => {
      if (payload === 'hopeless') throw new Dead('no use');
      if (++runs < 3) throw new Retry({ after: 5000 });
      return attempt;
    });
    const job = await queue.enqueue('later');
    for (let round = 1; round < 3; round++) {
      await until('it is given back', () => queue.counts().delayed === 1);
      expect((await queue.get(job.id))!.runAt).toBe(clock.wallMs() + 5000);
      clock.advance(5000);
      await until('it runs again', () => runs > round);
    }
    expect(await job.result()).toBe(1);
    const error = await failureOf(() => queue.run('hopeless'));
    expect(error).toMatchObject({ code: 'ERR_MILLRACE_DEAD', reason: 'rejected', cause: { message: 'no use' } });
    expect(() => new Retry({ after: Number.NaN })).toThrow(/after/);
  });

  it('past its timeout has failed with that reason; its signal aborts, and what it returns late is nothing', async () => {
    const broker = await opened();
    const queue = broker.queue<number, string>('jobs', { attempts: 1 });
    let late: (() => void) | undefined;
    let job: RunningJob | undefined;
    queue.process(
      async (_, running) => {
        job = running;
        await new Promise<void>((resolve) => {
          late = resolve;
        });
        return 'too late';
      },
      { timeout: 30, concurrency: 2 },
    );
    const error = await soon(
      'it fails',
      failureOf(() => queue.run(1)),
    );
    expect(error).toMatchObject({ code: 'ERR_MILLRACE_DEAD', reason: 'timeout' });
    expect(job!.cancelled()).toBe(true);
    expect(job!.signal.aborted).toBe(true);
    late!();
    await applied(broker);
    expect(queue.counts()).toEqual({ ready: 0, delayed: 0, leased: 0, dead: 1, done: 0 });
  });

  it('whose payload its codec cannot read fails that run and is not called', async () => {
    const broker = await opened();
    let calls = 0;
    const good = { encode: (n: number) => Uint8Array.of(n), decode: (bytes: Uint8Array) => bytes[0]! };
    const queue = broker.queue<number, number>('jobs', {
      attempts: 1,
      codec: {
        ...good,
        decode: (bytes) => {
          if (bytes[0] === 13) throw new Error('unlucky');
          return good.decode(bytes);
        },
      },
    });
    queue.process((n) => {
      calls++;
      return n;
    });
    const [bad, fine] = await queue.enqueueMany([13, 7]);
    expect(await fine!.result()).toBe(7);
    expect(await failureOf(() => bad!.result())).toMatchObject({
      code: 'ERR_MILLRACE_DEAD',
      cause: { code: 'ERR_MILLRACE_PAYLOAD_INVALID' },
    });
    expect(calls).toBe(1);
  });

  it('is served fairly beside another queue’s, and both beside the event loop', async () => {
    const broker = await opened();
    const [one, two] = [broker.queue<number>('one'), broker.queue<number>('two')];
    await one.enqueueMany(Array.from({ length: 5000 }, (_, i) => i));
    const order: string[] = [];
    one.process(() => void order.push('one'));
    two.process(() => void order.push('two'));
    const result = two.run(1);
    await result;
    expect(order.filter((name) => name === 'one').length).toBeLessThan(5000);
  });
});

describe('a worker', () => {
  it('pauses, resumes and closes', async () => {
    const broker = await opened();
    const queue = broker.queue<number, number>('jobs');
    const worker = queue.process((n) => n);
    await worker.ready;
    expect(await queue.run(1)).toBe(1);
    worker.pause();
    const job = await queue.enqueue(2);
    await applied(broker);
    expect(await queue.get(job.id)).toMatchObject({ state: 'ready' });
    worker.resume();
    worker.resume();
    expect(await job.result()).toBe(2);
    await worker.close();
    worker.resume();
    const left = await queue.enqueue(3);
    await applied(broker);
    expect(await queue.get(left.id)).toMatchObject({ state: 'ready' });
    expect(worker.stats()).toMatchObject({ completed: 2, running: 0 });
  });

  it('that closes waits for what runs, and no longer than it is told', async () => {
    const broker = await opened();
    const queue = broker.queue<number, string>('jobs');
    const finish: (() => void)[] = [];
    const start = () => queue.process(() => new Promise<string>((resolve) => finish.push(() => resolve('ended'))));
    const first = start();
    const job = await queue.enqueue(1);
    await until('it runs', () => finish.length === 1);
    let closed = false;
    const closing = first.close().then(() => {
      closed = true;
    });
    await applied(broker);
    expect(closed).toBe(false);
    finish[0]!();
    await soon('it closes', closing);
    expect(await job.result()).toBe('ended');
    const second = start();
    await queue.enqueue(2);
    await until('it runs', () => finish.length === 2);
    await soon('it closes', second.close({ timeout: 10 }));
  });

  it('of several bound handlers serves each queue by its own', async () => {
    const broker = await opened();
    const double = defineQueue<number, number>('double');
    const shout = defineQueue<string, string>('shout', { priority: 3 });
    const worker = broker.process([handle(double, (n) => n * 2), handle(shout, (text) => text.toUpperCase())], {
      concurrency: 2,
    });
    await worker.ready;
    expect(await broker.queue(double).run(4)).toBe(8);
    expect(await broker.queue(shout).run('a')).toBe('A');
    await until('both are counted', () => worker.stats().completed === 2);
    worker.pause();
    const job = await broker.queue(shout).enqueue('b');
    expect(await broker.queue(shout).get(job.id)).toMatchObject({ state: 'ready', priority: 3 });
    worker.resume();
    expect(await job.result()).toBe('B');
    await worker.close();
  });

  it('of two on one queue each takes what the other has no room for', async () => {
    const broker = await opened();
    const queue = broker.queue<number, string>('jobs');
    const finish: (() => void)[] = [];
    queue.process(() => new Promise<string>((resolve) => finish.push(() => resolve('one'))));
    queue.process(() => new Promise<string>((resolve) => finish.push(() => resolve('two'))));
    const jobs = await queue.enqueueMany([1, 2, 3]);
    await until('both run', () => finish.length === 2);
    for (const end of finish.splice(0)) end();
    await until('the last runs', () => finish.length === 1);
    finish[0]!();
    expect(new Set(await Promise.all(jobs.map((job) => job.result())))).toEqual(new Set(['one', 'two']));
  });
});
