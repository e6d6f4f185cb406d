/** Payloads that leave memory for the log: with a cap of 1 MiB, jobs of ten times as much. */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Broker, type Job, type Lease, MillraceError, open, type Queue } from 'millrace';
import { expect, it } from 'vitest';
import { failureOf, opened, temporaryDirectory, until } from '../brokers.js';

const MIB = 1 << 20;
const JOBS = 10_000;
const BYTES = 1024;
const OPTIONS = { memoryBytes: MIB, segmentBytes: MIB };

/** A payload that says whose it is, all over. */
function payloadOf(n: number): Uint8Array {
  const payload = new Uint8Array(BYTES).fill(n & 0xff);
  new DataView(payload.buffer).setUint32(0, n);
  return payload;
}

function numberIn(payload: Uint8Array): number {
  const n = new DataView(payload.buffer, payload.byteOffset).getUint32(0);
  if (Buffer.compare(payload, payloadOf(n)) !== 0) throw new Error(`the payload of ${n} is not what it was`);
  return n;
}

const queueOf = (broker: Broker, options = {}): Queue<Uint8Array> =>
  broker.queue<Uint8Array>('q', { codec: 'bytes', ...options });

async function filled(queue: Queue<Uint8Array>): Promise<Job[]> {
  const jobs: Job[] = [];
  for (let from = 0; from < JOBS; from += 500) {
    const payloads = Array.from({ length: 500 }, (_, i) => payloadOf(from + i));
    jobs.push(...(await queue.enqueueMany(payloads)));
  }
  return jobs;
}

async function drained(queue: Queue<Uint8Array>, count: number, end: (lease: Lease) => void): Promise<number[]> {
  const seen: number[] = [];
  while (seen.length < count) {
    for (const lease of await queue.claim({ max: Math.min(64, count - seen.length), wait: 10_000 })) {
      seen.push(numberIn(lease.payload as Uint8Array));
      end(lease);
    }
  }
  return seen;
}

const ALL = Array.from({ length: JOBS }, (_, n) => n);

it('come back whole and in order, in the run that enqueued them and in the next', async () => {
  const dir = temporaryDirectory();
  let broker = await opened(OPTIONS, dir);
  await filled(queueOf(broker));
  expect(broker.stats().memoryBytes).toBeLessThan(MIB);
  expect(await drained(queueOf(broker), JOBS / 2, (lease) => lease.ack())).toEqual(ALL.slice(0, JOBS / 2));
  await broker.close();
  broker = await opened(OPTIONS, dir);
  expect(broker.stats().memoryBytes).toBeLessThan(MIB);
  expect(await drained(queueOf(broker), JOBS / 2, (lease) => lease.ack())).toEqual(ALL.slice(JOBS / 2));
});

it('come back in any order, by priority and after a delay', async () => {
  const broker = await opened(OPTIONS);
  const queue = queueOf(broker);
  for (let n = 0; n < JOBS; n += 500) {
    const options = { priority: JOBS - n, ...(n % 1000 === 0 ? { delay: 200 } : {}) };
    await Promise.all(Array.from({ length: 500 }, (_, i) => queue.enqueue(payloadOf(n + i), options)));
  }
  await until('all are due', () => queue.counts().delayed === 0);
  const seen = await drained(queue, JOBS, (lease) => lease.ack());
  const expected = Array.from({ length: JOBS / 500 }, (_, i) => ALL.slice(JOBS - 500 * (i + 1), JOBS - 500 * i)).flat();
  expect(seen).toEqual(expected);
});

it('survive compaction while they are out', async () => {
  const dir = temporaryDirectory();
  let broker = await opened(OPTIONS, dir);
  await filled(queueOf(broker));
  await drained(queueOf(broker), 100, (lease) => lease.ack());
  const first = readdirSync(dir)
    .filter((name) => name.endsWith('.log'))
    .sort()[0];
  await broker.compact();
  expect(readdirSync(dir)).not.toContain(first);
  expect(await drained(queueOf(broker), 400, (lease) => lease.ack())).toEqual(ALL.slice(100, 500));
  await broker.close();
  broker = await opened(OPTIONS, dir);
  expect(await drained(queueOf(broker), JOBS - 500, (lease) => lease.ack())).toEqual(ALL.slice(500));
});

it('are shown, retried, buried and redriven like any other', async () => {
  const broker = await opened(OPTIONS);
  const queue = queueOf(broker, { attempts: 2, backoff: { base: 0 } });
  const jobs = await filled(queue);
  for (const n of [0, 1, JOBS / 2, JOBS - 1]) {
    const found = await queue.get(jobs[n]!.id);
    expect(numberIn(found!.payload as Uint8Array)).toBe(n);
  }
  const runs = await drained(queue, 2 * JOBS, (lease) => lease.fail(new Error('no')));
  expect(runs.filter((n) => n === 77)).toHaveLength(2);
  await until('all are dead', () => queue.counts().dead === JOBS);
  const page = await queue.deadLetters.list({ limit: 100 });
  expect(new Set(page.map(({ payload }) => numberIn(payload as Uint8Array))).size).toBe(100);
  expect(await queue.deadLetters.redrive()).toBe(JOBS);
  expect((await drained(queue, JOBS, (lease) => lease.ack())).sort((a, b) => a - b)).toEqual(ALL);
  await until('all memory is given back', () => broker.stats().memoryBytes === 0);
});

it('stay in memory where the log does not hold them', async () => {
  const broker = await opened({ ...OPTIONS, memoryBytes: 2 * MIB });
  const queue = queueOf(broker, { durability: 'memory' });
  await queue.enqueueMany(Array.from({ length: 1000 }, (_, n) => payloadOf(n)));
  await until('they are there', () => broker.stats().memoryBytes > 1000 * BYTES);
  await drained(queue, 1000, (lease) => lease.ack());
});

it('that are damaged in the log by then end the broker, and are not handed out', async () => {
  const dir = temporaryDirectory();
  const broker = await opened({ memoryBytes: MIB }, dir);
  const queue = queueOf(broker);
  await filled(queue);
  const log = join(dir, readdirSync(dir).find((name) => name.endsWith('.log'))!);
  const bytes = readFileSync(log).subarray(0, broker.stats().logBytes);
  // Most of them are out, nobody knows which.
  for (let at = bytes.length / 2; at < bytes.length; at += BYTES) bytes[at]! ^= 1;
  // In place: another file under the name would not be the one that is open.
  writeFileSync(log, bytes, { flag: 'r+' });
  const error = await failureOf(() => drained(queue, JOBS, (lease) => lease.ack()));
  expect(error).toBeInstanceOf(MillraceError);
  expect(error).toMatchObject({ code: 'ERR_MILLRACE_IO', errno: 'ERR_MILLRACE_CORRUPT' });
  await broker.close();
  expect((await failureOf(() => open(dir))).code).toBe('ERR_MILLRACE_CORRUPT');
});
