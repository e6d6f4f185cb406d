/**
 * What must hold of a ring after every single change, whoever made it.
 *
 * O1  The tail moves from reservation to reservation, each time by what the owner of that one wanted (I3), and is never
 *     more than the capacity ahead of the head, nor behind it.
 * O2  A slot is reserved where the tail stands, once, and only when all its slots are free.
 * O3  A reservation is published once: by its owner, or by the follower after the owner's death.
 * O4  Everything published is taken once, with the data that were written, in order of position.
 */
import type { RingPlace } from '../../native-free/ring.js';
import type { Machine } from './machine.js';
import { Kind, type Oracle, Status, Violation } from './program.js';

const STATE_MASK = 3;
const RESERVED = 1;
/** Published: as the first of its reservation, or behind it. */
const PUBLISHED_BIT = 2;

/** What the oracle keeps for each position, counted from the first. */
const Book = { RESERVATION: 0, VALUE: 1, STATE: 2, WORDS: 3 } as const;
const Slot = { OPEN: 0, PUBLISHED: 1, HOLE: 2, TAKEN: 3 } as const;

/** What the `slot`-th slot of a thread's `sequence`-th reservation carries. */
export function carried(thread: number, sequence: number, slot: number): number {
  return ((thread + 1) << 12) | (sequence << 4) | slot;
}

export class RingOracle implements Oracle {
  /** How many slots each reservation of each producing thread takes. */
  readonly counts: readonly (readonly number[])[];
  readonly bookWords: number;
  readonly #machine: Machine;
  readonly #place: RingPlace;
  readonly #first: number;
  readonly #positions: number;
  readonly #tailAt: number;
  readonly #headAt: number;
  readonly #stampsAt: number;
  readonly #entryMask: number;
  readonly #killed: (thread: number) => void;

  constructor(
    machine: Machine,
    place: RingPlace,
    first: number,
    counts: readonly (readonly number[])[],
    killed: (thread: number) => void,
  ) {
    this.#machine = machine;
    this.#place = place;
    this.#first = first;
    this.counts = counts;
    this.#killed = killed;
    this.#positions = counts.flat().reduce((sum, count) => sum + count, 0);
    this.bookWords = this.#positions * Book.WORDS;
    this.#tailAt = machine.address(place.cursors, place.tail);
    this.#headAt = machine.address(place.cursors, place.head);
    this.#stampsAt = machine.address(place.words, 0);
    this.#entryMask = (1 << place.entryShift) - 1;
  }

  written(thread: number, kind: number, address: number, before: number, after: number): void {
    if (address === this.#tailAt) this.#tailMoved(before, after);
    else if (address === this.#headAt) this.#headMoved(thread, kind, before, after);
    else if (this.#isStamp(address)) this.#stamped(thread, kind, address, after);
  }

  killed(thread: number): void {
    this.#killed(thread);
  }

  atEnd(): void {
    const { state } = this.#machine;
    const tail = state[this.#tailAt]!;
    if (this.head !== tail) throw new Violation(`stuck: the head stays ${(tail - this.head) | 0} behind`);
    for (let index = 0; index < this.#positions; index++) {
      const book = this.#book(index);
      const isOver = state[book + Book.STATE] === Slot.TAKEN;
      if (state[book + Book.RESERVATION] !== 0 && !isOver) throw new Violation(`lost: what was reserved at ${index}`);
    }
    for (const [thread, counts] of this.counts.entries()) {
      if (this.#machine.status(thread) !== Status.FINISHED) continue;
      for (let sequence = 0; sequence < counts.length; sequence++) {
        if (!this.#hasReserved(thread, sequence)) throw new Violation(`lost: ${thread}'s reservation ${sequence}`);
      }
    }
  }

  get head(): number {
    return this.#machine.state[this.#headAt]!;
  }

  isFullFor(count: number): boolean {
    return ((this.#machine.state[this.#tailAt]! + count - this.head) | 0) > this.#place.capacity;
  }

  /** Nothing is published where the head stands. */
  isEmpty(): boolean {
    const { capacity } = this.#place;
    const slot = this.head & (capacity - 1);
    const stamp = this.#machine.state[this.#stampsAt + (slot << this.#place.entryShift)]!;
    const lap = (this.head >>> (31 - Math.clz32(capacity))) & 0x3fffff;
    return (stamp & PUBLISHED_BIT) === 0 || stamp >>> 10 !== lap;
  }

  /** The follower read a reservation (O4). `values` are its slots', undefined when it found a hole. */
  followed(position: number, count: number, values: readonly number[] | undefined, isLast: boolean): void {
    const { state } = this.#machine;
    const index = (position - this.#first) | 0;
    const book = this.#book(index);
    const reservation = state[book + Book.RESERVATION]!;
    if (reservation === 0) throw new Violation(`nothing was reserved at ${index}`);
    if (count !== (reservation & 0xff)) throw new Violation(`followed ${count} slots of ${reservation & 0xff}`);
    const expected = values === undefined ? Slot.HOLE : Slot.PUBLISHED;
    if (state[book + Book.STATE] !== expected) throw new Violation(`position ${index} was followed in the wrong state`);
    for (let slot = 0; slot < count; slot++) {
      const value = state[this.#book(index + slot) + Book.VALUE]!;
      if (values !== undefined && values[slot] !== value) throw new Violation(`followed ${values[slot]}, not ${value}`);
      if (isLast) state[this.#book(index + slot) + Book.STATE] = Slot.TAKEN;
    }
  }

  /** A taker returned items of the positions before `end` (O4). */
  took(end: number, values: readonly number[]): void {
    for (const [i, value] of values.entries()) {
      const index = (end - values.length + i - this.#first) | 0;
      const expected = this.#machine.state[this.#book(index) + Book.VALUE]!;
      if (value !== expected) throw new Violation(`took ${value}, not ${expected}`);
    }
  }

  #tailMoved(before: number, after: number): void {
    const reservation = this.#machine.state[this.#book((before - this.#first) | 0) + Book.RESERVATION]!;
    if (reservation === 0) throw new Violation('the tail moved past a free slot');
    const count = (after - before) | 0;
    if (count !== (reservation & 0xff))
      throw new Violation(`I3: the tail moved by ${count}, not ${reservation & 0xff}`);
    const used = (after - this.head) | 0;
    if (used < 0 || used > this.#place.capacity) throw new Violation(`capacity exceeded: ${used} slots in use`);
  }

  #headMoved(thread: number, kind: number, before: number, after: number): void {
    const { state } = this.#machine;
    if (((after - before) | 0) < 0 || ((state[this.#tailAt]! - after) | 0) < 0) {
      throw new Violation('the head went back, or passed the tail');
    }
    if (kind !== Kind.EXCHANGE) return;
    for (let position = before; position !== after; position = (position + 1) | 0) {
      const book = this.#book((position - this.#first) | 0);
      if (state[book + Book.STATE] !== Slot.PUBLISHED) throw new Violation('taken twice, or before it was published');
      state[book + Book.STATE] = Slot.TAKEN;
    }
    this.#machine.setRegister(thread, 1, after);
  }

  #stamped(thread: number, kind: number, address: number, stamp: number): void {
    const slot = (address - this.#stampsAt) >>> this.#place.entryShift;
    if (kind === Kind.EXCHANGE) this.#reserved(thread, slot, stamp);
    else if ((stamp & PUBLISHED_BIT) !== 0) this.#published(thread, slot);
  }

  #reserved(thread: number, slot: number, stamp: number): void {
    const { state } = this.#machine;
    const { capacity } = this.#place;
    const tail = state[this.#tailAt]!;
    if ((stamp & STATE_MASK) !== RESERVED) throw new Violation('an exchange of a stamp that does not reserve');
    if ((tail & (capacity - 1)) !== slot) throw new Violation('reserved where the tail does not stand');
    const sequence = this.#machine.register(thread, 0);
    const count = this.counts[thread]![sequence]!;
    if (this.isFullFor(count)) throw new Violation('reserved more than is free');
    // A run of slots is followed from its first one; single slots are published and taken each for itself.
    const isRun = this.#entryMask === 1;
    for (let i = 0; i < count; i++) {
      const book = this.#book((tail + i - this.#first) | 0);
      if (state[book + Book.VALUE] !== 0) throw new Violation('reserved twice');
      if (i === 0 || !isRun) state[book + Book.RESERVATION] = ((thread + 1) << 16) | (sequence << 8) | count;
      state[book + Book.VALUE] = carried(thread, sequence, i);
    }
  }

  #published(thread: number, slot: number): void {
    const { state } = this.#machine;
    const index = (this.head + ((slot - this.head) & (this.#place.capacity - 1)) - this.#first) | 0;
    const book = this.#book(index);
    const owner = (state[book + Book.RESERVATION]! >>> 16) - 1;
    if (owner < 0 || state[book + Book.STATE] !== Slot.OPEN) throw new Violation('published what was not open');
    if (owner !== thread && this.#machine.status(owner) !== Status.DEAD) throw new Violation('published by a stranger');
    state[book + Book.STATE] = owner === thread ? Slot.PUBLISHED : Slot.HOLE;
  }

  #hasReserved(thread: number, sequence: number): boolean {
    const wanted = ((thread + 1) << 8) | sequence;
    for (let index = 0; index < this.#positions; index++) {
      if (this.#machine.state[this.#book(index) + Book.RESERVATION]! >>> 8 === wanted) return true;
    }
    return false;
  }

  #book(index: number): number {
    if (index < 0 || index >= this.#positions) throw new Violation(`a position out of range: ${index}`);
    return this.#machine.bookAt + index * Book.WORDS;
  }

  #isStamp(address: number): boolean {
    const index = address - this.#stampsAt;
    const { capacity, entryShift } = this.#place;
    return index >= 0 && index < capacity << entryShift && (index & this.#entryMask) === 0;
  }
}
