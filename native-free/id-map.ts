// From job id to row: open addressing over one local Int32Array of row + 1, four bytes a slot. The ids themselves stay
// in the table's column. Owned and called by the wheel thread.
//
// 1. A row is found from its home by walking upwards past occupied slots only; removal shifts back what would be cut off.
// 2. At most three quarters of the slots are taken; the table doubles above that and halves below an eighth.
// 3. ids[row] does not change while the row is in the map.
//
// Home is id * SPREAD slots along, round and round the table, in 32-bit fixed point. Ids handed out one after the other
// lie side by side (half the time of a scattering hash at 700,000 live), and a run of them with any small step fills the
// table turn upon turn, at no place denser than its load + 1 / SPREAD. Hence not a smaller one: at 1.3 a run would fill
// its stretch to 78 %, and ids left over from long ago would clog the rest. Deletion: Knuth, TAOCP 3, 6.4, algorithm R.

import { assert } from './assert.js';

/**
 * The digits decide how turns interleave, which is what a step that is a power of two depends on. Found by trial: mean
 * slots read a lookup at the highest load are at most 2.1 for steps up to 8, 3.4 with any share of stragglers, 10 for
 * 2^j; the worst of 1200 steps chosen at random reads 200 (with the golden ratio: 345).
 */
const SPREAD = 6.70199930402788;
/** 2^32 over the golden ratio: parts the turns that differ only in the upper half of the id. */
const HIGH_FACTOR = 0x9e3779b1 | 0;
const HIGH = 2 ** -32;
const BITS_MIN = 4;
const BITS_MAX = 30;

export class IdMap {
  readonly #ids: Float64Array;
  #slots: Int32Array;
  #size = 0;
  #mask = 0;
  #shift = 0;
  #factor = 0;
  readonly #bitsLeast: number;

  /** `initialCapacity`: how many ids fit before the first growth, which is also where shrinking ends. */
  constructor(ids: Float64Array, initialCapacity = 0) {
    this.#ids = ids;
    let bits = BITS_MIN;
    while (bits < BITS_MAX && 0.75 * 2 ** bits < initialCapacity) bits++;
    this.#bitsLeast = bits;
    this.#slots = this.#emptied(bits);
  }

  get size(): number {
    return this.#size;
  }

  /** The id is ids[row], which must not be in the map. */
  insert(row: number): void {
    if (4 * (this.#size + 1) > 3 * this.#slots.length) this.#rehash(33 - this.#shift);
    this.#size++;
    this.#put(row + 1);
  }

  /** The row of this id, or -1. */
  find(id: number): number {
    const slots = this.#slots;
    const ids = this.#ids;
    const mask = this.#mask;
    for (let slot = this.#home(id); ; slot = (slot + 1) & mask) {
      const taken = slots[slot];
      if (taken === 0) return -1;
      if (ids[taken - 1] === id) return taken - 1;
    }
  }

  /** How many slots find reads for this id: the measure of the hash, and the same on every machine. */
  probes(id: number): number {
    let slot = this.#home(id);
    for (let count = 1; ; count++) {
      const taken = this.#slots[slot];
      if (taken === 0 || this.#ids[taken - 1] === id) return count;
      slot = (slot + 1) & this.#mask;
    }
  }

  remove(row: number): void {
    const slots = this.#slots;
    const ids = this.#ids;
    const mask = this.#mask;
    let hole = this.#home(ids[row]);
    while (slots[hole] !== row + 1) {
      assert(slots[hole] !== 0, 'a removed row is in the map');
      hole = (hole + 1) & mask;
    }
    for (let slot = (hole + 1) & mask; ; slot = (slot + 1) & mask) {
      const taken = slots[slot];
      if (taken === 0) break;
      // It may move back when its home is not between the hole and its slot (rule 1).
      const reach = (slot - this.#home(ids[taken - 1])) & mask;
      if (reach >= ((slot - hole) & mask)) {
        slots[hole] = taken;
        hole = slot;
      }
    }
    slots[hole] = 0;
    this.#size--;
    if (8 * this.#size < slots.length && 32 - this.#shift > this.#bitsLeast) this.#rehash(31 - this.#shift);
  }

  #home(id: number): number {
    return (Math.imul(id | 0, this.#factor) + Math.imul((id * HIGH) | 0, HIGH_FACTOR)) >>> this.#shift;
  }

  #put(taken: number): void {
    const slots = this.#slots;
    const mask = this.#mask;
    let slot = this.#home(this.#ids[taken - 1]);
    while (slots[slot] !== 0) {
      assert(slots[slot] !== taken, 'an inserted row is not in the map');
      slot = (slot + 1) & mask;
    }
    slots[slot] = taken;
  }

  #rehash(bits: number): void {
    assert(bits <= BITS_MAX, 'a map holds at most three quarters of 2^30 ids');
    const old = this.#slots;
    this.#slots = this.#emptied(bits);
    for (let slot = 0; slot < old.length; slot++) {
      const taken = old[slot];
      if (taken !== 0) this.#put(taken);
    }
  }

  #emptied(bits: number): Int32Array {
    this.#shift = 32 - bits;
    this.#mask = 2 ** bits - 1;
    this.#factor = (SPREAD * 2 ** this.#shift) | 1;
    return new Int32Array(2 ** bits);
  }
}
