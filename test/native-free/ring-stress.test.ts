// The ring under real threads: more of them than cores, four slots, every item counted, and threads that are terminated
// wherever they are. MILLRACE_TERMINATIONS sets how many; MILLRACE_SEED which and when.
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { describe, expect, it, onTestFinished } from 'vitest';
import { initialiseRing } from '../../native-free/ring.js';
import { programPath } from '../children.js';
import { Bell, type Followed, OwnerMark, placeOf, type RingThread, ringBuffers, SLOT_WORDS } from './rings.js';

const LONGEST = 3;

function startThread(part: RingThread): Worker {
  const worker = new Worker(programPath('ring-thread'), { workerData: part });
  onTestFinished(async () => void (await worker.terminate()));
  return worker;
}

async function answerOf(worker: Worker): Promise<unknown> {
  const [answer] = await once(worker, 'message');
  return answer;
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe('a ready ring of four slots', () => {
  it.each([
    [2, 2, 4],
    [4, 2, 4],
    [2, 2, -2],
    [4, 2, 2 ** 31 - 2],
  ])('%i makers, %i takers, first position %i: every item is taken once, in order', async (makers, takers, first) => {
    const count = 20_000;
    const ring = ringBuffers(4);
    initialiseRing(placeOf(ring), first);
    const bells = new SharedArrayBuffer(4 * (Bell.GENERATIONS + 1));
    const taken = new Int32Array(new SharedArrayBuffer(4 * makers * count));
    const rest = { ring, bells, count, makers, memory: taken.buffer, generation: 0 };
    const workers: Worker[] = [];
    for (let i = 0; i < makers + takers; i++) {
      workers.push(startThread({ ...rest, role: i < makers ? 'maker' : 'taker', owner: i + 1 }));
    }
    await Promise.all(workers.map(answerOf));
    expect(taken.every((times) => times === 1)).toBe(true);
    expect(new Int32Array(bells)[Bell.FAULTS]).toBe(0);
  });
});

describe('a submit ring', () => {
  it('goes on when producers are terminated at any moment, and loses nothing that was published', async () => {
    const terminations = Number(process.env.MILLRACE_TERMINATIONS ?? 100);
    const seed = Number(process.env.MILLRACE_SEED ?? 7);
    const capacity = 16;
    const producers = 3;
    const survivor = 200;
    const survivorRecords = 50_000;
    const ring = ringBuffers(capacity, 1);
    initialiseRing(placeOf(ring), -20);
    const bells = new SharedArrayBuffer(4 * (Bell.GENERATIONS + terminations + producers + 2));
    const words = new Int32Array(bells);
    const memory = new SharedArrayBuffer(4 * SLOT_WORDS * (capacity + LONGEST));
    const rest = { ring, bells, makers: 0, memory };

    const follower = startThread({ ...rest, role: 'follower', owner: 255, count: 0, generation: 0 });
    const followed = answerOf(follower) as Promise<Followed>;
    Atomics.store(words, Bell.OWNERS + survivor, OwnerMark.ALIVE);
    const lasting = { ...rest, role: 'producer', owner: survivor, count: survivorRecords, generation: 0 } as const;
    const survived = answerOf(startThread(lasting));

    let generations = 1;
    const start = (owner: number) => {
      Atomics.store(words, Bell.OWNERS + owner, OwnerMark.ALIVE);
      const generation = generations++;
      return {
        owner,
        generation,
        worker: startThread({ ...rest, role: 'producer', owner, count: Infinity, generation }),
      };
    };
    let state = seed;
    const random = (below: number): number => {
      state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
      return (state >>> 8) % below;
    };
    const kill = async ({ worker, owner }: ReturnType<typeof start>): Promise<void> => {
      await worker.terminate();
      Atomics.store(words, Bell.OWNERS + owner, OwnerMark.DEAD);
      // It may have been about to notify (A3 in agent.ts).
      Atomics.store(words, Bell.NO_ITEM, 0);
      Atomics.notify(words, Bell.NO_ITEM);
    };

    const living = Array.from({ length: producers }, (_, i) => start(i + 1));
    for (let i = 0; i < terminations; i++) {
      const [victim] = living.splice(random(living.length), 1);
      const until = 1 + random(3000);
      while (Atomics.load(words, Bell.GENERATIONS + victim!.generation) < until) await turn();
      await kill(victim!);
      while (Atomics.load(words, Bell.OWNERS + victim!.owner) !== OwnerMark.DRAINED) await turn();
      living.push(start(victim!.owner));
    }
    await survived;
    for (const victim of living) await kill(victim);
    Atomics.store(words, Bell.DONE, 1);
    Atomics.store(words, Bell.NO_ITEM, 0);
    Atomics.notify(words, Bell.NO_ITEM);

    const { records, holes } = await followed;
    expect(words[Bell.FAULTS], `seed ${seed}`).toBe(0);
    expect(records[0]).toBe(survivorRecords);
    let published = 0;
    for (let generation = 1; generation < generations; generation++) {
      // A producer may die after it published and before it said so.
      const said = words[Bell.GENERATIONS + generation]!;
      const found = records[generation] ?? 0;
      if (found !== said && found !== said + 1)
        expect.fail(`seed ${seed}: generation ${generation}: ${found} of ${said}`);
      published += found;
    }
    const all = records.reduce((sum, count) => sum + count, 0);
    expect(all).toBe(survivorRecords + published);
    console.log(`${generations - 1} terminations, ${holes} holes filled, ${all} records, lost 0, stalls 0`);
  }, 600_000);
});
