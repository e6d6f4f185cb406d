/**
 * Ten faults that a sketch of such a queue had on paper, each tried on ours: through the package where a user would meet
 * it, on the log's own layer where only a disk that is cut off shows it.
 * The sixth, a job that kills its process and is run again for ever, is in crash-budget.test.ts.
 */
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { open } from 'millrace';
import { expect, it } from 'vitest';
import { crc32cMix } from '../../native-free/crc32c.js';
import { At, bytesOf, checksumOf, lengthWord } from '../../native-free/record.js';
import { recover } from '../../src/log/recovery.js';
import { segmentName } from '../../src/log/segment.js';
import { CHUNK_BYTES } from '../../src/log/window.js';
import { applied, failureOf, opened, temporaryDirectory, timed, until } from '../brokers.js';
import { programPath } from '../children.js';
import { batchesIn, joined, LOG, logOf, memoryOf, resealed } from '../log/logs.js';
import { MemoryStorage } from '../log/memory-storage.js';
import { DIR, textsIn } from '../log/run.js';
import { Disk } from '../programs/failing-disk.js';

const YEAR_MS = 365 * 86_400_000;

it('1: tokens that begin anew with each start', async () => {
  const dir = temporaryDirectory();
  let last = 0;
  for (let start = 0; start < 3; start++) {
    const broker = await opened({}, dir);
    const queue = broker.queue('jobs');
    if (start === 0) await queue.enqueue('again and again');
    const [lease] = await queue.claim({ wait: 5000 });
    expect(lease!.token).toBeGreaterThan(last);
    last = lease!.token;
    await broker.close();
  }
});

it('2: ids that are given out again after a compaction', async () => {
  const dir = temporaryDirectory();
  let last = 0;
  for (let start = 0; start < 3; start++) {
    const broker = await opened({}, dir);
    const queue = broker.queue('jobs');
    for (const { id } of await queue.enqueueMany([1, 2, 3])) {
      expect(id).toBeGreaterThan(last);
      last = id;
    }
    for (let left = 3; left > 0; ) for (const lease of await queue.claim({ wait: 5000 })) if (lease.ack()) left--;
    await broker.compact();
    await broker.close();
  }
});

it('3: a compaction that drops the dead letters', async () => {
  const dir = temporaryDirectory();
  let broker = await opened({}, dir);
  const { id } = await broker.queue('jobs', { attempts: 1 }).enqueue('payload');
  const [lease] = await broker.queue('jobs').claim({ wait: 5000 });
  lease!.fail(new Error('for good'));
  await until('it is dead', () => broker.queue('jobs').deadLetters.size === 1);
  await broker.compact();
  await broker.close();

  broker = await opened({}, dir);
  const { deadLetters } = broker.queue('jobs');
  expect(await deadLetters.list()).toMatchObject([
    { id, payload: 'payload', attempt: 1, reason: 'attempts', errors: [{ message: 'for good' }] },
  ]);
  await deadLetters.redrive();
  expect(await broker.queue('jobs').claim({ wait: 5000 })).toMatchObject([{ id, payload: 'payload', attempt: 1 }]);
});

it('4: a record type that is not known truncates the log behind it', async () => {
  const dir = temporaryDirectory();
  const broker = await opened({}, dir);
  for (const payload of ['before', 'newer', 'behind']) await broker.queue('jobs').enqueue(payload);
  await broker.close();

  const path = join(dir, segmentName(1));
  const bytes = new Uint8Array(readFileSync(path));
  const batch = batchesIn(bytes).at(-2)!;
  const memory = memoryOf(bytes);
  const record = batch.at + 64;
  memory.i32[(record + At.LENGTH) >>> 2] = lengthWord(bytesOf(memory, record), 40, 0);
  memory.i32[record >>> 2] = checksumOf(memory, record);
  const recordsCrc = crc32cMix(0, memory.i32[record >>> 2]);
  writeFileSync(path, resealed(memory.u8.slice(0, bytes.length), batch.at, { recordsCrc }));
  const newer = readFileSync(path);

  expect(await failureOf(() => open(dir))).toMatchObject({
    code: 'ERR_MILLRACE_NEWER_VERSION',
    file: path,
    position: batch.header.position,
  });
  expect(readFileSync(path).equals(newer)).toBe(true);
});

it('5: a clock that is set forward expires every lease and burns attempts', async () => {
  const { broker, clock } = await timed();
  const queue = broker.queue('jobs', { visibility: 30_000 });
  await queue.enqueueMany([1, 2, 3]);
  const leases = await queue.claim({ max: 3, wait: 5000 });
  clock.step(YEAR_MS);
  await applied(broker);
  expect(leases.map(({ held }) => held)).toEqual([true, true, true]);
  expect(leases.map((lease) => lease.ack())).toEqual([true, true, true]);
  await until('they are done', () => queue.counts().done === 3);
  expect(broker.stats()).toMatchObject({ expired: 0, retried: 0, dead: 0 });
});

it('7: a log without checksums: a bit that flips in any of its bytes is noticed', async () => {
  const dir = temporaryDirectory();
  const broker = await opened({}, dir);
  for (let n = 0; n < 40; n++) await broker.queue('jobs').enqueue({ n, text: 'x'.repeat(n) });
  await broker.close();

  const names = [segmentName(1), 'watermark'];
  const disk = new MemoryStorage();
  for (const name of names) disk.put(`${DIR}/${name}`, Uint8Array.from(readFileSync(join(dir, name))));
  const bytes = disk.bytes(LOG);
  expect(recover(disk.clone(), DIR, () => {}).position).toBe(bytes.length - 64);
  const unnoticed: number[] = [];
  for (let at = 0; at < bytes.length; at++) {
    const flipped = bytes.slice();
    flipped[at]! ^= 1 << (at % 8);
    disk.put(LOG, flipped);
    const error = await failureOf(() => recover(disk, DIR, () => {})).catch(() => undefined);
    if (error?.code !== 'ERR_MILLRACE_CORRUPT') unnoticed.push(at);
  }
  expect(unnoticed).toEqual([]);
  expect(bytes.length).toBeGreaterThan(40 * 64);
});

it('8: a commit that failed keeps its buffer and is tried again', async () => {
  const words = new Int32Array(new SharedArrayBuffer(Disk.WORDS * 4));
  const dir = temporaryDirectory();
  const storage = { module: programPath('failing-disk'), data: words.buffer };
  const broker = await opened({ storage }, dir);
  const queue = broker.queue('jobs');
  await queue.enqueue('before');
  Atomics.store(words, Disk.SYNC_FAILS, 1);
  expect((await failureOf(() => queue.enqueue('unknown'))).code).toBe('ERR_MILLRACE_OUTCOME_UNKNOWN');
  const [writes, syncs] = [words[Disk.WRITES], words[Disk.SYNCS]];
  for (let n = 0; n < 3; n++) expect((await failureOf(() => queue.enqueue(n))).code).toBe('ERR_MILLRACE_IO');
  await broker.close();
  expect([words[Disk.WRITES], words[Disk.SYNCS]]).toEqual([writes, syncs]);

  const again = (await opened({}, dir)).queue('jobs');
  expect(['before', 'before,unknown']).toContain((await again.claim({ max: 9 })).map(({ payload }) => payload).join());
});

it('9: what recovery cut, replayed and named is not flushed', () => {
  const disk = logOf(['kept', 'torn']);
  const bytes = disk.bytes(LOG);
  const last = batchesIn(bytes).at(-1)!;
  // A process died: the last batch is torn, and nothing of the file, nor its name, was ever flushed.
  for (const end of [last.at, last.at + 100]) {
    const died = new MemoryStorage();
    died.ensureDirectory(DIR);
    died.open(LOG, 'create').write([bytes.slice(0, end)], 0);
    expect(died.crash().list(DIR)).toEqual([]);
    expect(textsIn(died)).toEqual(['kept']);
    const after = died.crash();
    expect(after.bytes(LOG)).toEqual(bytes.slice(0, last.at));
    const cut = `${LOG}.cut-${last.header.position}`;
    expect(after.has(cut)).toBe(end > last.at);
    if (end > last.at) expect(joined(after.bytes(LOG), after.bytes(cut))).toEqual(bytes.slice(0, end));
  }
});

it('10: the whole log is read into memory', () => {
  const text = 'x'.repeat(CHUNK_BYTES / 16);
  const count = 20;
  const disk = logOf(new Array<string>(count).fill(text), { ringSlots: 65_536 });
  expect(disk.bytes(LOG).length).toBeGreaterThan(CHUNK_BYTES + 2 * text.length);
  disk.largestRead = 0;
  expect(textsIn(disk)).toHaveLength(count);
  expect(disk.largestRead).toBeLessThanOrEqual(CHUNK_BYTES);
});

it('a crash is charged only to a run that had not ended', async () => {
  const dir = temporaryDirectory();
  const script = join(temporaryDirectory(), 'work.mjs');
  writeFileSync(
    script,
    `import { open } from ${JSON.stringify(import.meta.resolve('millrace'))};
     const broker = await open(${JSON.stringify(dir)});
     const queue = broker.queue('jobs', { backoff: { base: ${YEAR_MS}, jitter: 'none' } });
     const { id } = await queue.enqueue('fails');
     console.log(id);
     queue.process(() => { throw new Error('once'); });
     setInterval(() => { if (queue.counts().delayed === 1) process.kill(process.pid, 'SIGKILL'); }, 5);`,
  );
  const { signal, stdout } = spawnSync(process.execPath, [script], { encoding: 'utf8', timeout: 30_000 });
  expect(signal).toBe('SIGKILL');
  const queue = (await opened({}, dir)).queue('jobs');
  expect(await queue.get(Number(stdout))).toMatchObject({ state: 'delayed', attempt: 1, crashes: 0 });
});
