// The ready order of one tenant in one queue: a 4-ary min-heap of rows by (priority, runAt, id). Owned and called by
// the wheel thread. There may be 100,000 of these, nearly all empty: an empty heap that was never used is one object
// of two fields (40 bytes), and storage comes with the first push, grows by doubling and shrinks by halving.
//
// 1. #rows[0] is the number of rows, #rows[1..size] the heap; the children of i are 4i - 2 .. 4i + 1.
// 2. position[row] is the row's index in #rows, so at least 1; 0 means in no heap. Columns that start as zeros are right.
// 3. No row precedes its parent. Ids are unique, so the order is total and pops are deterministic.
//
// A sift moves a hole and writes the sifted row once. Four children share a cache line or two, and the tree is half as
// deep as a binary one (LaMarca and Ladner, "The influence of caches on the performance of heaps", 1996).

import { assert } from './assert.js';

export interface HeapColumns {
  readonly priority: Int32Array;
  readonly runAt: Float64Array;
  readonly id: Float64Array;
  readonly position: Int32Array;
}

const NOTHING = new Int32Array(1);
/** Words of the smallest storage: an Int32Array of up to 64 bytes lives inside V8's own heap, without a buffer. */
const WORDS_MIN = 8;
/** A heap that ran empty keeps no more than this, so that going between 0 and a few rows allocates nothing. */
const WORDS_KEPT = 16;

/** True when row `a` is handed out before row `b`. */
export function precedes(columns: HeapColumns, a: number, b: number): boolean {
  const { priority, runAt, id } = columns;
  if (priority[a] !== priority[b]) return priority[a] < priority[b];
  if (runAt[a] !== runAt[b]) return runAt[a] < runAt[b];
  return id[a] < id[b];
}

export class ReadyHeap {
  readonly #columns: HeapColumns;
  #rows = NOTHING;

  constructor(columns: HeapColumns) {
    this.#columns = columns;
  }

  get size(): number {
    return this.#rows[0];
  }

  push(row: number): void {
    assert(this.#columns.position[row] === 0, 'a row enters a heap from no heap');
    const size = this.#rows[0] + 1;
    if (size >= this.#rows.length) this.#resize(size === 1 ? WORDS_MIN : 2 * this.#rows.length);
    this.#rows[0] = size;
    this.#siftUp(row, size);
  }

  /** The row that precedes all others, or -1. */
  peek(): number {
    return this.#rows[0] === 0 ? -1 : this.#rows[1];
  }

  /** Takes out the row that precedes all others; -1 when empty. */
  pop(): number {
    const rows = this.#rows;
    const size = rows[0];
    if (size === 0) return -1;
    const top = rows[1];
    this.#columns.position[top] = 0;
    rows[0] = size - 1;
    if (size > 1) this.#siftDown(rows[size], 1);
    this.#shrink();
    return top;
  }

  /** Takes out a row from wherever it is. */
  remove(row: number): void {
    const rows = this.#rows;
    const index = this.#columns.position[row];
    const size = rows[0];
    assert(index > 0 && index <= size && rows[index] === row, 'a removed row is in this heap');
    this.#columns.position[row] = 0;
    rows[0] = size - 1;
    const last = rows[size];
    if (last !== row) {
      // The last row may come from another branch, where rows that precede this place's parent can live.
      if (index > 1 && precedes(this.#columns, last, rows[(index + 2) >> 2])) this.#siftUp(last, index);
      else this.#siftDown(last, index);
    }
    this.#shrink();
  }

  /** Puts `row` at the hole `index` or above it. */
  #siftUp(row: number, index: number): void {
    const rows = this.#rows;
    const { priority, runAt, id, position } = this.#columns;
    const rowPriority = priority[row];
    const rowRunAt = runAt[row];
    const rowId = id[row];
    let hole = index;
    while (hole > 1) {
      const parent = (hole + 2) >> 2;
      const other = rows[parent];
      if (priority[other] !== rowPriority) {
        if (priority[other] < rowPriority) break;
      } else if (runAt[other] !== rowRunAt) {
        if (runAt[other] < rowRunAt) break;
      } else if (id[other] < rowId) break;
      rows[hole] = other;
      position[other] = hole;
      hole = parent;
    }
    rows[hole] = row;
    position[row] = hole;
  }

  /** Puts `row` at the hole `index` or below it; the size has been lowered already. */
  #siftDown(row: number, index: number): void {
    const rows = this.#rows;
    const columns = this.#columns;
    const size = rows[0];
    let hole = index;
    for (let child = 4 * hole - 2; child <= size; child = 4 * hole - 2) {
      const end = Math.min(child + 3, size);
      let best = child;
      let bestRow = rows[child];
      for (let i = child + 1; i <= end; i++) {
        const other = rows[i];
        if (precedes(columns, other, bestRow)) {
          best = i;
          bestRow = other;
        }
      }
      if (!precedes(columns, bestRow, row)) break;
      rows[hole] = bestRow;
      columns.position[bestRow] = hole;
      hole = best;
    }
    rows[hole] = row;
    columns.position[row] = hole;
  }

  /** Halves at a quarter full, so that a push and a pop in turn never resize each time. */
  #shrink(): void {
    const words = this.#rows.length;
    if (words > WORDS_KEPT && 4 * this.#rows[0] < words) this.#resize(words >> 1);
  }

  #resize(words: number): void {
    const rows = new Int32Array(words);
    rows.set(this.#rows.subarray(0, this.#rows[0] + 1));
    this.#rows = rows;
  }
}
