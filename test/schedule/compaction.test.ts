import { mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Broker, open, type Queue } from 'millrace';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

const SEGMENT = 64 * 1024;
const YEAR_MS = 365 * 86_400_000;
const PAYLOAD = new Uint8Array(64).fill(7);

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'millrace-test-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

const start = (): Promise<Broker> => open(dir, { segmentBytes: SEGMENT });

/** Enqueues and acks `count` jobs. */
async function pass(queue: Queue<Uint8Array>, count: number): Promise<void> {
  for (let done = 0; done < count; ) {
    const size = Math.min(500, count - done);
    await queue.enqueueMany(new Array<Uint8Array>(size).fill(PAYLOAD));
    for (let left = size; left > 0; ) {
      for (const lease of await queue.claim({ max: 500, wait: 10_000 })) if (lease.ack()) left--;
    }
    done += size;
  }
}

function logBytes(): number {
  let bytes = 0;
  for (const name of readdirSync(dir)) {
    // A file may go between the two calls.
    if (name.endsWith('.log')) bytes += statSync(join(dir, name), { throwIfNoEntry: false })?.size ?? 0;
  }
  return bytes;
}

describe('compaction', () => {
  it('keeps the log small by itself while one job waits for a year and thousands pass', async () => {
    let broker = await start();
    let queue = broker.queue<Uint8Array>('q', { codec: 'bytes' });
    const far = await queue.enqueue(PAYLOAD, { delay: YEAR_MS });
    let most = 0;
    for (let round = 0; round < 40; round++) {
      await pass(queue, 500);
      most = Math.max(most, logBytes());
    }
    // 20,000 jobs took 2.9 MB of log; what is alive is one job. Dead bytes may reach two segments and a batch or two.
    expect(broker.stats().bytes).toBeGreaterThan(2_500_000);
    expect(most).toBeLessThan(8 * SEGMENT);
    expect(broker.stats().compactions).toBeGreaterThan(10);
    await broker.close();

    broker = await start();
    queue = broker.queue<Uint8Array>('q', { codec: 'bytes' });
    expect(await queue.get(far.id)).toMatchObject({ id: far.id, state: 'delayed', attempt: 0, payload: PAYLOAD });
    expect(queue.counts()).toEqual({ ready: 0, delayed: 1, leased: 0, dead: 0, done: 20_000 });
    await broker.close();
  });

  it('does not change the order in which jobs are claimed', async () => {
    const broker = await start();
    const queue = broker.queue<number>('q');
    const count = 20_000;
    for (let from = 0; from < count; from += 1000) {
      await queue.enqueueMany(Array.from({ length: 1000 }, (_, i) => from + i));
    }
    let next = 0;
    let compacted: Promise<unknown> = Promise.resolve();
    while (next < count) {
      if (next % 2000 === 0) compacted = broker.compact();
      for (const lease of await queue.claim({ max: 500, wait: 10_000 })) {
        expect(lease.payload).toBe(next++);
        lease.ack();
      }
    }
    await compacted;
    expect(broker.stats().compactions).toBeGreaterThan(5);
    await broker.close();
  });

  it('on demand leaves little more than what is alive, all of it as it was', async () => {
    let broker = await start();
    let queue = broker.queue<Uint8Array>('q', {
      codec: 'bytes',
      resultRetention: YEAR_MS,
      backoff: { base: 1e9, jitter: 'none' },
    });
    const quiet = broker.queue('quiet', { attempts: 7 });
    await quiet.pause();
    const delayed = await queue.enqueue(PAYLOAD, { delay: YEAR_MS, priority: 3, tenant: 'acme', key: 'k' });
    const dead = await queue.enqueue(PAYLOAD, { attempts: 1 });
    (await queue.claim())[0]!.fail(new Error('no good'));
    const retried = await queue.enqueue(PAYLOAD);
    (await queue.claim())[0]!.fail(new Error('later'));
    const done = await queue.enqueue(PAYLOAD);
    await (await queue.claim())[0]!.ackDurably({ answer: 42 });
    const held = await queue.enqueue(PAYLOAD);
    const [lease] = await queue.claim();
    await pass(broker.queue<Uint8Array>('passing', { codec: 'bytes' }), 2000);
    const ready = await queue.enqueue(PAYLOAD);
    await queue.cancel((await queue.enqueue(PAYLOAD)).id);

    const report = await broker.compact();
    expect(report.segmentsAfter).toBe(1);
    expect(report.bytesAfter).toBeLessThan(report.bytesBefore / 4);
    // The lease that was held meanwhile is still good, and what it writes counts.
    expect(lease!.extend(60_000)).toBe(true);
    const before = await Promise.all([delayed, dead, retried, ready].map(({ id }) => queue.get(id)));
    const counts = queue.counts();
    await broker.close();

    broker = await start();
    queue = broker.queue<Uint8Array>('q', { codec: 'bytes' });
    expect(await Promise.all([delayed, dead, retried, ready].map(({ id }) => queue.get(id)))).toEqual(before);
    expect(before.map((job) => job?.state)).toEqual(['delayed', 'dead', 'delayed', 'ready']);
    expect(await queue.result(done.id)).toEqual({ answer: 42 });
    expect(await queue.get(held.id)).toMatchObject({ state: 'ready', attempt: 0 });
    expect(queue.counts()).toEqual({ ...counts, ready: counts.ready + counts.leased, leased: 0 });
    expect((await queue.enqueue(PAYLOAD, { key: 'k' })).id).toBe(delayed.id);
    expect(broker.queues().sort()).toEqual(['passing', 'q', 'quiet']);
    const paused = broker.queue('quiet');
    await paused.enqueue('x');
    expect(await paused.claim()).toEqual([]);
    await broker.close();
  });

  it('never brings back a job that ended, nor one that a held key kept out', async () => {
    let broker = await start();
    let queue = broker.queue<Uint8Array>('q', { codec: 'bytes' });
    const first = await queue.enqueue(PAYLOAD, { key: 'k' });
    await pass(broker.queue<Uint8Array>('other', { codec: 'bytes' }), 1000);
    expect(await queue.enqueue(PAYLOAD, { key: 'k' })).toMatchObject({ id: first.id, duplicate: true });
    expect(await (await queue.claim())[0]!.ackDurably()).toBe(true);
    await broker.compact();
    await broker.close();

    broker = await start();
    queue = broker.queue<Uint8Array>('q', { codec: 'bytes' });
    expect(queue.counts()).toMatchObject({ ready: 0, delayed: 0, leased: 0, dead: 0, done: 1 });
    expect(await queue.claim()).toEqual([]);
    await broker.close();
  });

  it('goes on while jobs are enqueued, claimed and acked all the time, and loses none', async () => {
    let broker = await start();
    let queue = broker.queue<Uint8Array>('q', { codec: 'bytes' });
    const kept = new Set<number>();
    const working = (async () => {
      for (let round = 0; round < 60; round++) {
        const jobs = await queue.enqueueMany(new Array<Uint8Array>(200).fill(PAYLOAD));
        for (const { id } of jobs) kept.add(id);
        for (const lease of await queue.claim({ max: 150, wait: 10_000 })) if (lease.ack()) kept.delete(lease.id);
      }
    })();
    let compactions = 0;
    let stop = false;
    const compacting = (async () => {
      while (!stop) {
        await broker.compact();
        compactions++;
      }
    })();
    await working;
    stop = true;
    await compacting;
    expect(compactions).toBeGreaterThan(3);
    await broker.close();

    broker = await start();
    queue = broker.queue<Uint8Array>('q', { codec: 'bytes' });
    expect(queue.counts().ready).toBe(kept.size);
    for (let left = kept.size; left > 0; ) {
      for (const lease of await queue.claim({ max: 500, wait: 10_000 })) {
        expect(kept.delete(lease.id)).toBe(true);
        lease.ack();
        left--;
      }
    }
    await broker.close();
  });
});
