// The rows of one queue that came out of order: a 4-ary min-heap by (priority, runAt, id). Owned and called by the wheel
// thread. There may be 100,000 of these, nearly all empty: an empty heap that was never used is one object of three
// fields (48 bytes). Storage comes with the first push, grows by doubling and shrinks by halving, down to 0.9 KB all told;
// who has many that are idle drops them.
//
// 1. Place i, from 1 to size, holds 16 bytes: a row with its priority and runAt, so that a sift reads the four children
//    from one or two cache lines and the table's columns only where both are equal. They do not change meanwhile. The
//    children of place i are 4i - 2 .. 4i + 1.
// 2. position[row] is the row's place, so at least 1; 0 means in no heap. Columns that start as zeros are right.
// 3. No row precedes its parent. Ids are unique, so the order is total and pops are deterministic.
//
// A sift moves a hole and writes the sifted row once. Four children a node after LaMarca and Ladner, "The influence of
// caches on the performance of heaps" (1996). With rows alone in 4 bytes, a pop among a million takes 2.4 to 5 times as long.

import { assert } from './assert.js';

export interface HeapColumns {
  readonly priority: Int32Array;
  readonly runAt: Float64Array;
  readonly id: Float64Array;
  readonly position: Int32Array;
}

/**
 * Place i is the four words from 4 * (i + SKIP) on: priority, row, and runAt in two. Words[0] is the size. One place is
 * left out so that four siblings share a line when the allocator starts 16 bytes into one, as glibc's does.
 */
const SKIP = 1;
const WORDS = 4;
const NOTHING = new Int32Array(WORDS * (SKIP + 1));
const NOTHING_DOUBLES = new Float64Array(NOTHING.buffer);
const PLACES_MIN = 6;
/** A heap that ran empty keeps no more than this, so that going between 0 and a few rows allocates nothing. */
const PLACES_KEPT = 14;

/** True when row `a` is handed out before row `b`. */
export function precedes(columns: HeapColumns, a: number, b: number): boolean {
  const { priority, runAt, id } = columns;
  if (priority[a] !== priority[b]) return priority[a] < priority[b];
  if (runAt[a] !== runAt[b]) return runAt[a] < runAt[b];
  return id[a] < id[b];
}

export class ReadyHeap {
  readonly #columns: HeapColumns;
  #words = NOTHING;
  #doubles = NOTHING_DOUBLES;

  constructor(columns: HeapColumns) {
    this.#columns = columns;
  }

  get size(): number {
    return this.#words[0];
  }

  push(row: number): void {
    assert(this.#columns.position[row] === 0, 'a row enters a heap from no heap');
    const place = this.#words[0] + 1;
    const places = placesOf(this.#words);
    if (place > places) {
      this.#words = resized(this.#words, places === 0 ? PLACES_MIN : 2 * places + SKIP);
      this.#doubles = new Float64Array(this.#words.buffer);
    }
    this.#words[0] = place;
    siftUp(this.#words, this.#doubles, this.#columns, row, place);
  }

  /** The row that precedes all others, or -1. */
  peek(): number {
    return this.#words[0] === 0 ? -1 : rowAt(this.#words, 1);
  }

  /** Takes out the row that precedes all others; -1 when empty. */
  pop(): number {
    if (this.#words[0] === 0) return -1;
    const row = rowAt(this.#words, 1);
    this.remove(row);
    return row;
  }

  /** Takes out a row from wherever it is. */
  remove(row: number): void {
    const words = this.#words;
    const columns = this.#columns;
    const place = columns.position[row];
    const size = words[0];
    assert(place > 0 && place <= size && rowAt(words, place) === row, 'a removed row is in this heap');
    columns.position[row] = 0;
    words[0] = size - 1;
    const last = rowAt(words, size);
    if (last !== row) {
      // The last row may come from another branch, where rows that precede this place's parent can live.
      if (place > 1 && precedes(columns, last, rowAt(words, (place + 2) >> 2))) {
        siftUp(words, this.#doubles, columns, last, place);
      } else {
        siftDown(words, this.#doubles, columns, last, place);
      }
    }
    // Halved at a quarter full, so that a push and a pop in turn never resize each time.
    const places = placesOf(words);
    if (places > PLACES_KEPT && 4 * size < places) {
      this.#words = resized(words, places >> 1);
      this.#doubles = new Float64Array(this.#words.buffer);
    }
  }
}

/** Puts `row` into the hole `place` or above it. */
function siftUp(words: Int32Array, doubles: Float64Array, columns: HeapColumns, row: number, place: number): void {
  const { id, position } = columns;
  const priority = columns.priority[row];
  const runAt = columns.runAt[row];
  let hole = place;
  while (hole > 1) {
    const parent = (hole + 2) >> 2;
    const at = WORDS * (parent + SKIP);
    const other = words[at + 1];
    const otherRunAt = doubles[(at >> 1) + 1];
    if (words[at] !== priority) {
      if (words[at] < priority) break;
    } else if (otherRunAt !== runAt) {
      if (otherRunAt < runAt) break;
    } else if (id[other] < id[row]) break;
    put(words, doubles, hole, words[at], other, otherRunAt);
    position[other] = hole;
    hole = parent;
  }
  put(words, doubles, hole, priority, row, runAt);
  position[row] = hole;
}

/** Puts `row` into the hole `place` or below it; the size has been lowered already. */
function siftDown(words: Int32Array, doubles: Float64Array, columns: HeapColumns, row: number, place: number): void {
  const { id, position } = columns;
  const size = words[0];
  const priority = columns.priority[row];
  const runAt = columns.runAt[row];
  let hole = place;
  for (let child = 4 * hole - 2; child <= size; child = 4 * hole - 2) {
    const end = Math.min(child + 3, size);
    let best = 0;
    let bestPriority = priority;
    let bestRow = row;
    let bestRunAt = runAt;
    for (let i = child; i <= end; i++) {
      const at = WORDS * (i + SKIP);
      const otherRunAt = doubles[(at >> 1) + 1];
      if (words[at] !== bestPriority) {
        if (words[at] > bestPriority) continue;
      } else if (otherRunAt !== bestRunAt) {
        if (otherRunAt > bestRunAt) continue;
      } else if (id[words[at + 1]] > id[bestRow]) continue;
      best = i;
      bestPriority = words[at];
      bestRow = words[at + 1];
      bestRunAt = otherRunAt;
    }
    if (best === 0) break;
    put(words, doubles, hole, bestPriority, bestRow, bestRunAt);
    position[bestRow] = hole;
    hole = best;
  }
  put(words, doubles, hole, priority, row, runAt);
  position[row] = hole;
}

function put(words: Int32Array, doubles: Float64Array, place: number, priority: number, row: number, runAt: number) {
  const at = WORDS * (place + SKIP);
  words[at] = priority;
  words[at + 1] = row;
  doubles[(at >> 1) + 1] = runAt;
}

function rowAt(words: Int32Array, place: number): number {
  return words[WORDS * (place + SKIP) + 1];
}

function placesOf(words: Int32Array): number {
  return words.length / WORDS - SKIP - 1;
}

function resized(words: Int32Array, places: number): Int32Array<ArrayBuffer> {
  const larger = new Int32Array(WORDS * (places + SKIP + 1));
  larger.set(words.subarray(0, WORDS * (words[0] + SKIP + 1)));
  return larger;
}
