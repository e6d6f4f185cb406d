/**
 * A bounded lock-free MPMC ring over shared words: the place where threads meet. Producers reserve and publish; the log
 * writer and the scheduler follow a submit ring slot by slot (`countAt`, `repair`, `release`); consumers take from ready
 * rings. A position is an Int32 that wraps, position >> log2(capacity) its lap. Every slot has a stamp (lap, owner,
 * state), after Vyukov and crossbeam, but it is the stamp that a reservation exchanges: so it names its owner.
 *
 * I1  A slot is free for lap L exactly when its stamp's lap is L - 1 and the head has passed it.
 * I2  A stamp of lap L at the tail's slot means the tail is about to move past it: anyone may help it along.
 * I3  An owner stores its intent, how many slots it wants, before its CAS and has at most one reservation open: who sees
 *     RESERVED while the tail still stands there reads the right count. A stale read fails the tail's CAS.
 * I4  Data is written after the tail moved and before PUBLISHED is stored; readers load PUBLISHED before the data.
 * I5  Only a slot whose owner's thread is known to have exited is repaired, and only by the one consumer of the ring.
 * I6  Words read without `load` are guesses: an exchange or a load confirms them before they count.
 *
 * Branches that only a race reaches (an exchange that fails, a look that came too late) are taken by `test/interleave`,
 * which explores every interleaving of this source; a test on one thread cannot get there.
 */
import { compareExchange, load, store } from './atomics.js';

const FREE = 0;
const RESERVED = 1;
const PUBLISHED = 2;
/** Published with the slots before it: a batch is published by its first stamp. */
const CONTINUED = 3;
const PUBLISHED_BIT = 2;
const STATE_MASK = 3;
const OWNER_SHIFT = 2;
const OWNER_MASK = 0xff;
const LAP_SHIFT = 10;
const LAP_MASK = 0x3fffff;

/** Where a ring lives inside its words. Indexes are in Int32 words. */
export interface RingPlace {
  readonly words: Int32Array;
  /** First word of the slot entries: entry = [stamp, count, item, item, ...]. */
  readonly entries: number;
  /** log2 of the words one entry takes, at least 1. */
  readonly entryShift: number;
  /** A power of two, at least 2. */
  readonly capacity: number;
  /** The words that hold the two cursors, and where. */
  readonly cursors: Int32Array;
  readonly tail: number;
  readonly head: number;
  /** Word of owner 0's intent, and the distance to the next owner's. */
  readonly intents: Int32Array;
  readonly intentFirst: number;
  readonly intentStride: number;
}

/** Positions start at lap 1, so that all-zero stamps read as free (I1). Call once, before any thread uses the ring. */
export function initialiseRing(place: RingPlace, first: number = place.capacity): void {
  store(place.cursors, place.tail, first);
  store(place.cursors, place.head, first);
  const lapShift = 31 - Math.clz32(place.capacity);
  for (let i = 0; first !== place.capacity && i < place.capacity; i++) {
    const position = (first + i) | 0;
    const entry = place.entries + ((position & (place.capacity - 1)) << place.entryShift);
    place.words[entry] = ((position - place.capacity) >>> lapShift) << LAP_SHIFT;
  }
}

export class Ring {
  readonly capacity: number;
  /** The position of the last successful `tryReserve`. */
  position = 0;
  /** The two words of the last successful `tryTake`. */
  itemA = 0;
  itemB = 0;

  readonly #words: Int32Array;
  readonly #cursors: Int32Array;
  readonly #entries: number;
  readonly #entryShift: number;
  readonly #mask: number;
  readonly #lapShift: number;
  readonly #tail: number;
  readonly #head: number;
  readonly #intents: Int32Array;
  readonly #intentFirst: number;
  readonly #intentStride: number;
  readonly #owner: number;
  readonly #ownIntent: number;
  #headSeen: number;

  /** `owner` is 1 to 255 and used by one thread at a time; 0 may look and take but not reserve. */
  constructor(place: RingPlace, owner: number) {
    this.capacity = place.capacity;
    this.#words = place.words;
    this.#cursors = place.cursors;
    this.#entries = place.entries;
    this.#entryShift = place.entryShift;
    this.#mask = place.capacity - 1;
    this.#lapShift = 31 - Math.clz32(place.capacity);
    this.#tail = place.tail;
    this.#head = place.head;
    this.#intents = place.intents;
    this.#intentFirst = place.intentFirst;
    this.#intentStride = place.intentStride;
    this.#owner = owner;
    this.#ownIntent = place.intentFirst + owner * place.intentStride;
    this.#headSeen = load(place.cursors, place.head);
  }

  /** Reserves `count` consecutive slots. False: the ring is full. On success `position` says where. */
  tryReserve(count: number): boolean {
    // An owner may have slept while the positions went once around: what it remembers of the head is worth nothing.
    this.#headSeen = load(this.#cursors, this.#head);
    return this.#tryReserve(count);
  }

  /** The same, but it looks at the head only when the one it saw last leaves no room. */
  #tryReserve(count: number): boolean {
    const words = this.#words;
    const cursors = this.#cursors;
    // Looked at, not remembered: an owner with several rings (the scheduler) has one intent for all of them.
    if (this.#intents[this.#ownIntent] !== count) store(this.#intents, this.#ownIntent, count);
    // I6: an `Atomics.load` is a call of 7 ns, and the CAS on the stamp finds out a wrong guess.
    let tail = cursors[this.#tail]!;
    for (;;) {
      // Unsigned: a head seen 2^31 positions ago must not look like room. Signed after a fresh look: a tail older than
      // this head is not a full ring, and is found out by its stamp.
      if ((tail + count - this.#headSeen) >>> 0 > this.capacity) {
        this.#headSeen = load(cursors, this.#head);
        if (((tail + count - this.#headSeen) | 0) > this.capacity) return false;
      }
      const entry = this.#entry(tail);
      const lap = (tail >>> this.#lapShift) & LAP_MASK;
      const stamp = words[entry]!;
      // The lap before, also where positions wrap: laps have 32 - log2(capacity) bits, or the 22 of a stamp.
      if (stamp >>> LAP_SHIFT === (((tail - this.capacity) >>> this.#lapShift) & LAP_MASK)) {
        // I1: free. The CAS names the owner; it fails if anybody has reserved here.
        const mine = (lap << LAP_SHIFT) | (this.#owner << OWNER_SHIFT) | RESERVED;
        if (compareExchange(words, entry, stamp, mine) === stamp) {
          compareExchange(cursors, this.#tail, tail, (tail + count) | 0);
          words[entry + 1] = count;
          this.position = tail;
          return true;
        }
      } else if (stamp >>> LAP_SHIFT === lap) {
        this.#help(tail);
      }
      // Or else the tail was an old one: its slot is a lap ahead.
      tail = load(cursors, this.#tail);
    }
  }

  /** I2: what stands at `tail` may be reserved while the tail has not moved. */
  #help(tail: number): void {
    const owner = this.#reserverIn(load(this.#words, this.#entry(tail)), tail);
    if (owner === 0) return;
    // I3: read after the stamp, the intent is the reservation's, or the tail has moved.
    const taken = load(this.#intents, this.#intentIndex(owner));
    compareExchange(this.#cursors, this.#tail, tail, (tail + taken) | 0);
  }

  /** Makes a reservation visible (I4). `position` is the one `tryReserve` gave. */
  publish(position: number): void {
    store(this.#words, this.#entry(position), this.#stamp(position, PUBLISHED));
  }

  /** Single-slot rings: reserve, fill with two words, publish. False: full. */
  tryPush(a: number, b: number): boolean {
    if (!this.#tryReserve(1)) return false;
    const entry = this.#entry(this.position);
    this.#words[entry + 2] = a;
    this.#words[entry + 3] = b;
    this.publish(this.position);
    return true;
  }

  /** Single-slot rings: pushes `count` pairs from `pairs` under one reservation. All or nothing. */
  tryPushMany(pairs: Int32Array, count: number): boolean {
    if (!this.tryReserve(count)) return false;
    const words = this.#words;
    const first = this.position;
    // From the second on: nobody gets to them before the first one is published, and whoever does has seen that (I4).
    for (let i = 1; i < count; i++) {
      const position = (first + i) | 0;
      const entry = this.#entry(position);
      words[entry + 2] = pairs[2 * i]!;
      words[entry + 3] = pairs[2 * i + 1]!;
      words[entry] = this.#stamp(position, CONTINUED);
    }
    const entry = this.#entry(first);
    words[entry + 2] = pairs[0]!;
    words[entry + 3] = pairs[1]!;
    this.publish(first);
    return true;
  }

  /**
   * Single-slot rings: takes one item into `itemA` and `itemB`. False: empty.
   * The item is read before the CAS on the head: if the CAS succeeds nobody can have overwritten it (I1), and a
   * consumer that dies leaves nothing to repair.
   */
  tryTake(): boolean {
    const words = this.#words;
    const cursors = this.#cursors;
    let head = cursors[this.#head]!;
    for (;;) {
      const entry = this.#entry(head);
      const stamp = load(words, entry);
      if (!this.#isPublished(stamp, head)) {
        // Empty, if the head has been there all the time.
        const now = load(cursors, this.#head);
        if (now === head) return false;
        head = now;
        continue;
      }
      // I4: a CONTINUED stamp orders nothing, but the head does: whoever moved it here had seen the batch's first stamp.
      if ((stamp & STATE_MASK) === PUBLISHED || load(cursors, this.#head) === head) {
        this.itemA = words[entry + 2]!;
        this.itemB = words[entry + 3]!;
        if (compareExchange(cursors, this.#head, head, (head + 1) | 0) === head) return true;
      }
      head = load(cursors, this.#head);
    }
  }

  /** Single-slot rings: the first word of the item at the head, 0 when there is none. It may be taken by now. */
  peek(): number {
    const head = load(this.#cursors, this.#head);
    const entry = this.#entry(head);
    const top = load(this.#words, entry);
    const there = top >>> LAP_SHIFT === ((head >>> this.#lapShift) & LAP_MASK) && (top & PUBLISHED) !== 0;
    return there ? this.#words[entry + 2]! : 0;
  }

  /** Single-slot rings: takes up to `max` items into `pairs`, by one CAS. Returns how many. */
  tryTakeMany(pairs: Int32Array, max: number): number {
    const words = this.#words;
    const cursors = this.#cursors;
    for (;;) {
      const head = load(cursors, this.#head);
      let count = 0;
      while (count < max) {
        const position = (head + count) | 0;
        const entry = this.#entry(position);
        const stamp = count === 0 ? load(words, entry) : words[entry]!;
        if (!this.#isPublished(stamp, position)) break;
        // I4, I6: the first stamp of the next batch, guessed, is loaded before its data; what continues one needs no more.
        if (count > 0 && (stamp & STATE_MASK) === PUBLISHED) load(words, entry);
        pairs[2 * count] = words[entry + 2]!;
        pairs[2 * count + 1] = words[entry + 3]!;
        count++;
      }
      if (count > 0) {
        if (compareExchange(cursors, this.#head, head, (head + count) | 0) === head) return count;
      } else if (load(cursors, this.#head) === head) {
        return 0;
      }
    }
  }

  /**
   * What stands at `position`, for the one consumer that follows the ring slot by slot: the count of a published
   * reservation, 0 when nothing is reserved there, or minus the owner of one that is reserved and not published.
   */
  countAt(position: number): number {
    const entry = this.#entry(position);
    const stamp = load(this.#words, entry);
    return this.#isPublished(stamp, position) ? this.#words[entry + 1]! : 0 - this.#reserverIn(stamp, position);
  }

  /**
   * I5: how many slots a dead owner's open reservation at `position` holds, after moving the tail past it; 0 when it is
   * not open. Whoever saw it open before they knew of the death saw a stamp of the past: it is looked at again.
   */
  repair(position: number, deadOwner: number): number {
    if (this.countAt(position) !== -deadOwner) return 0;
    const count = load(this.#intents, this.#intentIndex(deadOwner));
    compareExchange(this.#cursors, this.#tail, position, (position + count) | 0);
    this.#words[this.#entry(position) + 1] = count;
    return count;
  }

  /** Frees `count` slots from `position` for the next lap; takes effect with `releaseTo`. One thread only. */
  release(position: number, count: number): void {
    const words = this.#words;
    for (let i = 0; i < count; i++) {
      const freed = (position + i) | 0;
      words[this.#entry(freed)] = ((freed >>> this.#lapShift) << LAP_SHIFT) | FREE;
    }
  }

  /** Moves the head to `position`: everything below it has been released. */
  releaseTo(position: number): void {
    store(this.#cursors, this.#head, position);
  }

  tail(): number {
    return load(this.#cursors, this.#tail);
  }

  head(): number {
    return load(this.#cursors, this.#head);
  }

  /** A momentary count of slots in use. */
  used(): number {
    const head = load(this.#cursors, this.#head);
    return (load(this.#cursors, this.#tail) - head) | 0;
  }

  #entry(position: number): number {
    return this.#entries + ((position & this.#mask) << this.#entryShift);
  }

  #stamp(position: number, state: number): number {
    return ((position >>> this.#lapShift) << LAP_SHIFT) | (this.#owner << OWNER_SHIFT) | state;
  }

  #isPublished(stamp: number, position: number): boolean {
    return stamp >>> LAP_SHIFT === ((position >>> this.#lapShift) & LAP_MASK) && (stamp & PUBLISHED_BIT) !== 0;
  }

  /** The owner of an open reservation at `position`, 0 for none. */
  #reserverIn(stamp: number, position: number): number {
    if (stamp >>> LAP_SHIFT !== ((position >>> this.#lapShift) & LAP_MASK) || (stamp & STATE_MASK) !== RESERVED)
      return 0;
    return (stamp >>> OWNER_SHIFT) & OWNER_MASK;
  }

  #intentIndex(owner: number): number {
    return this.#intentFirst + owner * this.#intentStride;
  }
}
