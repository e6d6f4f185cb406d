/** Topics: one publish, a job in every queue with a matching binding, all or none. */
import { describe, expect, it } from 'vitest';
import { applied, failureOf, opened, temporaryDirectory } from '../brokers.js';
import { attached } from '../threads.js';

describe('publish', () => {
  it('enqueues into every queue with a matching binding, once each', async () => {
    const broker = await opened();
    await broker.bind('orders.*.created', 'mail');
    await broker.bind('orders.#', 'audit');
    await broker.bind('#.created', 'audit');
    await broker.bind('users.#', 'other');
    const jobs = await broker.publish('orders.eu.created', { n: 1 }, { priority: 3, tenant: 'acme' });
    expect(jobs).toHaveLength(2);
    expect(new Set(jobs.map(({ id }) => id)).size).toBe(2);
    for (const name of ['mail', 'audit']) {
      const leases = await broker.queue(name).claim({ max: 10 });
      expect(leases).toHaveLength(1);
      expect(leases[0]).toMatchObject({ payload: { n: 1 }, tenant: 'acme' });
      expect(jobs.map(({ id }) => id)).toContain(leases[0]!.id);
      leases[0]!.ack(`by ${name}`);
    }
    expect((await Promise.all(jobs.map((job) => job.result()))).sort()).toEqual(['by audit', 'by mail']);
    expect(await broker.queue('other').claim()).toEqual([]);
  });

  it('puts all of its jobs into one batch, whatever else goes on', async () => {
    const broker = await opened();
    const names = Array.from({ length: 20 }, (_, i) => `q${i}`);
    for (const name of names) await broker.bind('t', name);
    const before = broker.stats();
    await Promise.all(Array.from({ length: 50 }, (_, n) => broker.publish('t', n)));
    const { records, batches } = broker.stats();
    expect(records - before.records).toBe(20 * 50);
    expect(batches - before.batches).toBeLessThanOrEqual(50);
    await applied(broker);
    for (const name of names) expect(broker.queue(name).counts().ready).toBe(50);
  });

  it('with no matching binding gives no job, and is counted', async () => {
    const broker = await opened();
    await broker.bind('a.b', 'q');
    expect(await broker.publish('a.c', 1)).toEqual([]);
    expect(await broker.publish('a', 1)).toEqual([]);
    expect(broker.stats()).toMatchObject({ unrouted: 2, enqueued: 0 });
  });

  it('is refused for all queues when one of them refuses it', async () => {
    const broker = await opened();
    const schema = {
      '~standard': {
        version: 1 as const,
        vendor: 'test',
        validate: (value: unknown) =>
          typeof value === 'number' ? { value } : { issues: [{ message: 'not a number' }] },
      },
    };
    broker.queue<number>('numbers', { schema: schema as never });
    broker.queue<Uint8Array>('bytes', { codec: 'bytes' });
    for (const name of ['anything', 'numbers']) await broker.bind('t', name);
    expect((await failureOf(() => broker.publish('t', 'text'))).code).toBe('ERR_MILLRACE_PAYLOAD_INVALID');
    await broker.bind('u', 'anything');
    await broker.bind('u', 'bytes');
    expect((await failureOf(() => broker.publish('u', 'text'))).code).toBe('ERR_MILLRACE_PAYLOAD_INVALID');
    expect((await failureOf(() => broker.publish('t', 1, { key: 'k' }))).code).toBe('ERR_MILLRACE_OPTION_INVALID');
    expect((await failureOf(() => broker.publish('t', 1, { delay: -1 }))).code).toBe('ERR_MILLRACE_OPTION_INVALID');
    expect(broker.queue('anything').counts().ready).toBe(0);
    expect(await broker.publish('t', 5)).toHaveLength(2);
  });

  it.each(['', '.', 'a..b', '.a', 'a.', 'a.*', '#', 'x*', 'a\u0000b', 'a'.repeat(256), '\ud800', 7, null])(
    'refuses the topic %j',
    async (topic) => {
      const broker = await opened();
      const error = await failureOf(() => broker.publish(topic as string, 1));
      expect(error).toMatchObject({ code: 'ERR_MILLRACE_NAME_INVALID', topic });
    },
  );

  it.each(['', 'a..b', 'a*', '#b.c', '**', '\n', 'é'.repeat(128), undefined])(
    'refuses the pattern %j',
    async (pattern) => {
      const broker = await opened();
      const error = await failureOf(() => broker.bind(pattern as string, 'q'));
      expect(error).toMatchObject({ code: 'ERR_MILLRACE_NAME_INVALID', pattern });
      expect((await failureOf(() => broker.bind('a', ''))).code).toBe('ERR_MILLRACE_NAME_INVALID');
    },
  );
});

describe('bindings', () => {
  it('hold from the moment the bind resolves until the unbind has', async () => {
    const broker = await opened();
    for (let round = 0; round < 20; round++) {
      await broker.bind('a.#', 'q');
      await broker.bind('a.#', 'q');
      expect(await broker.publish('a.b', round)).toHaveLength(1);
      await broker.unbind('a.#', 'q');
      expect(await broker.publish('a.b', round)).toHaveLength(0);
      await broker.unbind('a.#', 'q');
    }
  });

  it('are the same for every thread', async () => {
    const broker = await opened();
    const thread = await attached(broker);
    await broker.bind('t', 'q');
    expect(await thread.tell('publish', 't', 1)).toBe(1);
    await thread.tell('bind', 'u', 'q');
    expect(await broker.publish('u', 2)).toHaveLength(1);
    await broker.unbind('t', 'q');
    expect(await thread.tell('publish', 't', 3)).toBe(0);
  });

  it('survive a restart and compactions, and so does their end', async () => {
    const dir = temporaryDirectory();
    const options = { segmentBytes: 8192 };
    let broker = await opened(options, dir);
    await broker.bind('kept.*', 'q');
    await broker.bind('gone', 'q');
    await broker.bind('back', 'q');
    await broker.unbind('gone', 'q');
    await broker.unbind('back', 'q');
    for (let life = 0; life < 4; life++) {
      const job = await broker.queue('fill').enqueue('x'.repeat(9000));
      await broker.compact();
      if (life === 1) await broker.bind('back', 'q');
      await broker.queue('fill').cancel(job.id);
      await broker.compact();
      await broker.close();
      broker = await opened(options, dir);
      expect(await broker.publish('kept.1', 1)).toHaveLength(1);
      expect(await broker.publish('gone', 1)).toHaveLength(0);
      expect(await broker.publish('back', 1)).toHaveLength(life < 1 ? 0 : 1);
    }
  });

  it('and pauses are as they were last, however compactions come between', async () => {
    const dir = temporaryDirectory();
    let broker = await opened({ segmentBytes: 8192 }, dir);
    for (let round = 0; round < 60; round++) {
      const queue = broker.queue('q', { attempts: 1 + (round % 7) });
      await Promise.all([broker.bind('t', 'q'), queue.pause(), broker.queue('fill').enqueue('x'.repeat(5000))]);
      const bound = round % 2 === 0;
      await Promise.all([broker.compact(), bound ? queue.resume() : broker.unbind('t', 'q'), broker.compact()]);
      const look = async (): Promise<[number, number]> => {
        await queue.enqueue(round);
        return [(await broker.publish('t', round)).length, broker.queue('q').tryClaim({ max: 9 }).length];
      };
      const [published, claimed] = await look();
      expect({ round, published, paused: claimed === 0 }).toEqual({ round, published: bound ? 1 : 0, paused: !bound });
      if (round % 10 < 2) {
        await broker.close();
        broker = await opened({ segmentBytes: 8192 }, dir);
        expect({ round, jobs: (await broker.publish('t', round)).length }).toEqual({ round, jobs: bound ? 1 : 0 });
        expect({ round, paused: broker.queue('q').tryClaim().length === 0 }).toEqual({ round, paused: !bound });
      }
    }
  });
});
