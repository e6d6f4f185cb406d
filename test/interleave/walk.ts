/**
 * Random walks through what a `RingWorld` can do, for what the exploration takes for granted.
 *
 * W1  Every operation is run again on a ring that lives as long as its thread, answered with the same values: it must
 *     make the same accesses and end the same way (V2, V5: nothing was forgotten that matters).
 * W2  No two threads access one word of data (counts, items, slots) unordered by atomics, one of them plainly and one
 *     of them writing: then plain accesses cannot be seen out of order on any machine. Vector clocks, after FastTrack.
 *     Cursors and stamps may be read plainly as a guess, and stamps written so where something else publishes them: a
 *     mistake there shows in the data. A taker may read items that are overwritten, if its exchange of the head fails.
 */
import { canStep, checkEnd, choose, mayChoose } from './explore.js';
import type { Machine } from './machine.js';
import { type Access, Kind, Violation } from './program.js';
import type { RingWorld } from './ring-world.js';

interface Last {
  readonly access: Access;
  readonly clock: number;
  readonly round: number;
}

const isPlain = ({ kind }: Access): boolean => kind >= Kind.READ;
const isWrite = ({ kind, value, result }: Access, expectedFound: boolean): boolean =>
  kind === Kind.EXCHANGE ? expectedFound && value !== result : kind !== Kind.LOAD && kind !== Kind.READ;

/** Who knows what of whom: `clocks[a][b]` is up to which of b's accesses a is ordered behind. */
class Races {
  readonly #machine: Machine;
  readonly #clocks: number[][];
  readonly #released = new Map<number, number[]>();
  readonly #writes = new Map<number, Last>();
  readonly #reads = new Map<number, (Last | undefined)[]>();
  /** Takers that read an item out of order in the round they are in, and how many rounds each thread has begun. */
  readonly #guessed = new Set<number>();
  readonly #rounds: number[];

  constructor(machine: Machine) {
    this.#machine = machine;
    const threads = machine.programs.map((_, thread) => thread);
    this.#clocks = threads.map((thread) => threads.map((other) => (thread === other ? 1 : 0)));
    this.#rounds = threads.map(() => 0);
  }

  seen(access: Access): void {
    const { thread, kind, address } = access;
    const clock = this.#clocks[thread]!;
    const changed = isWrite(access, this.#machine.state[address] === access.value);
    if (!isPlain(access) && kind !== Kind.STORE) this.#acquire(clock, address);
    const write = this.#writes.get(address);
    if (write !== undefined) this.#compare(access, write);
    const reads = this.#reads.get(address) ?? [];
    if (changed) for (const read of reads) if (read !== undefined) this.#compare(access, read);
    this.#reads.set(address, reads);
    const last = { access, clock: clock[thread]!, round: this.#rounds[thread]! };
    if (changed) {
      this.#writes.set(address, last);
      this.#reads.delete(address);
    } else {
      reads[thread] = last;
    }
    if (changed && !isPlain(access)) {
      if (this.#machine.nameOf(address) === 'head' && kind === Kind.EXCHANGE && this.#guessed.has(thread)) {
        throw new Violation('an item that was read out of order was taken');
      }
      if (kind === Kind.STORE) this.#released.set(address, [...clock]);
      else this.#released.set(address, joined(this.#released.get(address) ?? [], clock));
      clock[thread]!++;
    }
  }

  /** What was guessed before is forgotten: it will be read again. */
  beginsRound(thread: number): void {
    this.#guessed.delete(thread);
    this.#rounds[thread]!++;
  }

  /** What a dead thread did is behind whoever learns of its death from `address`. */
  died(thread: number, address: number): void {
    this.#released.set(address, joined(this.#released.get(address) ?? [], this.#clocks[thread]!));
  }

  #acquire(clock: number[], address: number): void {
    const released = this.#released.get(address);
    if (released !== undefined) for (const [i, at] of released.entries()) clock[i] = Math.max(clock[i]!, at);
  }

  #compare(access: Access, last: Last): void {
    const other = last.access;
    if (other.thread === access.thread || (!isPlain(access) && !isPlain(other))) return;
    if (last.clock <= this.#clocks[access.thread]![other.thread]!) return;
    const name = this.#machine.nameOf(access.address);
    if (!/^(count|item|slot)/.test(name)) return;
    const read = access.kind === Kind.READ ? access : other.kind === Kind.READ ? other : undefined;
    if (name.startsWith('item') && read !== undefined) {
      if (read === access || last.round === this.#rounds[read.thread]) this.#guessed.add(read.thread);
      return;
    }
    throw new Violation(`a race: ${this.#machine.describe(other)} and ${this.#machine.describe(access)}`);
  }
}

function joined(a: readonly number[], b: readonly number[]): number[] {
  return b.map((at, i) => Math.max(at, a[i] ?? 0));
}

/** Chooses at random until nobody can go on. Returns how many accesses were made. */
export function walk(world: RingWorld, kills: number, random: () => number): number {
  const { machine } = world;
  const first = machine.state.slice();
  const threads = machine.programs.length;
  const races = new Races(machine);
  const rings = world.lastingRings();
  const made: Access[][] = machine.programs.map(() => []);
  let killsLeft = kills;
  let count = 0;
  machine.observer = (access) => {
    count++;
    made[access.thread]!.push(access);
    // A taker's round begins with the head. Looking whether it is still the same, it has not read items yet.
    if (access.kind === Kind.LOAD && machine.nameOf(access.address) === 'head') races.beginsRound(access.thread);
    races.seen(access);
  };
  machine.returned = (thread, outcome) => {
    races.beginsRound(thread);
    world.lasting = rings;
    const again = machine.rerun(made[thread]!.splice(0), () => machine.programs[thread]!.operate());
    world.lasting = undefined;
    if (again !== outcome) throw new Violation(`run again, ${machine.programs[thread]!.name} ended another way`);
  };
  try {
    machine.watch();
    while (canStep(machine)) {
      const choice = Math.floor(random() * threads) + (random() < 0.01 ? threads : 0);
      if (!mayChoose(machine, choice, killsLeft)) continue;
      choose(machine, choice);
      if (choice < threads) continue;
      killsLeft--;
      const owner = world.ownerAddress(choice - threads);
      if (owner >= 0) races.died(choice - threads, owner);
    }
    checkEnd(machine);
  } finally {
    machine.observer = undefined;
    machine.returned = undefined;
    machine.state.set(first);
  }
  return count;
}
