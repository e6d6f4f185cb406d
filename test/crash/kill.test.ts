/**
 * Processes that are killed at random moments while 4 of their threads enqueue and 4 consume. What they were told is
 * true afterwards: every job that was accepted is live, done or dead, and every one that was done for good is done.
 * MILLRACE_KILLS says how often (default 100), MILLRACE_SEED when.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import type { Readable } from 'node:stream';
import { expect, it, onTestFinished } from 'vitest';
import { opened, soon, temporaryDirectory } from '../brokers.js';
import { Child, programPath } from '../children.js';
import type { Checked, Turn } from '../programs/survivor.js';

const KILLS = Number(process.env.MILLRACE_KILLS ?? 100);
const SEED = Number(process.env.MILLRACE_SEED ?? Math.floor(Math.random() * 2 ** 31));

/** Mulberry32. */
function randomFrom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Whole numbers that come through a pipe, eight bytes each. */
class Told {
  readonly ids: number[] = [];
  #rest: Buffer = Buffer.alloc(0);

  constructor(pipe: Readable, heard: () => void) {
    pipe.on('data', (chunk: Buffer) => {
      const bytes = Buffer.concat([this.#rest, chunk]);
      const whole = bytes.length & ~7;
      for (let at = 0; at < whole; at += 8) this.ids.push(bytes.readDoubleLE(at));
      this.#rest = bytes.subarray(whole);
      heard();
    });
  }
}

class Survivor {
  readonly process: ChildProcess;
  readonly accepted: Told;
  readonly done: Told;
  /** All that it wrote has been read. */
  readonly #closed: Promise<unknown>;
  #heard: () => void = () => {};
  #stderr = '';

  constructor(dir: string) {
    this.process = spawn(process.execPath, [programPath('survivor'), dir], {
      stdio: ['ignore', 'ignore', 'pipe', 'pipe', 'pipe', 'ipc'],
    });
    this.#closed = once(this.process, 'close');
    const [, , stderr, accepted, done] = this.process.stdio as Readable[];
    stderr!.on('data', (chunk: Buffer) => {
      this.#stderr += chunk.toString();
    });
    this.accepted = new Told(accepted!, () => this.#heard());
    this.done = new Told(done!, () => this.#heard());
    onTestFinished(() => this.kill());
  }

  /** Opens the directory; resolves with what it found. */
  async turn(turn: Turn): Promise<Checked> {
    const answer = Promise.race([
      once(this.process, 'message').then(([checked]) => checked as Checked),
      this.#closed.then(() => Promise.reject(new Error(`it did not open the directory: ${this.#stderr}`))),
    ]);
    this.process.send(turn);
    return await soon('it opens and checks', answer);
  }

  /** Resolves when it has been told of so many accepted jobs. */
  async worked(count: number): Promise<void> {
    await soon(
      `${count} jobs are accepted`,
      new Promise<void>((resolve, reject) => {
        this.#heard = () => {
          if (this.accepted.ids.length >= count) resolve();
        };
        this.#heard();
        void this.#closed.then(() => reject(new Error(`it ended by itself: ${this.#stderr}`)));
      }),
    );
  }

  async kill(): Promise<void> {
    this.process.kill('SIGKILL');
    await this.#closed;
  }
}

it(
  `nothing that ${KILLS} killed processes were told is lost (seed ${SEED})`,
  async () => {
    const random = randomFrom(SEED);
    const dir = temporaryDirectory();
    const accepted: number[] = [];
    const done: number[] = [];
    const openMs: number[] = [];
    let turn: Turn = { accepted: [], done: [] };
    let next = new Survivor(dir);
    for (let kill = 0; kill < KILLS; kill++) {
      const survivor = next;
      // Comes up while this one works.
      next = new Survivor(dir);
      const checked = await survivor.turn(turn);
      expect({ kill, lost: checked.lost, undone: checked.undone }).toEqual({ kill, lost: [], undone: [] });
      openMs.push(checked.openMs);
      // At once, while its threads attach, or after a while.
      await survivor.worked(Math.floor(random() ** 2 * 400));
      await survivor.kill();
      accepted.push(...survivor.accepted.ids);
      done.push(...survivor.done.ids);
      turn = { accepted: survivor.accepted.ids, done: survivor.done.ids };
    }
    await next.kill();
    expect(new Set(done).size).toBe(done.length);

    const from = performance.now();
    const broker = await opened({ jobsMax: 1_000_000 }, dir);
    openMs.push(performance.now() - from);
    const queue = broker.queue('survivors');
    const states = await Promise.all(accepted.map(async (id) => (await queue.get(id))?.state));
    expect(accepted.filter((_, i) => states[i] === undefined)).toEqual([]);
    const isDone = new Set(accepted.filter((_, i) => states[i] === 'done'));
    expect(done.filter((id) => !isDone.has(id) && accepted.includes(id))).toEqual([]);
    openMs.sort((a, b) => a - b);
    console.log(
      `${KILLS} kills: ${accepted.length} jobs accepted, ${done.length} done; open took ${Math.round(openMs[openMs.length >> 1]!)} ms, at most ${Math.round(openMs.at(-1)!)} ms`,
    );
  },
  60_000 + 3000 * KILLS,
);

it('a killed process loses what was in memory alone, and nothing that was written', async () => {
  const dir = temporaryDirectory();
  const child = new Child('levels', [dir]);
  const { id } = await child.message<{ id: number }>();
  await child.kill();
  const broker = await opened({}, dir);
  for (const [name, ready] of [
    ['fsync', 100],
    ['os', 100],
    ['memory', 0],
  ] as const) {
    expect({ name, ready: broker.queue(name).counts().ready }).toEqual({ name, ready });
  }
  // The ids of those that are gone are not given out again.
  expect((await broker.queue('memory').enqueue(1)).id).toBeGreaterThan(id);
});
