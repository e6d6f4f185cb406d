/** When an enqueue is durable: after its flush, never before; one write and one flush a batch; who shares them. */
import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { BATCH_HEADER_BYTES } from '../../src/log/batch.js';
import { opened, temporaryDirectory, timed, until } from '../brokers.js';
import { programPath } from '../children.js';

const TRACED = 'pwritev,pwrite64,pwritev2,write,writev,fdatasync,fsync';
const RECORD_BYTES = 64;

interface Call {
  readonly name: string;
  /** Of the file that the descriptor stands for. */
  readonly path: string;
  readonly text: string;
  readonly result: number;
}

/** The calls of a trace in the order in which they returned. */
function callsOf(trace: string): Call[] {
  const begun = new Map<string, string>();
  const calls: Call[] = [];
  for (const line of trace.split('\n')) {
    const [, thread, rest] = /^(\d+) +(.*)$/.exec(line) ?? [];
    if (thread === undefined || rest === undefined) continue;
    if (rest.endsWith('<unfinished ...>')) {
      begun.set(thread, rest.slice(0, -'<unfinished ...>'.length));
      continue;
    }
    const resumed = /^<\.\.\. \w+ resumed>(.*)$/.exec(rest);
    const whole = resumed === null ? rest : `${begun.get(thread) ?? ''}${resumed[1]}`;
    const call = /^(\w+)\(\d+<([^>]*)>(.*)\) += (-?\d+)/.exec(whole);
    if (call !== null) calls.push({ name: call[1]!, path: call[2]!, text: call[3]!, result: Number(call[4]) });
  }
  return calls;
}

describe('an enqueue', () => {
  it('is told after one write and one fdatasync of its batch, and never before', () => {
    // A machine that cannot trace cannot show this; the CI script installs strace.
    expect(spawnSync('strace', ['-V']).status, 'strace is needed for this test: install it').toBe(0);
    const dir = temporaryDirectory();
    const out = join(temporaryDirectory(), 'trace');
    const [producers, rounds] = [64, 20];
    execFileSync(
      'strace',
      ['-f', '-y', '-s', '16', '-e', `trace=${TRACED}`, '-o', out, process.execPath, programPath('producers')].concat(
        dir,
        String(producers),
        String(rounds),
      ),
      { stdio: ['ignore', 'pipe', 'inherit'], timeout: 50_000 },
    );
    const calls = callsOf(readFileSync(out, 'utf8')).filter(
      ({ path, text }) => path.endsWith('.log') || /"(alone|durable|together|over)\\n"/.test(text),
    );
    const marker = (word: string): number => calls.findIndex(({ text }) => text.includes(`"${word}\\n"`));
    const letter = (call: Call): string => {
      if (!call.path.endsWith('.log')) return 'told';
      return call.name === 'fdatasync' || call.name === 'fsync' ? call.name : 'write';
    };

    const alone = calls.slice(marker('alone') + 1, marker('together'));
    expect(alone.map(letter)).toEqual(Array.from({ length: rounds }, () => ['write', 'fdatasync', 'told']).flat());

    let flushed = 0;
    let told = 0;
    let unflushed = 0;
    for (const call of calls.slice(marker('together') + 1, marker('over'))) {
      switch (letter(call)) {
        case 'write':
          expect(unflushed, 'a batch is written before the one in front of it was flushed').toBe(0);
          unflushed = (call.result - BATCH_HEADER_BYTES) / RECORD_BYTES;
          break;
        case 'fdatasync':
          flushed += unflushed;
          unflushed = 0;
          break;
        default:
          told++;
          expect(told, 'more jobs are told to be durable than were flushed').toBeLessThanOrEqual(flushed);
      }
    }
    expect({ told, flushed }).toEqual({ told: producers * rounds, flushed: producers * rounds });
  });

  it('shares its flush with the others that 64 producers await at the same time', async () => {
    const broker = await opened();
    const queue = broker.queue<number>('jobs');
    await queue.enqueue(0);
    const before = broker.stats();
    const rounds = 50;
    const produce = async (): Promise<void> => {
      for (let i = 0; i < rounds; i++) await queue.enqueue(i);
    };
    await Promise.all(Array.from({ length: 64 }, produce));
    const { records, flushes } = broker.stats();
    expect(records - before.records).toBe(64 * rounds);
    expect((records - before.records) / (flushes - before.flushes)).toBeGreaterThanOrEqual(20);
  });

  it('of many is one batch', async () => {
    const broker = await opened();
    const queue = broker.queue<number>('jobs');
    await queue.enqueue(0);
    const before = broker.stats();
    const jobs = await queue.enqueueMany(Array.from({ length: 10_000 }, (_, i) => i));
    const { batches, records } = broker.stats();
    expect({ batches: batches - before.batches, records: records - before.records }).toEqual({
      batches: 1,
      records: 10_000,
    });
    expect(jobs.every((job, i) => i === 0 || job.id > jobs[i - 1]!.id)).toBe(true);
  });

  it('waits for more to share its flush with, when a linger is set', async () => {
    const { broker, clock } = await timed({ linger: 1000 });
    const queue = broker.queue<number>('jobs');
    const lingered = async <T>(promise: Promise<T>): Promise<T> => {
      let over = false;
      promise.finally(() => {
        over = true;
      });
      await until('the linger is over', () => {
        clock.advance(1000);
        return over;
      });
      return await promise;
    };
    await lingered(queue.enqueue(0));
    const before = broker.stats();
    const both = Promise.all([queue.enqueue(1), queue.enqueue(2)]);
    await new Promise((resolve) => setImmediate(resolve));
    expect(broker.stats().batches).toBe(before.batches);
    await lingered(both);
    expect(broker.stats().batches - before.batches).toBe(1);
  });
});

describe('a queue’s durability', () => {
  for (const [durability, batches, flushes] of [
    ['fsync', 1, 1],
    ['os', 1, 0],
    ['memory', 0, 0],
  ] as const) {
    it(`of '${durability}' costs ${batches} write and ${flushes} flushes a batch`, async () => {
      const broker = await opened();
      const queue = broker.queue<number>('jobs', { durability });
      await queue.enqueue(0);
      const before = broker.stats();
      await queue.enqueueMany([1, 2, 3]);
      const after = broker.stats();
      expect({ batches: after.batches - before.batches, flushes: after.flushes - before.flushes }).toEqual({
        batches,
        flushes,
      });
      expect(await queue.claim({ max: 10 })).toHaveLength(4);
    });
  }

  it('can be asked for by a single job', async () => {
    const broker = await opened();
    const queue = broker.queue<number>('jobs', { durability: 'memory' });
    await queue.enqueue(0);
    const before = broker.stats();
    await queue.enqueue(1, { durability: 'fsync' });
    expect(broker.stats().flushes - before.flushes).toBe(1);
  });

  it('is never less than asked for when levels share a batch', async () => {
    const broker = await opened();
    const [safe, fast] = [broker.queue<number>('safe'), broker.queue<number>('fast', { durability: 'os' })];
    await Promise.all([safe.enqueue(0), fast.enqueue(0)]);
    const before = broker.stats();
    await Promise.all([fast.enqueue(1), safe.enqueue(1), fast.enqueue(2)]);
    expect(broker.stats().flushes - before.flushes).toBeGreaterThanOrEqual(1);
  });
});
