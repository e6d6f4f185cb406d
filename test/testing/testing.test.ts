/** What `millrace/testing` gives to the tests of others. */
import { existsSync, rmSync } from 'node:fs';
import { open } from 'millrace';
import { crashDisk, Ledger, ManualClock, openTemporary } from 'millrace/testing';
import { describe, expect, it, onTestFinished } from 'vitest';
import { temporaryDirectory } from '../brokers.js';

function crashed(disk: { crash(): string }): string {
  const dir = disk.crash();
  onTestFinished(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

describe('a crash disk', () => {
  it('keeps what was flushed and loses what was only written', async () => {
    const dir = temporaryDirectory();
    const disk = crashDisk(dir);
    const broker = await open(dir, { storage: disk.storage });
    const empty = crashed(disk);
    const safe = await broker.queue('safe').enqueue('flushed');
    const queue = broker.queue('lost', { durability: 'os' });
    // What declares the queue is flushed, and what is in its batch.
    await queue.enqueue('flushed too');
    const lost = await queue.enqueue('written');
    const copy = crashed(disk);
    await broker.close();
    for (const [where, jobs] of [
      [empty, [undefined, undefined]],
      [copy, ['ready', undefined]],
      [dir, ['ready', 'ready']],
    ] as const) {
      const after = await open(where);
      expect([
        (await after.queue('safe').get(safe.id))?.state,
        (await after.queue('lost').get(lost.id))?.state,
      ]).toEqual(jobs);
      await after.close();
    }
  });

  it('at any moment gives a directory that opens with all that was accepted by then', async () => {
    const dir = temporaryDirectory();
    const disk = crashDisk(dir);
    const broker = await open(dir, { storage: disk.storage, segmentBytes: 16_384 });
    const queue = broker.queue<string>('q');
    const ledger = new Ledger();
    const crashes: { dir: string; accepted: number[]; done: number[] }[] = [];
    const accepted: number[] = [];
    const done: number[] = [];
    for (let round = 0; round < 12; round++) {
      const many = Promise.all(Array.from({ length: 20 }, (_, i) => queue.enqueue(`${round}.${i}`.padEnd(100))));
      crashes.push({ dir: crashed(disk), accepted: [...accepted], done: [...done] });
      for (const job of await many) {
        accepted.push(job.id);
        ledger.accepted(job);
      }
      for (const lease of await queue.claim({ max: 10 })) {
        ledger.started(lease);
        if (!(await lease.ackDurably())) continue;
        ledger.done(lease);
        done.push(lease.id);
      }
      if (round % 4 === 3) await broker.compact();
    }
    expect(await ledger.report(queue)).toMatchObject({ accepted: 240, done: 120, lost: [], undone: [], rerun: [] });
    expect(broker.stats().compactions).toBeGreaterThan(1);
    await broker.close();
    for (const crash of crashes) {
      const after = await open(crash.dir, { segmentBytes: 16_384 });
      const states = await Promise.all(crash.accepted.map(async (id) => (await after.queue('q').get(id))?.state));
      const isDone = new Set(crash.done);
      expect(crash.accepted.filter((id, i) => (states[i] === undefined) !== isDone.has(id))).toEqual([]);
      await after.close();
    }
  });
});

it('a temporary broker is gone when it is closed', async () => {
  const broker = await openTemporary();
  const { dir } = broker.handle;
  const job = await broker.queue('q').enqueue(1);
  expect((await broker.queue('q').get(job.id))?.state).toBe('ready');
  expect(existsSync(dir)).toBe(true);
  await broker.close();
  expect(existsSync(dir)).toBe(false);
});

it('a manual clock moves delays and leases when it is told, and nothing else does', async () => {
  const clock = new ManualClock();
  const broker = await openTemporary({ clock });
  onTestFinished(() => broker.close());
  const queue = broker.queue('q', { visibility: 1000, backoff: { base: 0 } });
  await queue.enqueue('later', { delay: 60_000 });
  expect(await queue.claim()).toEqual([]);
  clock.advance(60_000);
  const [lease] = await queue.claim({ wait: 5000 });
  clock.step(-3_600_000);
  expect(lease!.extend(1000)).toBe(true);
  clock.advance(1001);
  const [again] = await queue.claim({ wait: 5000 });
  expect(again!.attempt).toBe(2);
  expect(lease!.ack()).toBe(false);
});

describe('a ledger', () => {
  const states: Record<number, string | undefined> = { 1: 'ready', 2: 'done', 3: undefined, 4: 'dead', 5: 'ready' };
  const queue = { get: async (id: number) => (states[id] === undefined ? undefined : { state: states[id] }) };

  it('finds what was lost, came back, was done twice, or ran under a token that fell', async () => {
    const ledger = new Ledger();
    for (const id of [1, 2, 3, 4, 5]) ledger.accepted({ id });
    for (const token of [3, 5, 5]) ledger.started({ id: 1, token });
    ledger.started({ id: 2, token: 1 });
    for (const id of [2, 2, 5]) ledger.done({ id });
    expect(await ledger.report(queue)).toEqual({
      accepted: 5,
      done: 2,
      lost: [3],
      undone: [5],
      doneTwice: [2],
      tokensFell: [1],
      rerun: [1],
    });
  });

  it('has nothing to say where all is well', async () => {
    const ledger = new Ledger();
    for (const id of [1, 2, 4, 9]) ledger.accepted({ id });
    for (const [id, token] of [
      [2, 1],
      [9, 2],
    ] as const) {
      ledger.started({ id, token });
      ledger.done({ id });
    }
    const { lost, undone, doneTwice, tokensFell, rerun } = await ledger.report(queue);
    expect([lost, undone, doneTwice, tokensFell, rerun]).toEqual([[], [], [], [], []]);
  });
});
