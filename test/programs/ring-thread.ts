/**
 * One thread at a ring, for stress tests: a maker or taker of a ready ring, a producer or the follower of a submit ring.
 * Nobody waits with a time limit: a wake-up that is lost is a test that does not end.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { runAgent, wake } from '../../native-free/agent.js';
import { add, load, store, wait } from '../../native-free/atomics.js';
import { Ring } from '../../native-free/ring.js';
import { Bell, type Followed, OwnerMark, placeOf, type RingThread, SLOT_WORDS } from '../native-free/rings.js';

const VOID = -1;
const FILLS = 200;

const part = workerData as RingThread;
const bells = new Int32Array(part.bells);
const memory = new Int32Array(part.memory);
const place = placeOf(part.ring);
const ring = new Ring(place, part.owner);
const mask = ring.capacity - 1;

function pauseWhileFull(count: number): void {
  store(bells, Bell.NO_ROOM, 1);
  if (ring.used() + count > ring.capacity) wait(bells, Bell.NO_ROOM, 1, Infinity);
}

function make(): void {
  const pairs = new Int32Array(6);
  for (let i = 0; i < part.count; ) {
    const batch = Math.min(1 + (i % 3), part.count - i);
    for (let k = 0; k < batch; k++) {
      pairs[2 * k] = part.owner;
      pairs[2 * k + 1] = i + k;
    }
    while (!(batch === 1 ? ring.tryPush(part.owner, i) : ring.tryPushMany(pairs, batch))) pauseWhileFull(batch);
    wake(bells, Bell.NO_ITEM);
    i += batch;
  }
  add(bells, Bell.DONE, 1);
  wake(bells, Bell.NO_ITEM);
}

function take(): void {
  const pairs = new Int32Array(6);
  const last = new Int32Array(256).fill(-1);
  for (let turn = 0; ; turn++) {
    let count = 0;
    if (turn % 2 === 0) {
      count = ring.tryTakeMany(pairs, 3);
    } else if (ring.tryTake()) {
      pairs[0] = ring.itemA;
      pairs[1] = ring.itemB;
      count = 1;
    }
    for (let k = 0; k < count; k++) {
      const [maker, item] = [pairs[2 * k]!, pairs[2 * k + 1]!];
      // In order of each maker, and never twice.
      if (item <= last[maker]!) add(bells, Bell.FAULTS, 1);
      last[maker] = item;
      add(memory, (maker - 1) * part.count + item, 1);
    }
    if (count > 0) {
      wake(bells, Bell.NO_ROOM);
      continue;
    }
    if (load(bells, Bell.DONE) === part.makers && ring.used() === 0) return;
    store(bells, Bell.NO_ITEM, 1);
    if (ring.used() === 0 && load(bells, Bell.DONE) !== part.makers) wait(bells, Bell.NO_ITEM, 1, Infinity);
  }
}

function produce(): void {
  for (let sequence = 0; sequence < part.count; sequence++) {
    const count = 1 + ((sequence + part.generation) % 3);
    while (!ring.tryReserve(count)) pauseWhileFull(count);
    const { position } = ring;
    // Written over and over: most of a producer's time is to be spent between reserving and publishing.
    for (let i = 0; i < FILLS * count; i++) {
      const slot = i % count;
      const at = ((position & mask) + slot) * SLOT_WORDS;
      memory[at] = part.generation;
      memory[at + 1] = sequence;
      memory[at + 2] = slot;
      memory[at + 3] = part.generation ^ sequence ^ slot;
    }
    ring.publish(position);
    store(bells, Bell.GENERATIONS + part.generation, sequence + 1);
    wake(bells, Bell.NO_ITEM);
  }
}

/** Follows, repairs and releases, and clears the numbers of dead owners for others, as the log writer does. */
function follow(): Followed {
  const records: number[] = [];
  const drainAt = new Map<number, number>();
  let next = ring.head();
  let holes = 0;

  const isDead = (owner: number): boolean => load(bells, Bell.OWNERS + owner) !== OwnerMark.ALIVE;
  const noteDeaths = (): void => {
    for (let owner = 1; owner < 256; owner++) {
      if (load(bells, Bell.OWNERS + owner) !== OwnerMark.DEAD || drainAt.has(owner)) continue;
      const tail = ring.tail();
      if (ring.countAt(tail) === -owner) ring.repair(tail, owner);
      drainAt.set(owner, ring.tail());
    }
  };
  const clearDeaths = (): void => {
    for (const [owner, at] of drainAt) {
      if (((next - at) | 0) < 0) continue;
      drainAt.delete(owner);
      store(bells, Bell.OWNERS + owner, OwnerMark.DRAINED);
    }
  };
  const check = (at: number, count: number): void => {
    const generation = memory[at]!;
    const sequence = memory[at + 1]!;
    if (sequence !== (records[generation] ?? 0)) add(bells, Bell.FAULTS, 1);
    records[generation] = sequence + 1;
    for (let slot = 0; slot < count; slot++) {
      const word = at + slot * SLOT_WORDS;
      const isIntact = memory[word] === generation && memory[word + 1] === sequence && memory[word + 2] === slot;
      if (!isIntact || memory[word + 3] !== (generation ^ sequence ^ slot)) add(bells, Bell.FAULTS, 1);
    }
  };

  const agent = {
    finished: false,
    idleForMs: () => Infinity,
    step(): number {
      noteDeaths();
      let work = 0;
      for (;;) {
        const count = ring.countAt(next);
        if (count === 0) break;
        const at = (next & mask) * SLOT_WORDS;
        if (count < 0) {
          if (!isDead(-count)) break;
          if (ring.repair(next, -count) === 0) continue;
          memory[at] = VOID;
          ring.publish(next);
          continue;
        }
        if (memory[at] === VOID) holes++;
        else check(at, count);
        ring.release(next, count);
        next = (next + count) | 0;
        work += count;
      }
      if (work > 0) {
        ring.releaseTo(next);
        wake(bells, Bell.NO_ROOM);
      }
      clearDeaths();
      this.finished = load(bells, Bell.DONE) !== 0 && next === ring.tail();
      return work;
    },
  };
  runAgent(agent, bells, Bell.NO_ITEM);
  return { records, holes };
}

const roles = { maker: make, taker: take, producer: produce, follower: follow };
parentPort!.postMessage(roles[part.role]());
