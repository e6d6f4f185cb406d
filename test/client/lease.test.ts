/** Leases: one at a time, fenced by tokens, lost exactly once, and stale for ever after. */
import type { Lease } from 'millrace';
import { describe, expect, it } from 'vitest';
import { applied, failureOf, opened, soon, taken, temporaryDirectory, timed, until } from '../brokers.js';
import { attached } from '../threads.js';

const IMMEDIATELY = { backoff: { base: 0 } };

/** Everything a stale lease must not be able to do. */
async function expectStale(lease: Lease): Promise<void> {
  expect(lease.held).toBe(false);
  expect(lease.ack('late')).toBe(false);
  expect(await lease.ackDurably('late')).toBe(false);
  expect(lease.fail(new Error('late'))).toBe(false);
  expect(lease.fail(new Error('late'), { dead: true })).toBe(false);
  expect(lease.giveBack()).toBe(false);
  expect(lease.end(new Error('late'), 'timeout', true)).toBe(false);
  expect(lease.extend(1000)).toBe(false);
}

describe('a stale lease', () => {
  it('that was acked does nothing', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs');
    const job = await queue.enqueue(1);
    const [lease] = await queue.claim();
    expect(lease!.ack('first')).toBe(true);
    await expectStale(lease!);
    expect(await job.result()).toBe('first');
    expect(queue.counts()).toEqual({ ready: 0, delayed: 0, leased: 0, dead: 0, done: 1 });
  });

  it('that was failed does nothing', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs', IMMEDIATELY);
    await queue.enqueue(1);
    const [lease] = await queue.claim();
    expect(lease!.fail(new Error('once'))).toBe(true);
    await expectStale(lease!);
    const [second] = await queue.claim({ wait: 5000 });
    expect(second!.attempt).toBe(2);
    expect((await queue.get(second!.id))!.errors.map(({ message }) => message)).toEqual(['once']);
  });

  it('that expired does nothing, before and after its job is granted again', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue('jobs', { ...IMMEDIATELY, visibility: 1000 });
    const job = await queue.enqueue(1);
    const [first] = await queue.claim();
    clock.advance(1000);
    await until('the lease has expired', () => !first!.held);
    await expectStale(first!);
    const [second] = await queue.claim({ wait: 5000 });
    expect(second).toMatchObject({ id: first!.id, attempt: 2 });
    expect(second!.token).toBeGreaterThan(first!.token);
    await expectStale(first!);
    expect(second!.held).toBe(true);
    expect(second!.ack('second')).toBe(true);
    expect(await job.result()).toBe('second');
    await expectStale(first!);
    expect(queue.counts().done).toBe(1);
  });

  it('whose job was cancelled does nothing', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs');
    const { id } = await queue.enqueue(1);
    const [lease] = await queue.claim();
    const { signal } = lease!;
    expect(lease!.signal).toBe(signal);
    expect(await queue.cancel(id)).toBe(true);
    await expectStale(lease!);
    await until('its signal aborts', () => signal.aborted);
    expect(await queue.get(id)).toBeUndefined();
    expect(queue.counts()).toEqual({ ready: 0, delayed: 0, leased: 0, dead: 0, done: 0 });
  });

  it('does nothing after a restart, when its job runs again under a higher token', async () => {
    const dir = temporaryDirectory();
    const before = await opened({}, dir);
    await before.queue('jobs').enqueue(1);
    const [old] = await before.queue('jobs').claim();
    await before.close();
    expect((await failureOf(() => old!.ack('late'))).code).toBe('ERR_MILLRACE_CLOSED');
    const after = await opened({}, dir);
    const queue = after.queue('jobs');
    const [lease] = await queue.claim();
    expect(lease!.id).toBe(old!.id);
    expect(lease!.token).toBeGreaterThan(old!.token);
    for (const act of [() => old!.ack('late'), () => old!.fail('late')]) {
      expect((await failureOf(act)).code).toBe('ERR_MILLRACE_CLOSED');
    }
    expect(lease!.ack('right')).toBe(true);
    expect(await queue.result(lease!.id)).toBe('right');
  });

  it('does nothing when its job was granted again on another thread', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue('jobs', { ...IMMEDIATELY, visibility: 1000 });
    const job = await queue.enqueue('p');
    const thread = await attached(broker);
    await thread.tell('queue', 'jobs', { ...IMMEDIATELY, visibility: 1000 });
    const [mine] = await queue.claim();
    clock.advance(1000);
    const [theirs] = await thread.claim('jobs', { wait: 5000 });
    expect(theirs).toMatchObject({ id: mine!.id, attempt: 2, payload: 'p' });
    expect(theirs!.token).toBeGreaterThan(mine!.token);
    await expectStale(mine!);
    clock.advance(1000);
    const [again] = await queue.claim({ wait: 5000 });
    expect(again!.token).toBeGreaterThan(theirs!.token);
    expect(await thread.tell('ack', theirs!, 'late')).toBe(false);
    expect(await thread.tell('fail', theirs!, 'late')).toBe(false);
    expect(await thread.tell('extend', theirs!, 5000)).toBe(false);
    await expectStale(mine!);
    expect(again!.ack('third')).toBe(true);
    expect(await job.result()).toBe('third');
  });

  it('does not touch the job that has its row now', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue('jobs', { visibility: 1000, attempts: 1 });
    const stale: Lease[] = [];
    // More rows than rest before they are used again, so that rows are.
    for (let round = 0; round < 4; round++) {
      await queue.enqueueMany(Array.from({ length: 600 }, (_, i) => i));
      stale.push(...(await taken(queue, 600)));
      clock.advance(1000);
      await until('they have expired', () => queue.counts().dead === 600);
      await queue.deadLetters.purge();
    }
    await queue.enqueueMany(Array.from({ length: 600 }, (_, i) => i));
    const held = await taken(queue, 600);
    const rows = new Set(stale.map(({ row }) => row));
    expect(held.some(({ row }) => rows.has(row))).toBe(true);
    for (const lease of stale) expect([lease.ack(), lease.fail(), lease.extend(9)]).toEqual([false, false, false]);
    expect(held.every((lease) => lease.held)).toBe(true);
  });
});

describe('a token', () => {
  it('rises with every lease of a job, across threads and restarts', async () => {
    const dir = temporaryDirectory();
    const tokens: number[] = [];
    let id: number | undefined;
    for (let run = 0; run < 3; run++) {
      const broker = await opened({}, dir);
      const queue = broker.queue('jobs', { ...IMMEDIATELY, attempts: 100 });
      id ??= (await queue.enqueue(1)).id;
      const thread = await attached(broker);
      await thread.tell('queue', 'jobs', IMMEDIATELY);
      for (let round = 0; round < 5; round++) {
        const [mine] = await queue.claim({ wait: 5000 });
        expect(mine!.id).toBe(id);
        tokens.push(mine!.token);
        mine!.fail('again');
        const [theirs] = await thread.claim('jobs', { wait: 5000 });
        tokens.push(theirs!.token);
        await thread.tell('fail', theirs!, 'again');
      }
      const [last] = await queue.claim({ wait: 5000 });
      tokens.push(last!.token);
      last!.giveBack();
      await broker.close();
    }
    expect(tokens).toHaveLength(33);
    expect(tokens.every((token, i) => Number.isSafeInteger(token) && (i === 0 || token > tokens[i - 1]!))).toBe(true);
  });

  it('rises for a job that is redriven after a restart', async () => {
    const dir = temporaryDirectory();
    const before = await opened({}, dir);
    await before.queue('jobs', { attempts: 1 }).enqueue(1);
    const [first] = await before.queue('jobs').claim();
    first!.fail('dead');
    await before.close();
    const after = await opened({}, dir);
    expect(await after.queue('jobs').deadLetters.redrive()).toBe(1);
    const [second] = await after.queue('jobs').claim({ wait: 5000 });
    expect(second!.id).toBe(first!.id);
    expect(second!.attempt).toBe(1);
    expect(second!.token).toBeGreaterThan(first!.token);
  });
});

describe('a lease', () => {
  it('is never granted twice at a time, to many claimers on many threads', async () => {
    const broker = await opened();
    const queue = broker.queue<number>('jobs');
    await queue.enqueueMany(Array.from({ length: 2000 }, (_, i) => i));
    const threads = await Promise.all([attached(broker), attached(broker), attached(broker)]);
    const claims = threads.map(async (thread) => {
      const ids: number[] = [];
      for (;;) {
        const claimed = await thread.claim('jobs', { max: 7 });
        if (claimed.length === 0) return ids;
        ids.push(...claimed.map(({ id }) => id));
      }
    });
    const mine: number[] = [];
    for (;;) {
      const claimed = await queue.claim({ max: 5 });
      if (claimed.length === 0) break;
      mine.push(...claimed.map(({ id }) => id));
    }
    const ids = [...mine, ...(await Promise.all(claims)).flat()];
    expect(ids).toHaveLength(2000);
    expect(new Set(ids).size).toBe(2000);
    expect(queue.counts()).toEqual({ ready: 0, delayed: 0, leased: 2000, dead: 0, done: 0 });
  });

  it('lasts as long as it is extended, to the millisecond', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue('jobs', { visibility: 1000 });
    await queue.enqueue(1);
    const [lease] = await queue.claim();
    for (let i = 0; i < 5; i++) {
      clock.advance(999);
      await applied(broker);
      expect(lease!.extend(1000)).toBe(true);
      expect(lease!.deadline).toBe(clock.wallMs() + 1000);
    }
    clock.advance(999);
    await applied(broker);
    expect(lease!.held).toBe(true);
    clock.advance(1);
    await until('it expires', () => !lease!.held);
    expect(broker.stats().expired).toBe(1);
  });

  it('can be made shorter', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue('jobs', { visibility: 60_000 });
    await queue.enqueue(1);
    const [lease] = await queue.claim();
    expect(lease!.extend(10)).toBe(true);
    await applied(broker);
    clock.advance(10);
    await until('it expires', () => !lease!.held);
  });

  it('lasts as long as the claim, the job or the queue says, in that order', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue('jobs', { visibility: 3000 });
    const start = clock.wallMs();
    await queue.enqueue('queue');
    await queue.enqueue('job', { visibility: 2000 });
    await queue.enqueue('claim', { visibility: 2000 });
    const [byQueue, byJob] = await queue.claim({ max: 2 });
    const [byClaim] = await queue.claim({ visibility: 1000 });
    expect([byQueue, byJob, byClaim].map((lease) => lease!.deadline - start)).toEqual([3000, 2000, 1000]);
    for (const lease of [byClaim, byJob, byQueue]) {
      await applied(broker);
      expect(lease!.held).toBe(true);
      clock.advance(1000);
      await until('it expires', () => !lease!.held);
    }
  });

  it('goes to another thread when those that waited before it gave up', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs');
    const [first, second] = [await attached(broker), await attached(broker)];
    // Each of them has been told that the ring was empty, and has stopped wanting anything of it.
    expect(await queue.claim({ wait: 5 })).toEqual([]);
    const worker = queue.process(() => 1);
    await new Promise((resolve) => setImmediate(resolve));
    worker.pause();
    expect(await first.claim('jobs', { wait: 5 })).toEqual([]);
    const waiting = second.claim('jobs', { wait: Number.POSITIVE_INFINITY });
    await second.get('jobs', 0);
    await queue.enqueue('x');
    expect(await waiting).toMatchObject([{ payload: 'x' }]);
  });

  it('goes to another thread when one that waited before it is gone', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs');
    const threads = [await attached(broker), await attached(broker), await attached(broker)];
    const claims = threads.map((thread) => thread.claim('jobs', { wait: Number.POSITIVE_INFINITY }));
    for (const thread of threads) await thread.get('jobs', 0);
    for (const claim of claims) claim.catch(() => {});
    await Promise.all([threads[0]!.worker.terminate(), threads[1]!.worker.terminate()]);
    await queue.enqueue('x');
    expect(await claims[2]).toMatchObject([{ payload: 'x' }]);
  });

  it('goes to another thread while one that works on a job wants no more', async () => {
    const broker = await opened();
    const queue = broker.queue<string>('jobs');
    let finish = (): void => {};
    const started = new Promise<void>((resolve) => {
      queue.process(() => {
        resolve();
        return new Promise<void>((done) => {
          finish = done;
        });
      });
    });
    const thread = await attached(broker);
    await queue.enqueue('busy');
    await soon('the worker starts', started);
    const waiting = thread.claim('jobs', { wait: Number.POSITIVE_INFINITY });
    await thread.get('jobs', 0);
    await queue.enqueue('next');
    expect(await waiting).toMatchObject([{ payload: 'next' }]);
    finish();
  });

  it('aborts its signal when it is lost, also when the same thread has the job again already', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue('jobs', { ...IMMEDIATELY, visibility: 1000 });
    await queue.enqueue(1);
    const [first] = await queue.claim();
    const lost = first!.signal;
    clock.advance(1000);
    // Without a turn of the event loop: this thread has not read yet that the lease is lost.
    let second: Lease | undefined;
    for (const end = performance.now() + 10_000; second === undefined && performance.now() < end; ) {
      second = queue.tryClaim()[0];
    }
    const { signal } = second!;
    await until('the first signal aborts', () => lost.aborted);
    await applied(broker);
    expect(signal.aborted).toBe(false);
    expect(lost.reason).toMatchObject({ code: 'ERR_MILLRACE_CANCELLED' });
  });

  it('aborts a signal that is first asked for after the lease was lost', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue('jobs', { visibility: 1000 });
    await queue.enqueue(1);
    const [lease] = await queue.claim();
    clock.advance(1000);
    await until('it expires', () => !lease!.held);
    expect(lease!.signal.aborted).toBe(true);
  });

  it('does not abort the signal of a lease that its holder ended', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs');
    await queue.enqueueMany([1, 2, 3]);
    const [acked, failed, late] = await queue.claim({ max: 3 });
    const signals = [acked!.signal, failed!.signal];
    acked!.ack();
    failed!.fail('x');
    late!.ack();
    signals.push(late!.signal);
    await applied(broker);
    expect(signals.map(({ aborted }) => aborted)).toEqual([false, false, false]);
  });

  it('is counted, once, as what it is', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs', { attempts: 1 });
    await queue.enqueueMany([1, 2, 3, 4]);
    const counted = async (): Promise<unknown> => {
      await applied(broker);
      const { ready, delayed, leased, dead, done } = queue.counts();
      return [ready, delayed, leased, dead, done];
    };
    expect(await counted()).toEqual([4, 0, 0, 0, 0]);
    const [a, b, c] = await queue.claim({ max: 3 });
    expect(await counted()).toEqual([1, 0, 3, 0, 0]);
    a!.ack();
    expect(await counted()).toEqual([1, 0, 2, 0, 1]);
    b!.fail('x');
    expect(await counted()).toEqual([1, 0, 1, 1, 1]);
    c!.giveBack(60_000);
    expect(await counted()).toEqual([1, 1, 0, 1, 1]);
  });

  it('is never given for more jobs than the claim asks for, and for all there are in the end', async () => {
    const broker = await opened();
    const queue = broker.queue<number>('jobs');
    await queue.enqueueMany(Array.from({ length: 10_000 }, (_, i) => i));
    const payloads: number[] = [];
    for (let max = 1; payloads.length < 10_000; max = (max * 7) % 4096) {
      const claimed = await queue.claim({ max, wait: 5000 });
      expect(claimed.length).toBeLessThanOrEqual(max);
      payloads.push(...claimed.map(({ payload }) => payload));
    }
    expect(payloads).toEqual(Array.from({ length: 10_000 }, (_, i) => i));
    expect(await queue.claim({ max: 10 })).toEqual([]);
  });

  it('after lease leaves the event loop its turns', async () => {
    const broker = await opened();
    const queue = broker.queue<number>('jobs');
    await queue.enqueueMany(Array.from({ length: 4000 }, (_, i) => i));
    // All of them are offered: from here on no claim has to wait for anything.
    for (const lease of await taken(queue, 4000)) lease.giveBack();
    await applied(broker);
    let turns = 0;
    const count = (): void => {
      turns++;
      immediate = setImmediate(count);
    };
    let immediate = setImmediate(count);
    const turnsBefore = turns;
    for (let i = 0; i < 2000; i++) {
      const leases = await queue.claim();
      expect(leases).toHaveLength(1);
      for (const until = performance.now() + 0.05; performance.now() < until; );
    }
    clearImmediate(immediate);
    expect(turns - turnsBefore).toBeGreaterThan(3);
  });

  it('is waited for as long as the claim says, and given as soon as there is a job', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs');
    expect(await queue.claim({ wait: 20 })).toEqual([]);
    const waiting = queue.claim({ wait: 20_000 });
    await queue.enqueue('there');
    expect((await waiting)[0]).toMatchObject({ payload: 'there' });
    const stop = new AbortController();
    const forEver = queue.claim({ wait: Number.POSITIVE_INFINITY, signal: stop.signal });
    stop.abort(new Error('enough'));
    await expect(forEver).rejects.toThrow('enough');
    await expect(queue.claim({ signal: stop.signal })).rejects.toThrow('enough');
    await queue.enqueue('next');
    expect(await queue.claim()).toHaveLength(1);
  });
});

describe('a failed run', () => {
  for (const [what, error, message = expect.any(String)] of [
    ['nothing', undefined],
    ['text', 'words', 'words'],
    ['null', null],
    ['an object without a text form', Object.create(null)],
    ['a symbol', Symbol('s')],
    ['an error whose cause has no text form', new Error('x', { cause: Object.create(null) })],
    ['an error with a name that is not text', Object.assign(new Error('x'), { name: 5 })],
    ['an error without a message', Object.assign(new Error('x'), { message: undefined, stack: undefined })],
    [
      'an error whose message cannot be read',
      Object.defineProperty(new Error('x'), 'message', {
        get() {
          throw new Error('no');
        },
      }),
    ],
    ['a revoked proxy', revoked()],
    ['half a surrogate pair', new Error('a\ud800')],
    ['a long text', new Error('x'.repeat(100_000))],
    ['control characters', new Error('\0\u001b[31m'.repeat(4000))],
  ] as const) {
    it(`may give ${what} as its error`, async () => {
      // The smallest ring there is: what an error takes is cut to what fits.
      const broker = await opened({ ringSlots: 128, payloadBytesMax: 64 });
      const queue = broker.queue('jobs', { ...IMMEDIATELY, attempts: 2 });
      const { id } = await queue.enqueue(1);
      for (let attempt = 1; attempt <= 2; attempt++) {
        const [lease] = await queue.claim({ wait: 5000 });
        expect(lease!.attempt).toBe(attempt);
        expect(lease!.fail(error)).toBe(true);
      }
      await until('the job is dead', () => queue.counts().dead === 1);
      const [dead] = await queue.deadLetters.list();
      expect(dead!.errors).toHaveLength(2);
      expect(dead!.errors[0]).toMatchObject({ name: expect.any(String), message });
      expect((await failureOf(() => queue.result(id))).code).toBe('ERR_MILLRACE_DEAD');
    });
  }

  for (const [what, backoff] of [
    [
      'throws',
      () => {
        throw new Error('no');
      },
    ],
    ['returns nothing', () => undefined as never],
    ['returns NaN', () => Number.NaN],
    ['returns text', () => 'soon' as never],
    ['returns a negative number', () => -1],
  ] as const) {
    it(`is retried by the default backoff when the queue’s own ${what}`, async () => {
      const { broker, clock } = await timed({ random: () => 0.5 });
      const queue = broker.queue('jobs', { backoff });
      const { id } = await queue.enqueue(1);
      const [lease] = await queue.claim();
      expect(lease!.fail('x')).toBe(true);
      expect(await queue.get(id)).toMatchObject({ state: 'delayed', runAt: clock.wallMs() + 500 });
    });
  }

  it('is retried never, in effect, when the backoff is infinite', async () => {
    const { broker, clock } = await timed();
    const queue = broker.queue('jobs', { backoff: () => Number.POSITIVE_INFINITY });
    const { id } = await queue.enqueue(1);
    (await queue.claim())[0]!.fail('x');
    expect((await queue.get(id))!.runAt).toBeGreaterThan(clock.wallMs() + 2 ** 50);
  });
});

function revoked(): object {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  return proxy;
}
