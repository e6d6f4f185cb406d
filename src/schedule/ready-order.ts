/**
 * The order of one queue's ready rows: by priority, then run-at, then id. Scheduler thread only.
 *
 * Nearly every row arrives in order, so a linked lane takes each row that does not precede its last one, at the cost
 * of one comparison, and only the others go into a 4-ary heap. The next row is the better of the two fronts. A heap
 * alone costs a cache miss a level at a million rows; the lane keeps the cost flat (`bench/end-to-end`).
 *
 * O1  A lane row has next >= 0 (0 = last); a heap row has next = IN_HEAP and its place in prev.
 * O2  A row that leaves has next = prev = 0.
 */
import { precedes, ReadyHeap } from '../../native-free/heap.js';
import type { Shared } from '../../native-free/layout.js';

const IN_HEAP = -1;

export class ReadyOrder {
  size = 0;
  readonly #columns: { priority: Int32Array; runAt: Float64Array; id: Float64Array; position: Int32Array };
  readonly #next: Int32Array;
  readonly #prev: Int32Array;
  #first = 0;
  #last = 0;
  #heap: ReadyHeap | undefined;

  constructor(shared: Shared) {
    this.#columns = { priority: shared.priority, runAt: shared.runAt, id: shared.id, position: shared.prev };
    this.#next = shared.next;
    this.#prev = shared.prev;
  }

  push(row: number): void {
    this.size++;
    if (this.#last === 0) {
      this.#first = row;
      this.#last = row;
      this.#next[row] = 0;
      this.#prev[row] = 0;
      return;
    }
    if (precedes(this.#columns, row, this.#last)) {
      this.#heap ??= new ReadyHeap(this.#columns);
      this.#next[row] = IN_HEAP;
      this.#heap.push(row);
      return;
    }
    this.#next[this.#last] = row;
    this.#prev[row] = this.#last;
    this.#next[row] = 0;
    this.#last = row;
  }

  /** The first row in order, not removed; 0 when there is none. */
  peek(): number {
    const heap = this.#heap;
    if (heap === undefined || heap.size === 0) return this.#first;
    const front = heap.peek();
    return this.#first !== 0 && precedes(this.#columns, this.#first, front) ? this.#first : front;
  }

  pop(): number {
    const row = this.peek();
    if (row !== 0) this.remove(row);
    return row;
  }

  remove(row: number): void {
    this.size--;
    const next = this.#next[row]!;
    if (next === IN_HEAP) {
      this.#heap!.remove(row);
    } else {
      const prev = this.#prev[row]!;
      if (prev === 0) this.#first = next;
      else this.#next[prev] = next;
      if (next === 0) this.#last = prev;
      else this.#prev[next] = prev;
    }
    this.#next[row] = 0;
    this.#prev[row] = 0;
  }
}
