/**
 * Sleepers and wakers as programs for a `Machine`: the real `runAgent`, `wake`, `wakeOwners` and `wakeAfterDeath`, and
 * the order in which `src/client/port` says what it wants, falls asleep and looks once more.
 *
 * Work is a count that a waker raises; a sleeper that has caught up with it has nothing to do. Everybody who can go on
 * does, so a sleeper that is parked behind the count when nobody can go on has lost a wake-up.
 * The undertaker is the thread that hears of a thread's exit: it does what `markDead` does.
 */

import type * as AgentModule from '../../native-free/agent.js';
import * as layout from '../../native-free/layout.js';
import { Machine } from './machine.js';
import { Next, type Oracle, type Program, Violation } from './program.js';
import { type Edit, loadSource } from './source.js';

const { OwnerState, OwnerWord, Word } = layout;

export interface WakeWorldOptions {
  /** How many pieces of work each waker makes, each followed by a wake-up. */
  readonly wakers: readonly number[];
  /** The log writer's loop, or so many clients that sleep as `port` does. */
  readonly sleepers: 'agent' | number;
  readonly edits?: readonly Edit[];
  /** False: whoever hears of a death wakes as everybody does. */
  readonly wakesAfterDeath?: boolean;
  /** True: the waker looks at the sleeper before its work can be seen. */
  readonly wakesFirst?: boolean;
  /** True: a client falls asleep before it says what it wants. */
  readonly wantsLast?: boolean;
}

/** Work that wakers make in turn: every client waits for the first, then for the second. */
const WANTED = [layout.Wants.DURABLE, layout.Wants.READY] as const;
/** What is made for `WANTED[i]`: words that the protocol does not use otherwise. */
const MADE = [Word.COMMITTED, Word.JOBS_RESERVED] as const;
const FIRST_SLEEPER = layout.Owner.FIRST;

function base(name: string): Program {
  return {
    name,
    daemon: false,
    killable: false,
    reserves: false,
    remembersHead: false,
    loopAt: -1,
    operate: () => 0,
    settle: () => Next.FINISH,
  };
}

export class WakeWorld implements Oracle {
  readonly machine = new Machine();
  readonly #options: WakeWorldOptions;
  readonly #agent: typeof AgentModule;
  readonly #shared: layout.Shared;
  readonly #exits: Int32Array;
  readonly #seen: Int32Array;

  constructor(options: WakeWorldOptions) {
    const { wakers, sleepers, edits = [] } = options;
    const { machine } = this;
    this.#options = options;
    const modules = { './atomics.js': machine.atomics, './layout.js': layout };
    // Turning many times before falling asleep shows nothing that turning twice does not.
    const spins = { from: /const SPINS = \d+;/, to: 'const SPINS = 2;' };
    this.#agent = loadSource<typeof AgentModule>('agent.ts', modules, [spins, ...edits]);

    const clients = sleepers === 'agent' ? 0 : sleepers;
    const names = new Map(Object.entries(Word).map(([name, index]) => [index as number, name]));
    const words = [...MADE, Word.WRITER_ASLEEP, Word.SCHEDULER_ASLEEP, Word.OWNERS_SEEN, Word.DEATHS];
    const control = machine.region(words, (index) => names.get(index)!);
    // Blocks of owners below the clients' are looked at when everybody is woken.
    const blocks = Array.from({ length: FIRST_SLEEPER + clients }, (_, owner) => owner * OwnerWord.WORDS);
    const ownerWords = blocks.flatMap((block) =>
      [OwnerWord.STATE, OwnerWord.ASLEEP, OwnerWord.WANTS].map((word) => block + word),
    );
    const owners = machine.region(
      ownerWords,
      (index) => `owner ${Math.floor(index / OwnerWord.WORDS)} word ${index % OwnerWord.WORDS}`,
    );
    this.#shared = { control, owners } as layout.Shared;
    this.#exits = machine.region(wakers.length, (index) => `exit of W${index + 1}`);
    this.#seen = machine.region(Math.max(1, clients), (index) => `seen by ${index}`);

    const programs = wakers.map((count, thread) => this.#waker(thread, count));
    programs.push(this.#undertaker(wakers.length));
    if (sleepers === 'agent') programs.push(this.#runs(programs.length));
    for (let i = 0; i < clients; i++) programs.push(this.#client(programs.length, i));
    machine.start(programs, this, 0);
    const { state } = machine;
    state[machine.address(control, Word.OWNERS_SEEN)] = FIRST_SLEEPER + clients - 1;
    for (let i = 0; i < clients; i++) {
      state[machine.address(owners, (FIRST_SLEEPER + i) * OwnerWord.WORDS + OwnerWord.STATE)] = OwnerState.ALIVE;
    }
  }

  written(): void {}

  killed(thread: number): void {
    this.machine.change(this.machine.address(this.#exits, thread), 1);
  }

  atEnd(): void {
    const { machine } = this;
    const word = (words: Int32Array, index: number): number => machine.state[machine.address(words, index)]!;
    if (this.#options.sleepers === 'agent') {
      const made = word(this.#shared.control, MADE[0]);
      const seen = word(this.#seen, 0);
      if (made !== seen) throw new Violation(`a lost wake-up: ${made - seen} pieces of work left`);
      return;
    }
    for (let i = 0; i < this.#options.sleepers; i++) {
      const seen = word(this.#seen, i);
      const wanted = MADE[seen];
      if (wanted !== undefined && word(this.#shared.control, wanted) > 0) {
        throw new Violation(`a lost wake-up: client ${i} sleeps over what it wants`);
      }
    }
  }

  /** Register 0: how many pieces it has made. */
  #waker(thread: number, count: number): Program {
    const { machine } = this;
    const { atomics } = machine;
    const { control } = this.#shared;
    return {
      ...base(`W${thread + 1}`),
      killable: true,
      operate: () => {
        if (this.#options.sleepers === 'agent') {
          if (this.#options.wakesFirst === true) this.#agent.wake(control, Word.WRITER_ASLEEP);
          atomics.add(control, MADE[0], 1);
          if (this.#options.wakesFirst !== true) this.#agent.wake(control, Word.WRITER_ASLEEP);
        } else {
          const kind = machine.register(thread, 0) % 2;
          atomics.add(control, MADE[kind]!, 1);
          this.#agent.wakeOwners(this.#shared, WANTED[kind]!);
        }
        return 0;
      },
      settle: () => {
        const made = machine.register(thread, 0) + 1;
        machine.setRegister(thread, 0, made);
        return made === count ? Next.FINISH : Next.CONTINUE;
      },
    };
  }

  /** Register 0: one bit for each waker it has buried. As `markDead` in `src/client/port`. */
  #undertaker(thread: number): Program {
    const { machine } = this;
    const { atomics } = machine;
    const { control } = this.#shared;
    return {
      ...base('undertaker'),
      daemon: true,
      operate: () => {
        const buried = machine.register(thread, 0);
        for (let waker = 0; waker < this.#options.wakers.length; waker++) {
          if ((buried & (1 << waker)) !== 0 || atomics.load(this.#exits, waker) === 0) continue;
          atomics.add(control, Word.DEATHS, 1);
          if (this.#options.wakesAfterDeath === false) {
            this.#agent.wake(control, Word.WRITER_ASLEEP);
            this.#agent.wake(control, Word.SCHEDULER_ASLEEP);
            this.#agent.wakeOwners(this.#shared, 0xff);
          } else {
            this.#agent.wakeAfterDeath(this.#shared);
          }
          return waker;
        }
        return -1;
      },
      settle: (waker) => {
        if (waker < 0) return Next.RETRY;
        machine.setRegister(thread, 0, machine.register(thread, 0) | (1 << waker));
        return Next.CONTINUE;
      },
    };
  }

  /**
   * `runAgent`, ended and begun again after each piece of work and each sleep. It cannot tell: with two spins it begins
   * with the same count of idle turns, 0, that it goes on with. Register 0: how much work it has done.
   */
  #runs(thread: number): Program {
    const { machine } = this;
    const { atomics } = machine;
    const { control } = this.#shared;
    let done = 0;
    return {
      ...base('agent'),
      daemon: true,
      operate: () => {
        done = machine.register(thread, 0);
        let isOver = false;
        const agent: AgentModule.Agent = {
          get finished() {
            return isOver;
          },
          idleForMs: () => {
            isOver = true;
            return Infinity;
          },
          step: () => {
            const work = atomics.load(control, MADE[0]) - done;
            done += work;
            // For the oracle alone, and so no step.
            machine.state[machine.address(this.#seen, 0)] = done;
            if (work > 0) isOver = true;
            return work;
          },
        };
        this.#agent.runAgent(agent, control, Word.WRITER_ASLEEP);
        return 0;
      },
      settle: () => {
        machine.setRegister(thread, 0, done);
        return Next.CONTINUE;
      },
    };
  }

  /** Sleeps as `#arm` of `src/client/port`, but in `wait`. Register 0: how many wishes have come true. */
  #client(thread: number, index: number): Program {
    const { machine } = this;
    const { atomics } = machine;
    const { control, owners } = this.#shared;
    const asleep = (FIRST_SLEEPER + index) * OwnerWord.WORDS + OwnerWord.ASLEEP;
    const wants = (FIRST_SLEEPER + index) * OwnerWord.WORDS + OwnerWord.WANTS;
    return {
      ...base(`client ${index}`),
      daemon: true,
      operate: () => {
        const wish = machine.register(thread, 0);
        const hasWork = (): boolean => atomics.load(control, MADE[wish]!) > 0;
        if (this.#options.wantsLast !== true) atomics.store(owners, wants, WANTED[wish]!);
        atomics.store(owners, asleep, 1);
        if (hasWork()) {
          atomics.store(owners, asleep, 0);
          return 1;
        }
        if (this.#options.wantsLast === true) atomics.store(owners, wants, WANTED[wish]!);
        atomics.wait(owners, asleep, 1, Infinity);
        return 0;
      },
      settle: (came) => {
        const wish = machine.register(thread, 0) + came;
        machine.state[machine.address(this.#seen, index)] = wish;
        machine.setRegister(thread, 0, wish);
        return wish === WANTED.length ? Next.FINISH : Next.CONTINUE;
      },
    };
  }
}
