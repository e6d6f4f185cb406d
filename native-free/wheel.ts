// A hierarchical timing wheel: which rows are due, found without looking at the others. Owned and called by one thread;
// it reads no clock. Nine levels of 64 slots, a slot of level k being 64^k ms wide, so 2^54 ms fit. The lists are
// intrusive: their links are two columns of the caller's table, which other structures use while a row is not in here.
//
// 1. prev 0 means not linked. prev and next hold row + 1, or ~slot at the ends of a slot's list, so that any row can
//    be unlinked without knowing its slot. Unlinking and firing set both to 0.
// 2. A row waits at the level of the highest bit in which its time and the cursor differ, in slot (time / 64^level) % 64.
// 3. So every occupied slot starts later than the cursor, and at the lowest occupied level the lowest slot is the next.
//    (The one exception: a cascade fills the cursor's own slot of level 0, which is then the next to fire.)
// 4. Rows whose time had come when they were inserted wait in the DUE list, whose times are all before every slot's.
// 5. Fires in the order of `when`, and in the order of insertion where that is equal; never early, in no advance late.
//
// From Varghese and Lauck's hierarchical wheels (1987); XOR for the level and a mask of occupied slots after Tokio's
// timer; empty slots are never visited, as in Kafka's purgatory.

import { assert } from './assert.js';

const SLOT_BITS = 6;
const SLOTS = 1 << SLOT_BITS;
const LEVELS = 9;
const DUE = LEVELS * SLOTS;
const FIRING = DUE + 1;
const LISTS = FIRING + 1;
const TIME_MAX_MS = 2 ** 53;
const HIGH = 2 ** -32;

/** Width of a slot of each level, in milliseconds, and its inverse; both are powers of two, so products are exact. */
const WIDTH = Float64Array.from({ length: LEVELS + 1 }, (_, level) => 2 ** (level * SLOT_BITS));
const PER_WIDTH = Float64Array.from({ length: LEVELS }, (_, level) => 2 ** (-level * SLOT_BITS));

export interface WheelColumns {
  readonly when: Float64Array;
  readonly next: Int32Array;
  readonly prev: Int32Array;
}

export class TimingWheel {
  readonly #when: Float64Array;
  readonly #next: Int32Array;
  readonly #prev: Int32Array;
  /** First and last row + 1 of each list, side by side; 0 and 0 when it is empty. */
  readonly #ends = new Int32Array(2 * LISTS);
  /** Two words a level, one bit a slot: set while the slot's list is not empty. */
  readonly #occupied = new Int32Array(2 * LEVELS);
  /** One bit a level: set while any of its slots is occupied. */
  #levels = 0;
  /** What rule 2 compares with. Behind #nowMs while advance is at work, equal to it otherwise. */
  #cursorMs = 0;
  #cursorLow = 0;
  #cursorHigh = 0;
  #nowMs = 0;
  #size = 0;
  #dueSorted = true;
  /** A lower bound of the times in DUE. */
  #dueMinMs = Number.POSITIVE_INFINITY;
  #firing = false;

  constructor(columns: WheelColumns, nowMs: number) {
    this.#when = columns.when;
    this.#next = columns.next;
    this.#prev = columns.prev;
    this.#nowMs = wholeMs(nowMs);
    this.#moveCursor(this.#nowMs);
  }

  get size(): number {
    return this.#size;
  }

  /** The latest time this wheel was told. It never goes back. */
  get nowMs(): number {
    return this.#nowMs;
  }

  /** Meaningful to the owner of the row only: other structures use the same columns. */
  has(row: number): boolean {
    return this.#prev[row] !== 0;
  }

  /**
   * `whenMs` is a whole number up to 2^53. A time that has come already (also: by the time the running advance was
   * given) fires in the next advance, never in the one that is running, so a callback cannot keep it busy for ever.
   */
  insert(row: number, whenMs: number): void {
    assert(this.#prev[row] === 0, 'a row enters the wheel unlinked');
    assert(whenMs <= TIME_MAX_MS && Math.floor(whenMs) === whenMs, 'a wheel time is a whole number up to 2^53');
    this.#when[row] = whenMs;
    this.#size++;
    if (whenMs <= this.#nowMs) this.#appendDue(row, whenMs);
    else this.#place(row, whenMs);
  }

  /** False when the row is not linked. Allowed inside a callback, also for rows that would fire in the same advance. */
  cancel(row: number): boolean {
    const before = this.#prev[row];
    if (before === 0) return false;
    const after = this.#next[row];
    const ends = this.#ends;
    if (before > 0) this.#next[before - 1] = after;
    else ends[2 * ~before] = Math.max(after, 0);
    if (after > 0) this.#prev[after - 1] = before;
    else ends[2 * ~after + 1] = Math.max(before, 0);
    if ((before & after) < 0) this.#vacate(~before);
    this.#prev[row] = 0;
    this.#next[row] = 0;
    this.#size--;
    return true;
  }

  /**
   * Fires every row with `when <= nowMs` and returns how many. A time before the last one moves nothing back: it fires
   * what is due by it. `fire` gets the row unlinked and may insert and cancel; it must neither advance nor throw (the
   * wheel refuses to go on after that).
   */
  advance(nowMs: number, fire: (row: number) => void): number {
    assert(!this.#firing, 'advance is not entered twice, nor again after a callback threw');
    const untilMs = wholeMs(nowMs);
    const moves = untilMs > this.#nowMs;
    if (moves) this.#nowMs = untilMs;
    this.#firing = true;
    let fired = this.#ends[2 * DUE] === 0 ? 0 : this.#fireDue(untilMs, fire);
    if (moves) {
      while (this.#levels !== 0) {
        const slot = this.#earliestSlot();
        const startMs = this.#startMs(slot);
        if (startMs > untilMs) break;
        this.#moveCursor(startMs);
        if (slot < SLOTS) fired += this.#drain(slot, fire);
        else this.#cascade(slot);
      }
      // Every slot that starts by now is empty, so rule 3 holds for this cursor as well.
      this.#moveCursor(untilMs);
    }
    this.#firing = false;
    return fired;
  }

  /**
   * No row fires before this time, and advancing to it fires a row or brings one nearer (at most 8 times a row).
   * Infinity when empty. For use between advances, not inside a callback.
   */
  nextAtMs(): number {
    if (this.#ends[2 * DUE] !== 0) return this.#dueMinMs;
    return this.#levels === 0 ? Number.POSITIVE_INFINITY : this.#startMs(this.#earliestSlot());
  }

  /** Forgets every row, unlinking each, and starts again at `nowMs`, which may be earlier. */
  reset(nowMs: number): void {
    assert(!this.#firing, 'a wheel is not reset by its own callback');
    for (let list = 0; list < LISTS; list++) {
      for (let link = this.#ends[2 * list]; link > 0; ) {
        const row = link - 1;
        link = this.#next[row];
        this.#next[row] = 0;
        this.#prev[row] = 0;
      }
    }
    this.#ends.fill(0);
    this.#occupied.fill(0);
    this.#levels = 0;
    this.#size = 0;
    this.#nowMs = wholeMs(nowMs);
    this.#moveCursor(this.#nowMs);
  }

  #moveCursor(ms: number): void {
    this.#cursorMs = ms;
    this.#cursorLow = ms | 0;
    this.#cursorHigh = (ms * HIGH) | 0;
  }

  /** Rule 2. The halves are compared apart, for a time has more bits than an integer of this language. */
  #place(row: number, whenMs: number): void {
    const high = ((whenMs * HIGH) | 0) ^ this.#cursorHigh;
    const bit = high !== 0 ? 63 - Math.clz32(high) : 31 - Math.clz32((whenMs ^ this.#cursorLow) | 1);
    const level = (bit * 43) >> 8; // bit / 6 for 0 to 53
    const slot = (level << SLOT_BITS) | ((whenMs * PER_WIDTH[level]) & (SLOTS - 1));
    if (this.#append(slot, row)) {
      this.#occupied[slot >> 5] |= 1 << (slot & 31);
      this.#levels |= 1 << level;
    }
  }

  #appendDue(row: number, whenMs: number): void {
    const last = this.#ends[2 * DUE + 1];
    if (last === 0) {
      this.#dueSorted = true;
      this.#dueMinMs = whenMs;
    } else {
      if (whenMs < this.#when[last - 1]) this.#dueSorted = false;
      if (whenMs < this.#dueMinMs) this.#dueMinMs = whenMs;
    }
    this.#append(DUE, row);
  }

  /** True when the list was empty. */
  #append(list: number, row: number): boolean {
    const ends = this.#ends;
    const last = ends[2 * list + 1];
    ends[2 * list + 1] = row + 1;
    this.#next[row] = ~list;
    if (last > 0) {
      this.#next[last - 1] = row + 1;
      this.#prev[row] = last;
      return false;
    }
    ends[2 * list] = row + 1;
    this.#prev[row] = ~list;
    return true;
  }

  /** The list of this slot has become empty. DUE and FIRING have no bit. */
  #vacate(list: number): void {
    if (list >= DUE) return;
    const word = list >> 5;
    this.#occupied[word] &= ~(1 << (list & 31));
    if ((this.#occupied[word] | this.#occupied[word ^ 1]) === 0) this.#levels &= ~(1 << (list >> SLOT_BITS));
  }

  /** Rule 3. Called with at least one slot occupied. */
  #earliestSlot(): number {
    const level = lowestBit(this.#levels);
    const low = this.#occupied[2 * level];
    return (level << SLOT_BITS) | (low !== 0 ? lowestBit(low) : 32 | lowestBit(this.#occupied[2 * level + 1]));
  }

  #startMs(slot: number): number {
    const level = slot >> SLOT_BITS;
    const turnMs = WIDTH[level + 1];
    return Math.floor(this.#cursorMs / turnMs) * turnMs + (slot & (SLOTS - 1)) * WIDTH[level];
  }

  /** Fires a list from its head, one by one: a callback may cancel rows further on, but none can be appended to it. */
  #drain(list: number, fire: (row: number) => void): number {
    const ends = this.#ends;
    let fired = 0;
    for (let head = ends[2 * list]; head !== 0; head = ends[2 * list]) {
      const row = head - 1;
      const after = this.#next[row];
      if (after > 0) {
        ends[2 * list] = after;
        this.#prev[after - 1] = ~list;
      } else {
        ends[2 * list] = 0;
        ends[2 * list + 1] = 0;
        this.#vacate(list);
      }
      this.#next[row] = 0;
      this.#prev[row] = 0;
      this.#size--;
      fired++;
      fire(row);
    }
    return fired;
  }

  /** The cursor has entered this slot: each row goes to a lower level, in the order of the list (rule 5). */
  #cascade(slot: number): void {
    let link = this.#ends[2 * slot];
    this.#ends[2 * slot] = 0;
    this.#ends[2 * slot + 1] = 0;
    this.#vacate(slot);
    while (link > 0) {
      const row = link - 1;
      link = this.#next[row];
      this.#place(row, this.#when[row]);
    }
  }

  /** Moves what is due by `untilMs` from DUE to FIRING first, so that what the callbacks insert waits (rule 4). */
  #fireDue(untilMs: number, fire: (row: number) => void): number {
    if (!this.#dueSorted) this.#sortDue();
    const ends = this.#ends;
    const first = ends[2 * DUE];
    let last = 0;
    let rest = first;
    while (rest > 0 && this.#when[rest - 1] <= untilMs) {
      last = rest;
      rest = this.#next[rest - 1];
    }
    // Something is left only when the clock was set back, after which a time can be past once and future again.
    if (rest > 0) this.#dueMinMs = this.#when[rest - 1];
    if (last === 0) return 0;
    ends[2 * FIRING] = first;
    ends[2 * FIRING + 1] = last;
    this.#prev[first - 1] = ~FIRING;
    this.#next[last - 1] = ~FIRING;
    ends[2 * DUE] = Math.max(rest, 0);
    if (rest > 0) this.#prev[rest - 1] = ~DUE;
    else ends[2 * DUE + 1] = 0;
    return this.#drain(FIRING, fire);
  }

  /** Rare: rows that were overdue when they came, and not in order. Both sorts of typed arrays are stable. */
  #sortDue(): void {
    let count = 0;
    for (let link = this.#ends[2 * DUE]; link > 0; link = this.#next[link - 1]) count++;
    const rows = new Int32Array(count);
    let index = 0;
    for (let link = this.#ends[2 * DUE]; link > 0; link = this.#next[link - 1]) rows[index++] = link - 1;
    const when = this.#when;
    rows.sort((a, b) => when[a] - when[b]);
    this.#ends[2 * DUE] = 0;
    this.#ends[2 * DUE + 1] = 0;
    for (const row of rows) this.#append(DUE, row);
    this.#dueSorted = true;
  }
}

function wholeMs(ms: number): number {
  assert(ms >= 0 && ms <= TIME_MAX_MS, 'a wheel time is between 0 and 2^53');
  return Math.floor(ms);
}

function lowestBit(mask: number): number {
  return 31 - Math.clz32(mask & -mask);
}
