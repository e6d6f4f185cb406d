/** Handler modules in worker threads: loading them, what a run may do to its thread, and what the others notice. */
import { fileURLToPath } from 'node:url';
import type { Broker, ErrorCode, ProcessOptions, Queue, QueueOptions, Worker } from 'millrace';
import { describe, expect, it } from 'vitest';
import { applied, failureOf, opened, soon, temporaryDirectory, until } from '../brokers.js';

const module = (name: string): URL => new URL(`./handlers/${name}`, import.meta.url);

type Deed = { readonly do: string } & Record<string, unknown>;
interface Scene {
  readonly broker: Broker;
  readonly queue: Queue<Deed, unknown>;
  readonly worker: Worker;
  readonly dir: string;
}

async function scene(options: ProcessOptions = {}, queueOptions: QueueOptions<Deed> = {}): Promise<Scene> {
  const dir = temporaryDirectory();
  const broker = await opened({}, dir);
  const queue = broker.queue<Deed, unknown>('jobs', { backoff: { base: 0 }, ...queueOptions });
  const worker = queue.process(module('kinds.mjs'), { threads: 1, ...options });
  await soon('the handlers are loaded', worker.ready);
  return { broker, queue, worker, dir };
}

describe('a handler module', () => {
  for (const name of ['plain.js', 'plain.mjs', 'plain.cjs', 'compiled.cjs']) {
    it(`may be ${name}, by URL or by path`, async () => {
      const broker = await opened();
      for (const [queueName, where] of [
        ['url', module(name)],
        ['path', fileURLToPath(module(name))],
      ] as const) {
        const queue = broker.queue<number, number>(queueName);
        const worker = queue.process(where, { threads: 1 });
        expect(await soon('the job runs', queue.run(21))).toBe(42);
        await worker.close();
      }
    });
  }

  it('may be a compiled TypeScript module', async () => {
    const broker = await opened();
    const queue = broker.queue<number, number>('jobs');
    queue.process(new URL('../../dist/test/programs/handler.js', import.meta.url), { threads: 2 });
    expect(await Promise.all([1, 2, 3, 4, 5].map((n) => queue.run(n)))).toEqual([2, 4, 6, 8, 10]);
  });

  it('that is not there is refused at once, and no job is charged', async () => {
    const broker = await opened();
    const queue = broker.queue<number, number>('jobs');
    const { id } = await queue.enqueue(1);
    for (const where of [module('missing.mjs'), '/no/such.js']) {
      expect(await failureOf(() => queue.process(where))).toMatchObject({ code: 'ERR_MILLRACE_HANDLER_NOT_FOUND' });
    }
    await applied(broker);
    expect(await queue.get(id)).toMatchObject({ state: 'ready', attempt: 0, crashes: 0 });
  });

  for (const [name, says] of [
    ['none.mjs', /default export/],
    ['broken.mjs', /the module’s own trouble/],
    ['many.mjs', /not a function/],
  ] as const) {
    it(`that cannot be used (${name}) is told, and no job is charged`, async () => {
      const broker = await opened();
      const errors: Error[] = [];
      broker.on('error', (error) => errors.push(error));
      const queue = broker.queue<number, number>('jobs');
      const { id } = await queue.enqueue(1);
      const worker = queue.process(module(name), { threads: 2 });
      const error = await soon(
        'it fails',
        failureOf(() => worker.ready),
      );
      expect(error.code).toBe('ERR_MILLRACE_HANDLER_NOT_FOUND' satisfies ErrorCode);
      expect(error.message).toMatch(says);
      await until('the broker tells', () => errors.length > 0);
      expect(await queue.get(id)).toMatchObject({ state: 'ready', attempt: 0, crashes: 0 });
      await soon('it closes', worker.close());
    });
  }

  it('may serve several queues by one fleet, each by its own options', async () => {
    const broker = await opened();
    const worker = broker.process(module('many.mjs'), { threads: 2 });
    await soon('the handlers are loaded', worker.ready);
    const double = broker.queue<number, number>('double');
    const fail = broker.queue<string>('fail', { attempts: 2, backoff: { base: 0 } });
    const bytes = broker.queue<Uint8Array, Uint8Array>('bytes', { codec: 'bytes' });
    expect(await Promise.all([double.run(2), double.run(3)])).toEqual([4, 6]);
    expect(await bytes.run(Uint8Array.of(1, 2, 3))).toEqual(Uint8Array.of(3, 2, 1));
    const error = await failureOf(() => fail.run('told to'));
    expect(error).toMatchObject({ code: 'ERR_MILLRACE_DEAD', reason: 'attempts', cause: { message: 'told to' } });
    expect(await failureOf(() => broker.process(module('plain.mjs')).ready)).toMatchObject({
      code: 'ERR_MILLRACE_HANDLER_NOT_FOUND',
    });
  });
});

describe('a run in a thread', () => {
  it('is told of its job', async () => {
    const { queue } = await scene();
    const job = await queue.enqueue({ do: 'job' }, { tenant: 't' });
    expect(await job.result()).toEqual({
      id: job.id,
      token: expect.any(Number),
      attempt: 1,
      tenant: 't',
      enqueuedAt: expect.any(Number),
      aborted: false,
      cancelled: false,
    });
  });

  it('that throws is retried, and its error kept as it was', async () => {
    const { queue } = await scene({}, { attempts: 2 });
    const error = await failureOf(() => queue.run({ do: 'throw', message: 'why' }));
    expect(error).toMatchObject({ code: 'ERR_MILLRACE_DEAD', cause: { name: 'RangeError', message: 'why' } });
    const [dead] = await queue.deadLetters.list();
    expect(dead).toMatchObject({ attempt: 2, crashes: 0, errors: [{ code: 'E_OWN' }, { code: 'E_OWN' }] });
    expect(dead!.errors[0]!.stack).toContain('kinds.mjs');
  });

  it('whose result cannot be stored has failed', async () => {
    const { queue } = await scene({}, { attempts: 1 });
    const error = await failureOf(() => queue.run({ do: 'bigint' }));
    expect(error).toMatchObject({ code: 'ERR_MILLRACE_DEAD', cause: { code: 'ERR_MILLRACE_PAYLOAD_INVALID' } });
  });

  it('may give itself back, or up', async () => {
    const { queue } = await scene({}, { attempts: 1 });
    expect(await queue.run({ do: 'retry', after: 20 })).toBe(1);
    const error = await failureOf(() => queue.run({ do: 'dead', message: 'no use' }));
    expect(error).toMatchObject({ code: 'ERR_MILLRACE_DEAD', reason: 'rejected', cause: { message: 'no use' } });
  });

  // User report 21: `process.exit()` in a worker is not noticed, and the next task goes to a zombie.
  for (const deed of [
    { do: 'exit', code: 7 },
    { do: 'stray', message: 'stray' },
    { do: 'rejects', message: 'rejected' },
  ]) {
    it(`that takes its thread down by ${deed.do} is charged a crash; the thread is replaced, the next job runs`, async () => {
      const { queue, worker } = await scene({}, { crashes: 2 });
      const job = await queue.enqueue(deed);
      const error = await soon(
        'it is dead',
        failureOf(() => job.result()),
      );
      expect(error).toMatchObject({ code: 'ERR_MILLRACE_DEAD', reason: 'crash' });
      if (deed.do === 'exit') expect((error.cause as Error).message).toContain('code 7');
      expect(await queue.get(job.id)).toMatchObject({ state: 'dead', crashes: 2, attempt: 0 });
      expect(await soon('the next job runs', queue.run({ do: 'return', value: 'next' }))).toBe('next');
      expect(worker.stats().threads).toBe(1);
    });
  }

  it('that takes its thread down does not touch its neighbour', async () => {
    const { queue } = await scene({ threads: 2 }, { crashes: 1 });
    const neighbour = queue.run({ do: 'wait', ms: 300, value: 'here' });
    const lost = failureOf(() => queue.run({ do: 'exit', code: 1 }));
    expect((await lost).reason).toBe('crash');
    expect(await neighbour).toBe('here');
  });

  it('that goes on past its timeout fails with that reason, and its thread is replaced', async () => {
    const { broker, queue } = await scene({ threads: 2, timeout: 100 }, { attempts: 1 });
    const neighbours = Promise.all([1, 2, 3].map((n) => queue.run({ do: 'wait', ms: 30, value: n })));
    const error = await soon(
      'it fails',
      failureOf(() => queue.run({ do: 'hang' })),
    );
    expect(error).toMatchObject({ code: 'ERR_MILLRACE_DEAD', reason: 'timeout' });
    expect(await neighbours).toEqual([1, 2, 3]);
    // Both threads are there again.
    const threads = await Promise.all([1, 2, 3, 4].map(() => queue.run({ do: 'spin', ms: 20 })));
    expect(threads).toHaveLength(4);
    expect(broker.stats()).toMatchObject({ dead: 1 });
  });

  it('that goes on past its timeout is found among several queues and several runs at once', async () => {
    const broker = await opened();
    const worker = broker.process(module('several.mjs'), { threads: 1, timeout: 100, concurrency: 2 });
    await soon('the handlers are loaded', worker.ready);
    const [hang, quick] = [broker.queue<string>('hang', { attempts: 1 }), broker.queue<number, number>('quick')];
    for (const how of ['asleep', 'busy']) {
      const error = await soon(
        `it fails ${how}`,
        failureOf(() => hang.run(how)),
      );
      expect(error).toMatchObject({ code: 'ERR_MILLRACE_DEAD', reason: 'timeout' });
      expect(await soon('the other queue is served', quick.run(1))).toBe(2);
    }
    // Neither of the two places of the queue is taken by a run that nobody waits for.
    const errors = await Promise.all(['asleep', 'asleep', 'asleep'].map((how) => failureOf(() => hang.run(how))));
    expect(errors.map(({ reason }) => reason)).toEqual(['timeout', 'timeout', 'timeout']);
  });

  it('may have a timeout of its own', async () => {
    const { queue } = await scene({}, { attempts: 1 });
    const error = await soon(
      'it fails',
      failureOf(() => queue.run({ do: 'hang' }, { timeout: 50 })),
    );
    expect(error).toMatchObject({ code: 'ERR_MILLRACE_DEAD', reason: 'timeout' });
    expect(await soon('the next job runs', queue.run({ do: 'return', value: 1 }))).toBe(1);
  });

  for (const deed of ['poll', 'signal']) {
    it(`that looks whether it was cancelled (${deed}) ends by itself, and its thread is used again`, async () => {
      const { queue, worker } = await scene({ grace: 20_000 });
      const thread = await queue.run({ do: 'thread' });
      const job = await queue.enqueue({ do: deed });
      await until('it runs', async () => (await queue.get(job.id))?.state === 'leased');
      expect(await queue.cancel(job.id)).toBe(true);
      expect(await soon('the thread is free', queue.run({ do: 'thread' }))).toBe(thread);
      expect(worker.stats()).toMatchObject({ running: 0, threads: 1 });
    });
  }

  it('that is cancelled and does not look loses its thread after the grace', async () => {
    const { queue } = await scene({ grace: 10 });
    const thread = await queue.run({ do: 'thread' });
    const job = await queue.enqueue({ do: 'hang' });
    await until('it runs', async () => (await queue.get(job.id))?.state === 'leased');
    expect(await queue.cancel(job.id)).toBe(true);
    expect(await soon('there is a thread', queue.run({ do: 'thread' }))).not.toBe(thread);
    expect(await queue.get(job.id)).toBeUndefined();
  });
});

describe('a fleet', () => {
  it('uses all its threads, and as many jobs at once in each as it is told', async () => {
    const { broker, queue, worker } = await scene({ threads: 2, concurrency: 3 });
    const jobs = await queue.enqueueMany(Array.from({ length: 9 }, () => ({ do: 'signal' })));
    await until('six run', () => worker.stats().running === 6);
    await applied(broker);
    expect(queue.counts()).toMatchObject({ leased: 6, ready: 3 });
    for (const { id } of jobs.slice(0, 3)) expect(await queue.cancel(id)).toBe(true);
    await until('three more run', () => queue.counts().leased === 6 && queue.counts().ready === 0);
    for (const { id } of jobs.slice(3)) await queue.cancel(id);
    await until('none runs', () => worker.stats().running === 0);
  });

  it('keeps count', async () => {
    const { queue, worker } = await scene({ threads: 2 }, { attempts: 1, crashes: 1 });
    await Promise.all(Array.from({ length: 20 }, (_, i) => queue.run({ do: 'return', value: i })));
    await failureOf(() => queue.run({ do: 'throw', message: 'x' }));
    await failureOf(() => queue.run({ do: 'exit', code: 1 }));
    await queue.run({ do: 'return' });
    await until('it counts', () => worker.stats().completed === 21 && worker.stats().running === 0);
    expect(worker.stats()).toMatchObject({ completed: 21, failed: 1, running: 0, threads: 2 });
  });

  it('pauses and resumes; what runs goes on', async () => {
    const { broker, queue, worker } = await scene({ threads: 2 });
    const running = queue.run({ do: 'wait', ms: 50, value: 'ran on' });
    await until('it runs', () => worker.stats().running === 1);
    worker.pause();
    expect(await running).toBe('ran on');
    const later = await queue.enqueue({ do: 'return', value: 'later' });
    await applied(broker);
    const { state } = (await queue.get(later.id))!;
    expect(state).toBe('ready');
    worker.resume();
    expect(await soon('it runs', later.result())).toBe('later');
  });

  it('that closes lets what runs end, and leaves the rest', async () => {
    const { queue, worker, broker } = await scene({ threads: 1 });
    const [first, second] = await queue.enqueueMany([
      { do: 'wait', ms: 100, value: 'first' },
      { do: 'return', value: 'second' },
    ]);
    await until('it runs', () => worker.stats().running === 1);
    const result = first!.result();
    await soon('it closes', worker.close());
    expect(await result).toBe('first');
    await applied(broker);
    expect(await queue.get(second!.id)).toMatchObject({ state: 'ready', attempt: 0 });
    await worker.close();
  });

  it('that closes waits no longer than it is told', async () => {
    const { queue, worker } = await scene({ threads: 1 }, { crashes: 5 });
    const { id } = await queue.enqueue({ do: 'hang' });
    await until('it runs', () => worker.stats().running === 1);
    await soon('it closes', worker.close({ timeout: 20 }));
    await until('the job is back', async () => (await queue.get(id))?.state === 'ready');
    expect(await queue.get(id)).toMatchObject({ crashes: 1, attempt: 0 });
  });

  it('closes with its broker', async () => {
    const { broker, queue, dir } = await scene({ threads: 2 });
    const jobs = await queue.enqueueMany([
      { do: 'wait', ms: 100, value: 1 },
      { do: 'wait', ms: 100, value: 2 },
      { do: 'return', value: 3 },
    ]);
    await until('two run', () => queue.counts().leased === 2);
    await soon('it closes', broker.close());
    const again = (await opened({}, dir)).queue('jobs');
    expect(again.counts()).toMatchObject({ ready: 1, done: 2 });
    expect(await again.get(jobs[2]!.id)).toMatchObject({ state: 'ready', attempt: 0 });
  });
});
