/** When a process that has a broker ends, and what a broker that is closed leaves behind: nothing. */
import { readdirSync, readFileSync, readlinkSync, statSync } from 'node:fs';
import { attach, open } from 'millrace';
import { describe, expect, it } from 'vitest';
import { applied, failureOf, opened, soon, temporaryDirectory, until } from '../brokers.js';
import { Child } from '../children.js';
import { attached } from '../threads.js';

async function played(
  name: string,
  dir = temporaryDirectory(),
): Promise<{ end: number | string; lines: string[]; dir: string }> {
  const child = new Child('scene', [name, dir]);
  const end = await child.end();
  return { end, lines: child.stdout.trim().split('\n'), dir };
}

async function ready(dir: string): Promise<number> {
  const broker = await opened({}, dir);
  return broker.queue('jobs').counts().ready;
}

describe('a process', () => {
  for (const [name, lines, jobs] of [
    ['nothing pending', ['enqueued'], 1],
    ['a listener', ['listening'], 1],
    ['a lease with a signal', ['held'], 1],
  ] as const) {
    it(`with ${name} ends by itself`, async () => {
      const { end, lines: said, dir } = await played(name);
      expect({ end, said }).toEqual({ end: 0, said: lines });
      expect(await ready(dir)).toBe(jobs);
    });
  }

  for (const [name, lines, jobs] of [
    ['a pending enqueue', ['not waited for', 'durable'], 1],
    ['a pending enqueue of many', ['durable'], 5000],
    ['a pending ask', ['told undefined'], 0],
    ['a claim that waits', ['claimed late'], 0],
    ['a worker', ['ran late', 'closed'], 0],
  ] as const) {
    it(`with ${name} does not end before it is answered`, async () => {
      const { end, lines: said, dir } = await played(name);
      expect({ end, said }).toEqual({ end: 0, said: lines });
      expect(await ready(dir)).toBe(jobs);
    });
  }

  it('that ends by itself does not leave behind what nobody awaited', async () => {
    const ack = await played('an ack that is not waited for');
    expect(ack).toMatchObject({ end: 0, lines: ['acked'] });
    expect(await ready(ack.dir)).toBe(0);
    const jobs = await played('a job that is not waited for');
    expect(jobs).toMatchObject({ end: 0, lines: ['submitted'] });
    expect(await ready(jobs.dir)).toBe(3);
    const thread = await played('a thread’s ack that is not waited for');
    expect(thread.end).toBe(0);
    expect(await ready(thread.dir)).toBe(0);
  });

  it('whose broker is closed has no thread, handle or timer of it, and ends', async () => {
    expect((await played('closed')).lines).toEqual(['left: nothing']);
    expect((await played('closed with a fleet and threads')).lines).toEqual(['result 42', 'left: nothing']);
  });

  it('may close twice and open again', async () => {
    expect(await played('closed twice, opened again')).toMatchObject({ end: 0, lines: ['ready'] });
  });

  it('never waits on its main thread', async () => {
    expect(await played('the main thread may not wait')).toMatchObject({ end: 0, lines: ['never waited'] });
  });

  it('that exits or throws in the middle ends at once, and keeps what it was told', async () => {
    const exit = await played('process.exit in the middle');
    expect(exit).toMatchObject({ end: 5, lines: ['exits'] });
    expect(await ready(exit.dir)).toBeGreaterThanOrEqual(3);
    const thrown = await played('an exception in the middle');
    expect(thrown.end).toBe(1);
    expect(await ready(thrown.dir)).toBe(1);
  });
});

describe('a closed broker', () => {
  it('leaves no thread, file or timer in the process', async () => {
    const threads = (): number => readdirSync('/proc/self/task').length;
    const files = (dir: string): string[] =>
      readdirSync('/proc/self/fd').flatMap((fd) => {
        try {
          const path = readlinkSync(`/proc/self/fd/${fd}`);
          return path.startsWith(dir) ? [path] : [];
        } catch {
          return [];
        }
      });
    const dir = temporaryDirectory();
    const before = { threads: threads(), timers: process.getActiveResourcesInfo().length };
    for (let round = 0; round < 3; round++) {
      const broker = await open(dir);
      await broker.queue('jobs').enqueue(1);
      expect(threads()).toBeGreaterThanOrEqual(before.threads + 2);
      expect(files(dir).length).toBeGreaterThan(0);
      await broker.close();
      expect(files(dir)).toEqual([]);
      await until('its threads are gone', () => threads() <= before.threads);
    }
    expect(process.getActiveResourcesInfo().length).toBeLessThanOrEqual(before.timers);
    const { dev, ino } = statSync(dir);
    expect(readFileSync('/proc/self/net/unix', 'utf8')).not.toContain(`millrace-${dev}-${ino}`);
  });

  it('refuses everything with ERR_MILLRACE_CLOSED, on every thread', async () => {
    const broker = await opened();
    const queue = broker.queue<number>('jobs');
    const thread = await attached(broker);
    await queue.enqueueMany([1, 2, 3]);
    const [lease] = await queue.claim();
    const [theirs] = await thread.claim('jobs');
    const { handle } = broker;
    await broker.close();
    for (const act of [
      () => queue.enqueue(1),
      () => queue.enqueueMany([1]),
      () => queue.tryEnqueue(1),
      () => queue.run(1),
      () => queue.enqueue(1, { key: 'k' }),
      () => queue.claim(),
      () => queue.claim({ wait: 1000 }),
      () => queue.tryClaim(),
      () => queue.process(() => 1),
      () => queue.get(1),
      () => queue.cancel(1),
      () => queue.result(1),
      () => queue.counts(),
      () => queue.oldestReadyAge(),
      () => queue.pause(),
      () => queue.resume(),
      () => queue.deadLetters.size,
      () => queue.deadLetters.list(),
      () => queue.deadLetters.redrive(),
      () => queue.deadLetters.purge(),
      () => broker.queue('jobs'),
      () => broker.queue('others'),
      () => broker.process([]),
      () => lease!.ack(),
      () => lease!.ackDurably(),
      () => lease!.fail(),
      () => lease!.extend(1000),
      () => lease!.giveBack(),
      () => attach(handle),
      () => thread.tell('ack', theirs!),
      () => thread.enqueue('jobs', 1),
      () => thread.claim('jobs'),
      () => thread.get('jobs', 1),
    ]) {
      const error = await failureOf(act).catch(({ message }: Error) => ({ code: message }));
      expect({ code: error.code, act: String(act) }).toEqual({ code: 'ERR_MILLRACE_CLOSED', act: String(act) });
    }
    expect(lease!.held).toBe(false);
    expect(lease!.signal.aborted).toBe(true);
    expect(broker.stats()).toMatchObject({ enqueued: 3 });
    await broker.close();
  });

  it('has written what was submitted before it closed', async () => {
    const dir = temporaryDirectory();
    const broker = await opened({}, dir);
    const queue = broker.queue<number>('jobs');
    await queue.enqueueMany(Array.from({ length: 200 }, (_, i) => i));
    const leases = [];
    while (leases.length < 100) leases.push(...(await queue.claim({ max: 100 - leases.length, wait: 5000 })));
    for (const lease of leases) lease.ack();
    const jobs = [queue.tryEnqueue(1), queue.tryEnqueue(2)];
    expect(jobs.every((job) => job !== undefined)).toBe(true);
    await broker.close();
    expect((await opened({}, dir)).queue('jobs').counts().ready).toBe(102);
  });

  it('gives back what was leased and not ended, without counting it', async () => {
    const dir = temporaryDirectory();
    const broker = await opened({}, dir);
    await broker.queue('jobs').enqueueMany([1, 2, 3]);
    expect(await broker.queue('jobs').claim({ max: 2 })).toHaveLength(2);
    await broker.close();
    const queue = (await opened({}, dir)).queue('jobs');
    expect(queue.counts().ready).toBe(3);
    expect((await queue.claim({ max: 3 })).map(({ attempt }) => attempt)).toEqual([1, 1, 1]);
  });

  it('lets running handlers end, starts no others, and waits no longer than it is told', async () => {
    const dir = temporaryDirectory();
    const broker = await opened({}, dir);
    const queue = broker.queue<string, string>('jobs');
    const started: string[] = [];
    const finish = new Map<string, () => void>();
    queue.process(
      (payload) =>
        new Promise<string>((resolve) => {
          started.push(payload);
          finish.set(payload, () => resolve(payload));
        }),
      { concurrency: 2 },
    );
    const jobs = await queue.enqueueMany(['a', 'b', 'c']);
    await until('two have started', () => started.length === 2);
    const result = jobs[0]!.result();
    const closing = broker.close({ timeout: 200 });
    finish.get('a')!();
    expect(await result).toBe('a');
    await soon('it closes', closing);
    expect(started).toEqual(['a', 'b']);
    const again = (await opened({}, dir)).queue('jobs');
    expect((await again.claim({ max: 5 })).map(({ payload }) => payload)).toEqual(['b', 'c']);
  });

  it('is closed for attached threads, which go on living', async () => {
    const broker = await opened();
    const thread = await attached(broker);
    await thread.tell('listen', 'completed', 'dead');
    const waiting = failureOf(() => thread.claim('jobs', { wait: Number.POSITIVE_INFINITY }));
    await applied(broker);
    await broker.close();
    expect((await waiting).code).toBe('ERR_MILLRACE_CLOSED');
    expect((await failureOf(() => thread.enqueue('jobs', 1))).code).toBe('ERR_MILLRACE_CLOSED');
    await thread.tell('close');
  });

  it('that was attached is closed for its own thread alone', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs');
    const [one, two] = [await attached(broker), await attached(broker)];
    await queue.enqueueMany([1, 2]);
    const [lease] = await one.claim('jobs');
    await one.tell('close');
    expect((await failureOf(() => one.claim('jobs'))).code).toBe('ERR_MILLRACE_CLOSED');
    expect((await failureOf(() => one.tell('ack', lease!))).code).toBe('ERR_MILLRACE_CLOSED');
    await until('its lease is given back', () => queue.counts().ready === 2);
    const claimed = [...(await two.claim('jobs', { wait: 5000 })), ...(await two.claim('jobs', { wait: 5000 }))];
    expect(claimed.map(({ attempt }) => attempt)).toEqual([1, 1]);
  });
});

describe('a directory', () => {
  it('has one broker: in this process, whoever asks', async () => {
    const dir = temporaryDirectory();
    const broker = await opened({}, dir);
    const error = await failureOf(() => open(dir));
    expect(error).toMatchObject({ code: 'ERR_MILLRACE_LOCKED', pid: process.pid });
    expect(error.message).toMatch(/^cannot open /);
    await broker.queue('jobs').enqueue(1);
    await broker.close();
    const races = await Promise.allSettled(Array.from({ length: 5 }, () => open(dir)));
    const won = races.filter((race) => race.status === 'fulfilled');
    expect(won).toHaveLength(1);
    await won[0]!.value.close();
  });

  it('has one broker: in another process too, and none a moment after that is killed', async () => {
    const dir = temporaryDirectory();
    const holder = new Child('hold', [dir]);
    await holder.message((word) => word === 'open');
    expect(await failureOf(() => open(dir))).toMatchObject({ code: 'ERR_MILLRACE_LOCKED', pid: holder.process.pid });
    await holder.kill();
    const broker = await opened({}, dir);
    expect(broker.queue('jobs').counts().ready).toBe(1);
    const other = new Child('hold', [dir]);
    const refused = await other.message<{ code: string; pid: number }>((word) => typeof word === 'object');
    expect(refused).toEqual({ code: 'ERR_MILLRACE_LOCKED', pid: process.pid });
  });
});
