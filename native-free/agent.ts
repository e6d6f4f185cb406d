/**
 * An agent: a thread's work as a `step()` that does a bounded amount and says how much it did (after Agrona's
 * `doWork`). The loop here drives one; a simulation calls `step()` itself, on one thread, from a seed.
 * Also the two ways to wake somebody, used by every thread.
 *
 * A1  A sleeper stores ASLEEP, then looks for work once more, then waits; a waker makes work visible, then looks at
 *     ASLEEP. So either the sleeper sees the work or the waker sees the sleeper: no wake-up is lost.
 * A2  The waker takes ASLEEP back by CAS, so a batch costs one notify however many wake-ups are asked for.
 * A3  A waker may die between the two. Whoever learns of a death therefore wakes everybody without asking.
 * A4  An owner that found a ready ring empty is on the group's list. It takes itself off when it wants nothing of the
 *     group any more, and if the ring has something then, it wakes the others: it may have been woken for that.
 */
import { and, compareExchange, load, notify, store, wait } from './atomics.js';
import { GroupWord, OwnerState, OwnerWord, type Shared, Word } from './layout.js';

export interface Agent {
  /** Does bounded work. Returns how much was done; 0 means idle. Throws nothing. */
  step(): number;
  /** Milliseconds until there may be work without anybody's wake-up; Infinity when there is none. At least 0. */
  idleForMs(): number;
  /** True when the agent has nothing left to do for ever. */
  readonly finished: boolean;
}

const SPINS = 16;

/** Runs an agent until it is finished. Blocks its thread: never on a thread with an event loop to serve. */
export function runAgent(agent: Agent, words: Int32Array, asleep: number): void {
  let idle = 0;
  while (!agent.finished) {
    if (agent.step() > 0) {
      idle = 0;
      continue;
    }
    if (++idle < SPINS) continue;
    store(words, asleep, 1);
    if (agent.step() > 0 || agent.finished) {
      store(words, asleep, 0);
      idle = 0;
      continue;
    }
    wait(words, asleep, 1, agent.idleForMs());
    store(words, asleep, 0);
    idle = SPINS - 2;
  }
}

/** Wakes whoever sleeps on this word (A2). Cheap when nobody does. */
export function wake(words: Int32Array, asleep: number): void {
  if (load(words, asleep) === 1 && compareExchange(words, asleep, 1, 0) === 1) notify(words, asleep);
}

/** Wakes whoever may have been about to be woken by a thread that is now dead (A3). */
export function wakeAfterDeath(shared: Shared): void {
  const { control, owners } = shared;
  store(control, Word.WRITER_ASLEEP, 0);
  notify(control, Word.WRITER_ASLEEP);
  store(control, Word.SCHEDULER_ASLEEP, 0);
  notify(control, Word.SCHEDULER_ASLEEP);
  const seen = load(control, Word.OWNERS_SEEN);
  for (let owner = 0; owner <= seen; owner++) {
    const asleep = owner * OwnerWord.WORDS + OwnerWord.ASLEEP;
    store(owners, asleep, 0);
    notify(owners, asleep);
  }
}

/** Wakes every client thread that sleeps and wants one of `wants`. */
export function wakeOwners(shared: Shared, wants: number): void {
  const owners = shared.owners;
  const seen = load(shared.control, Word.OWNERS_SEEN);
  for (let owner = 0; owner <= seen; owner++) {
    const block = owner * OwnerWord.WORDS;
    if (load(owners, block + OwnerWord.ASLEEP) !== 1) continue;
    if ((load(owners, block + OwnerWord.WANTS) & wants) === 0) continue;
    if (load(owners, block + OwnerWord.STATE) !== OwnerState.ALIVE) continue;
    wake(owners, block + OwnerWord.ASLEEP);
  }
}

/** Wakes up to `count` owners on a group's list, and takes them off (A4). */
export function feed(shared: Shared, group: number, count: number): void {
  const { groups, owners } = shared;
  const block = group * GroupWord.WORDS;
  let left = count;
  for (let word = 0; word < 8 && left > 0; word++) {
    const index = block + GroupWord.HUNGRY + word;
    let bits = load(groups, index);
    while (bits !== 0 && left > 0) {
      const bit = bits & -bits;
      bits &= ~bit;
      and(groups, index, ~bit);
      wake(owners, (word * 32 + (31 - Math.clz32(bit))) * OwnerWord.WORDS + OwnerWord.ASLEEP);
      left--;
    }
  }
}

/** Takes an owner off a group's list (A4). */
export function leaveGroup(shared: Shared, group: number, owner: number): void {
  const { groups } = shared;
  const block = group * GroupWord.WORDS;
  and(groups, block + GroupWord.HUNGRY + (owner >>> 5), ~(1 << (owner & 31)));
  const count = (load(groups, block + GroupWord.TAIL) - load(groups, block + GroupWord.HEAD)) | 0;
  if (count > 0) feed(shared, group, count);
}
