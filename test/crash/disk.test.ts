/** What a broker does with a log that was torn or damaged, and with a disk that fails or is full. */
import { createHash } from 'node:crypto';
import { cpSync, existsSync, readdirSync, readFileSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Broker, MillraceError, open } from 'millrace';
import { describe, expect, it } from 'vitest';
import { scan } from '../../src/log/scan.js';
import { SEGMENT_HEADER_BYTES } from '../../src/log/segment.js';
import { DiskStorage } from '../../src/log/storage.js';
import { failureOf, opened, taken, temporaryDirectory, until } from '../brokers.js';
import { Child, programPath } from '../children.js';
import { Disk } from '../programs/failing-disk.js';
import { attached } from '../threads.js';

/** Everything in a directory, by name, as it is: but not what says who holds it. */
function contents(dir: string): Record<string, string> {
  const files: Record<string, string> = {};
  for (const name of readdirSync(dir).sort()) {
    if (name === 'lock') continue;
    files[name] = createHash('sha256')
      .update(readFileSync(join(dir, name)))
      .digest('hex');
  }
  return files;
}

function logOf(dir: string): string {
  return join(
    dir,
    readdirSync(dir)
      .filter((name) => name.endsWith('.log'))
      .sort()
      .at(-1)!,
  );
}

const SMALL = { memoryBytes: 1 << 20, jobsMax: 1000, ringSlots: 4096, payloadBytesMax: 4096 };

describe('a log', () => {
  it('that is cut at any byte of its last batch opens with what was flushed, and goes on', async () => {
    const dir = temporaryDirectory();
    const child = new Child('unflushed', [dir]);
    await child.message((word) => word === 'written');
    await child.kill();
    const { from: position, to: whole } = lastBatch(dir);
    const cuts = Array.from({ length: whole - position + 1 }, (_, i) => position + i);
    expect(cuts.length).toBeGreaterThan(64);

    const tried = async (cut: number): Promise<void> => {
      const copy = temporaryDirectory('memory');
      cpSync(dir, copy, { recursive: true });
      truncateSync(logOf(copy), cut);
      const broker = await open(copy, SMALL);
      const queue = broker.queue<string>('jobs');
      const expected = cut === whole ? ['a', 'b', 'c', 'd'] : ['a', 'b', 'c'];
      const leases = await taken(queue, expected.length);
      expect({ cut, payloads: leases.map(({ payload }) => payload) }).toEqual({ cut, payloads: expected });
      expect(await queue.claim()).toEqual([]);
      await queue.enqueue('e');
      await broker.close();
      const kept = readdirSync(copy).filter((name) => name.includes('.cut-'));
      expect({ cut, kept: kept.length }).toEqual({ cut, kept: cut === whole || cut === position ? 0 : 1 });
      if (cut % 8 !== 0) return;
      const again = await open(copy, SMALL);
      expect(again.queue('jobs').counts().ready).toBe(expected.length + 1);
      await again.close();
    };
    for (let i = 0; i < cuts.length; i += 4) await Promise.all(cuts.slice(i, i + 4).map(tried));
  }, 120_000);

  it('with a flipped bit in what was flushed is refused, and left as it was', async () => {
    const dir = temporaryDirectory('memory');
    const broker = await opened({}, dir);
    for (let i = 0; i < 5; i++) {
      await broker.queue<string>('jobs').enqueueMany(['x'.repeat(50), 'y'.repeat(10)]);
    }
    (await broker.queue('jobs').claim())[0]!.ack('r');
    await broker.close();
    const log = logOf(dir);
    const bytes = readFileSync(log);
    for (let at = 0; at < bytes.length; at += 53) {
      const bit = 1 << (at % 8);
      const damaged = Buffer.from(bytes);
      damaged[at]! ^= bit;
      writeFileSync(log, damaged);
      const before = contents(dir);
      const error = await failureOf(() => open(dir, SMALL));
      expect(error).toBeInstanceOf(MillraceError);
      expect(error).toMatchObject({
        code: 'ERR_MILLRACE_CORRUPT',
        file: log,
        position: expect.any(Number),
        reason: expect.any(String),
      });
      expect(error.message).toContain(String(error.reason));
      expect(error.position).toBeLessThanOrEqual(at);
      expect(contents(dir)).toEqual(before);
    }
    writeFileSync(log, bytes);
    expect((await opened({}, dir)).queue('jobs').counts()).toMatchObject({ ready: 9 });
  });

  it('that is empty, missing, or is not a log', async () => {
    const empty = temporaryDirectory();
    writeFileSync(join(empty, '0000000000000001.log'), '');
    await (await opened({}, empty)).queue('jobs').enqueue(1);
    const strange = temporaryDirectory();
    writeFileSync(join(strange, 'notes.txt'), 'not ours');
    await (await opened({}, strange)).queue('jobs').enqueue(1);
    expect(readFileSync(join(strange, 'notes.txt'), 'utf8')).toBe('not ours');
    const file = join(temporaryDirectory(), 'file');
    writeFileSync(file, 'a file');
    expect((await failureOf(() => open(file))).code).toBe('ERR_MILLRACE_IO');
    expect(existsSync(file)).toBe(true);
  });
});

/** Where in the only segment of a log the last batch begins, and where it ends. */
function lastBatch(dir: string): { from: number; to: number } {
  let from = 0;
  const { position } = scan(new DiskStorage(), dir, {
    record: () => {},
    batch: (header) => {
      from = header.position;
    },
  });
  return { from: SEGMENT_HEADER_BYTES + from, to: SEGMENT_HEADER_BYTES + position };
}

async function failing(): Promise<{ broker: Broker; words: Int32Array; dir: string }> {
  const words = new Int32Array(new SharedArrayBuffer(Disk.WORDS * 4));
  const dir = temporaryDirectory();
  const storage = { module: `file://${programPath('failing-disk')}`, data: words.buffer };
  const broker = await opened({ storage }, dir);
  return { broker, words, dir };
}

describe('a disk', () => {
  for (const [what, word] of [
    ['flush', Disk.SYNC_FAILS],
    ['write', Disk.WRITE_FAILS],
  ] as const) {
    it(`whose ${what} fails once ends the broker and leaves the program up`, async () => {
      const { broker, words, dir } = await failing();
      const queue = broker.queue<number>('jobs');
      await queue.enqueueMany([1, 2, 3]);
      const [lease] = await queue.claim();
      const thread = await attached(broker);
      const poisoned: MillraceError[] = [];
      broker.on('poisoned', (error) => poisoned.push(error));
      const worker = queue.process(() => 1);
      worker.pause();
      await queue.get(0);

      Atomics.store(words, word, 1);
      // Both are on their way before either can fail.
      Atomics.store(words, Disk.HELD, 1);
      const asked = [failureOf(() => queue.enqueue(4)), failureOf(() => queue.enqueueMany([5, 6]))];
      Atomics.store(words, Disk.HELD, 0);
      Atomics.notify(words, Disk.HELD);
      const unknown = await Promise.all(asked);
      const [writes, syncs] = [words[Disk.WRITES], words[Disk.SYNCS]];
      for (const error of unknown) {
        expect(error.code).toBe('ERR_MILLRACE_OUTCOME_UNKNOWN');
        expect(error.cause).toMatchObject({ code: 'ERR_MILLRACE_IO', errno: 'EIO' });
      }
      for (const act of [
        () => queue.enqueue(7),
        () => queue.tryEnqueue(7),
        () => queue.enqueueMany([7]),
        () => queue.run(7),
        () => queue.claim(),
        () => queue.claim({ wait: 1000 }),
        () => queue.tryClaim(),
        () => queue.get(1),
        () => queue.cancel(1),
        () => queue.result(1),
        () => queue.pause(),
        () => queue.deadLetters.list(),
        () => lease!.ack(),
        () => lease!.fail(),
        () => lease!.extend(1000),
        () => thread.enqueue('jobs', 7),
        () => thread.claim('jobs', { wait: 1000 }),
      ]) {
        const error = await failureOf(act).catch(({ message }: Error) => ({ code: message }));
        expect({ code: error.code, act: String(act) }).toEqual({ code: 'ERR_MILLRACE_IO', act: String(act) });
      }
      await until('it is told', () => poisoned.length === 1);
      expect(poisoned[0]).toMatchObject({ code: 'ERR_MILLRACE_IO', errno: 'EIO' });
      const { signal } = lease!;
      await until('leases are lost', () => signal.aborted);
      await broker.close();
      expect([words[Disk.WRITES], words[Disk.SYNCS]]).toEqual([writes, syncs]);

      const again = (await opened({}, dir)).queue<number>('jobs');
      expect(again.counts().ready).toBeGreaterThanOrEqual(3);
      expect((await again.claim({ max: 3 })).map(({ payload }) => payload)).toEqual([1, 2, 3]);
    });
  }

  it('that is full refuses what does not fit, keeps what there is, and goes on when there is room', async () => {
    const { broker, words, dir } = await failing();
    const queue = broker.queue<number>('jobs');
    await queue.enqueueMany([1, 2]);
    const [lease] = await queue.claim();
    const { to: size } = lastBatch(dir);

    Atomics.store(words, Disk.FULL, 1);
    for (const act of [() => queue.enqueue(3), () => queue.enqueueMany([3, 4]), () => queue.enqueue(3, { key: 'k' })]) {
      expect((await failureOf(act)).code).toBe('ERR_MILLRACE_NO_SPACE');
    }
    expect(broker.stats().diskFull).toBe(1);
    expect(statSync(logOf(dir)).size).toBe(size);
    // Claims and acks go on; what they have to say is written when there is room.
    const [second] = await queue.claim();
    expect([lease!.ack(), second!.payload]).toEqual([true, 2]);
    expect(await queue.get(lease!.id)).toBeDefined();

    Atomics.store(words, Disk.FULL, 0);
    await queue.enqueue(5);
    await until('the ack is written', async () => (await queue.get(lease!.id)) === undefined);
    expect(broker.stats().diskFull).toBe(0);
    await broker.close();
    const again = (await opened({}, dir)).queue<number>('jobs');
    expect((await taken(again, 2)).map(({ payload }) => payload).sort()).toEqual([2, 5]);
    expect(await again.claim()).toEqual([]);
  });
});
