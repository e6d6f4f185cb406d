/**
 * The two uses of the ring as programs for a `Machine`.
 *
 * Submit ring: producers reserve runs of slots, fill slot memory and publish; one follower reads reservation after
 * reservation, fills those of dead owners with holes as `src/log/gather` does, and releases them as the scheduler does.
 * Ready ring: makers push one item or several at a time, takers take one or several.
 * A producer that dies and the news of it are one event: that it does nothing for a while before is among the schedules.
 */
import type { Ring, RingPlace } from '../../native-free/ring.js';
import { Machine } from './machine.js';
import { Next, type Program, Status } from './program.js';
import { carried, RingOracle } from './ring-oracle.js';
import { type Edit, loadSource } from './source.js';

interface RingModule {
  readonly Ring: new (place: RingPlace, owner: number) => Ring;
  initialiseRing(place: RingPlace, first?: number): void;
}

export interface RingWorldOptions {
  readonly capacity: number;
  /** For each producer, how many slots each of its reservations takes. */
  readonly producers: readonly (readonly number[])[];
  /** The submit ring's follower, on one thread or two (log writer, scheduler); or what each taker takes at most. */
  readonly consumers: 'follower' | 'writer and scheduler' | readonly number[];
  /** A thread that gets the number of producer 1 after its death, and its reservations. */
  readonly successor?: readonly number[];
  readonly first?: number;
  readonly edits?: readonly Edit[];
  /** False: nobody repairs, as in the classic ring. */
  readonly repairs?: boolean;
  /** False: the successor's way is cleared without a look at what stands at the tail. */
  readonly looksAtTail?: boolean;
}

const REFUSED = -1;
const REPAIRED = -2;
const RELEASED = -3;
const NOTED = -4;
const CLEARED = -5;
const VOID = -1;
/** Registers of a follower: its position, how many slots before it are to be released, the death it works on. */
const Follower = { POSITION: 0, OPEN: 1, DEATH: 2 } as const;
const Owner = { DEAD: 1, DRAINED: 2, TAKEN: 3 } as const;

export class RingWorld {
  readonly machine = new Machine();
  readonly oracle: RingOracle;
  readonly place: RingPlace;
  readonly #options: RingWorldOptions;
  readonly #module: RingModule;
  readonly #slots: Int32Array;
  readonly #owners: Int32Array;
  readonly #committed: Int32Array;
  readonly #followerOwner: number;
  /** While set, each thread's own ring for as long as it lives: see `walk`. */
  lasting: Ring[] | undefined;

  constructor(options: RingWorldOptions) {
    const { capacity, producers, consumers, successor, first = capacity } = options;
    const { machine } = this;
    this.#options = options;
    this.#module = loadSource<RingModule>('ring.ts', { './atomics.js': machine.atomics }, options.edits);
    const isSubmit = typeof consumers === 'string';
    const counts = successor === undefined ? producers : [...producers, successor];
    this.#followerOwner = producers.length + 1;

    const entryShift = isSubmit ? 1 : 2;
    const parts = ['stamp', 'count', 'item', 'item2'];
    const partOf = (index: number) => `${parts[index & ((1 << entryShift) - 1)]}[${index >>> entryShift}]`;
    const cursors = machine.region(2, (index) => (index === 0 ? 'tail' : 'head'));
    const words = machine.region(capacity << entryShift, partOf);
    const intents = machine.region(producers.length + 2, (index) => `intent[${index}]`);
    this.#slots = machine.region(isSubmit ? capacity + Math.max(...counts.flat()) - 1 : 0, (i) => `slot[${i}]`);
    this.#owners = machine.region(producers.length + 1, (index) => `owner[${index}]`);
    this.#committed = machine.region(1, () => 'committed');
    this.place = {
      words,
      entries: 0,
      entryShift,
      capacity,
      cursors,
      tail: 0,
      head: 1,
      intents,
      intentFirst: 0,
      intentStride: 1,
    };
    this.oracle = new RingOracle(machine, this.place, first, counts, (thread) => this.#died(thread));

    const programs: Program[] = counts.map((_, thread) => this.#producer(thread));
    const threads = programs.length;
    if (consumers === 'follower') {
      programs.push(this.#follower(threads, true, true));
    } else if (consumers === 'writer and scheduler') {
      programs.push(this.#follower(threads, true, false), this.#follower(threads + 1, false, true));
    } else {
      for (const [i, max] of consumers.entries()) programs.push(this.#taker(threads + i, i, max));
    }
    this.#initialise(programs, first);
  }

  /** A ring for each thread, as it stands at the start. */
  lastingRings(): Ring[] {
    return this.machine.programs.map((_, thread) => this.#ringOf(thread));
  }

  /** `initialiseRing` runs as a thread's only operation, before there is anybody else. */
  #initialise(programs: readonly Program[], first: number): void {
    const { machine, place } = this;
    const initialise: Program = {
      name: 'initialise',
      daemon: false,
      killable: false,
      reserves: false,
      remembersHead: false,
      loopAt: -1,
      operate: () => {
        this.#module.initialiseRing(place, first);
        return 0;
      },
      settle: () => Next.FINISH,
    };
    machine.start([initialise], { written: () => {}, killed: () => {}, atEnd: () => {} }, 0);
    while (machine.status(0) !== Status.FINISHED) machine.step(0);
    const memory = machine.state.slice(0, machine.address(this.#committed, 0));
    machine.start(programs, this.oracle, this.oracle.bookWords);
    machine.state.set(memory);
    machine.state[machine.address(this.#committed, 0)] = first;
    machine.follow(place, machine.address(place.intents, 1));
    const makers = this.oracle.counts.length;
    for (let thread = makers; thread < programs.length; thread++) machine.setRegister(thread, 0, first);
  }

  /** Threads have the owner numbers 1, 2, ...; the successor has that of the first, and takers reserve nothing. */
  #ringOf(thread: number): Ring {
    if (this.lasting !== undefined) return this.lasting[thread]!;
    const producers = this.#options.producers.length;
    const owner = thread < producers ? thread + 1 : thread < this.oracle.counts.length ? 1 : this.#followerOwner;
    return this.machine.withRing(thread, () => new this.#module.Ring(this.place, owner));
  }

  /** Where a producer's death is to be read; -1 for others. */
  ownerAddress(thread: number): number {
    return thread < this.#options.producers.length ? this.machine.address(this.#owners, thread + 1) : -1;
  }

  #died(thread: number): void {
    if (this.ownerAddress(thread) >= 0) this.machine.change(this.ownerAddress(thread), Owner.DEAD);
  }

  /** Register 0: how many reservations it has made. */
  #producer(thread: number): Program {
    const { machine, oracle } = this;
    const counts = oracle.counts[thread]!;
    const isSubmit = typeof this.#options.consumers === 'string';
    const isSuccessor = thread === this.#options.producers.length;
    const wanted = (): number => counts[machine.register(thread, 0)]!;
    return {
      name: isSuccessor ? "P1's successor" : `P${thread + 1}`,
      // It waits for ever when nobody dies.
      daemon: isSuccessor,
      // Makers of ready rings cannot be repaired: theirs is the scheduler, which ends with its broker.
      killable: isSubmit && !isSuccessor && (this.#options.successor === undefined || thread === 0),
      reserves: true,
      remembersHead: !isSubmit,
      loopAt: machine.address(this.place.cursors, this.place.tail),
      operate: () => {
        const sequence = machine.register(thread, 0);
        const { atomics } = machine;
        if (isSuccessor && sequence === 0) {
          const found = atomics.compareExchange(this.#owners, 1, Owner.DRAINED, Owner.TAKEN);
          if (found !== Owner.DRAINED && found !== Owner.TAKEN) return REFUSED;
        }
        const ring = this.#ringOf(thread);
        return isSubmit ? this.#submit(ring, thread, sequence) : this.#make(ring, thread, sequence);
      },
      settle: (outcome) => {
        if (outcome === REFUSED) return Next.RETRY;
        const sequence = machine.register(thread, 0) + 1;
        machine.setRegister(thread, 0, sequence);
        return sequence === counts.length ? Next.FINISH : Next.CONTINUE;
      },
      witness: isSuccessor ? undefined : () => oracle.isFullFor(wanted()),
    };
  }

  #submit(ring: Ring, thread: number, sequence: number): number {
    const count = this.oracle.counts[thread]![sequence]!;
    if (!ring.tryReserve(count)) return REFUSED;
    const { position } = ring;
    const from = position & (this.#options.capacity - 1);
    for (let slot = 0; slot < count; slot++) this.#slots[from + slot] = carried(thread, sequence, slot);
    ring.publish(position);
    return 0;
  }

  #make(ring: Ring, thread: number, sequence: number): number {
    const count = this.oracle.counts[thread]![sequence]!;
    const value = carried(thread, sequence, 0);
    if (count === 1) return ring.tryPush(value, ~value) ? 0 : REFUSED;
    const pairs = new Int32Array(2 * count);
    for (let slot = 0; slot < count; slot++) {
      pairs[2 * slot] = carried(thread, sequence, slot);
      pairs[2 * slot + 1] = ~carried(thread, sequence, slot);
    }
    return ring.tryPushMany(pairs, count) ? 0 : REFUSED;
  }

  #follower(thread: number, follows: boolean, releases: boolean): Program {
    const { machine } = this;
    const { capacity } = this.#options;
    let values: number[] = [];
    let noted = 0;
    return {
      name: !releases ? 'writer' : follows ? 'follower' : 'scheduler',
      daemon: true,
      killable: false,
      reserves: false,
      remembersHead: false,
      loopAt: -1,
      operate: () => {
        const { atomics } = machine;
        const ring = this.#ringOf(thread);
        const position = machine.register(thread, Follower.POSITION);
        const open = machine.register(thread, Follower.OPEN);
        if (open > 0) {
          if (releases) {
            ring.release((position - open) | 0, open);
            ring.releaseTo(position);
          } else {
            atomics.store(this.#committed, 0, position);
          }
          return RELEASED;
        }
        if (this.#options.successor !== undefined) {
          const death = machine.register(thread, Follower.DEATH);
          if (death === 0 && atomics.load(this.#owners, 1) === Owner.DEAD) {
            noted = this.#note(ring);
            return NOTED;
          }
          if (death > 0 && ((position - this.oracle.head) | 0) >= 0 && this.#index(position) >= death - 1) {
            atomics.store(this.#owners, 1, Owner.DRAINED);
            return CLEARED;
          }
        }
        if (!follows && atomics.load(this.#committed, 0) === position) return REFUSED;
        const count = ring.countAt(position);
        if (count === 0) return REFUSED;
        const from = position & (capacity - 1);
        if (count < 0) {
          if (this.#options.repairs === false || !this.#isDead(-count)) return REFUSED;
          if (ring.repair(position, -count) === 0) return REPAIRED;
          this.#slots[from] = VOID;
          ring.publish(position);
          return REPAIRED;
        }
        values = [];
        for (let slot = 0; slot < count && values[0] !== VOID; slot++) values.push(this.#slots[from + slot]!);
        return count;
      },
      settle: (outcome) => {
        if (outcome === REFUSED) return Next.RETRY;
        if (outcome === RELEASED) machine.setRegister(thread, Follower.OPEN, 0);
        if (outcome === NOTED) machine.setRegister(thread, Follower.DEATH, 1 + this.#index(noted));
        if (outcome === CLEARED) machine.setRegister(thread, Follower.DEATH, -1);
        if (outcome > 0) {
          const position = machine.register(thread, Follower.POSITION);
          this.oracle.followed(position, outcome, values[0] === VOID ? undefined : values, releases);
          machine.setRegister(thread, Follower.POSITION, (position + outcome) | 0);
          machine.setRegister(thread, Follower.OPEN, outcome);
        }
        return Next.CONTINUE;
      },
    };
  }

  /** As `#followDeaths` of the log writer: what stands at the tail, then the tail behind which nothing is the owner's. */
  #note(ring: Ring): number {
    if (this.#options.looksAtTail !== false) {
      const tail = ring.tail();
      if (ring.countAt(tail) === -1) ring.repair(tail, 1);
    }
    return ring.tail();
  }

  #isDead(owner: number): boolean {
    const state = this.machine.atomics.load(this.#owners, owner);
    return state === Owner.DEAD || state === Owner.DRAINED;
  }

  #index(position: number): number {
    return (position - (this.#options.first ?? this.#options.capacity)) | 0;
  }

  /** Register 1: where the taker's exchange left the head. One taker must live, to take the rest. */
  #taker(thread: number, index: number, max: number): Program {
    const { machine, oracle } = this;
    let items: number[] = [];
    return {
      name: `C${index + 1}`,
      daemon: true,
      killable: index > 0,
      reserves: false,
      remembersHead: false,
      loopAt: machine.address(this.place.cursors, this.place.head),
      operate: () => {
        const ring = this.#ringOf(thread);
        if (max === 1) {
          items = ring.tryTake() ? [ring.itemA, ring.itemB] : [];
        } else {
          const pairs = new Int32Array(2 * max);
          items = [...pairs.subarray(0, 0)];
          const count = ring.tryTakeMany(pairs, max);
          items = [...pairs.subarray(0, 2 * count)];
        }
        return items.length === 0 ? REFUSED : items.length / 2;
      },
      settle: (outcome) => {
        if (outcome === REFUSED) return Next.RETRY;
        const values: number[] = [];
        // A second word that does not fit the first was written by another push.
        for (let i = 0; i < outcome; i++) values.push(items[2 * i + 1] === ~items[2 * i]! ? items[2 * i]! : -1);
        oracle.took(machine.register(thread, 1), values);
        machine.setRegister(thread, 1, 0);
        return Next.CONTINUE;
      },
      witness: () => oracle.isEmpty(),
    };
  }
}
