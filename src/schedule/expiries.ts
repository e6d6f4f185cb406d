/**
 * When jobs die unless they have started by then. A wheel of its own beside the table, made when the first job asks for
 * it: who does not use it pays nothing. Wall clock; scheduler thread only.
 */
import { TimingWheel } from '../../native-free/wheel.js';

export class Expiries {
  readonly #rows: number;
  #when = new Float64Array(0);
  #wheel: TimingWheel | undefined;

  constructor(rows: number) {
    this.#rows = rows;
  }

  get waiting(): boolean {
    return this.#wheel !== undefined && this.#wheel.size > 0;
  }

  insert(row: number, atMs: number, nowMs: number): void {
    if (this.#wheel === undefined) {
      const rows = this.#rows;
      this.#when = new Float64Array(rows);
      const columns = { when: this.#when, next: new Int32Array(rows), prev: new Int32Array(rows) };
      this.#wheel = new TimingWheel(columns, nowMs);
    }
    this.#wheel.insert(row, atMs);
  }

  /** The row's job has started or ended. */
  cancel(row: number): void {
    this.#wheel?.cancel(row);
  }

  advance(nowMs: number, fire: (row: number) => void): number {
    return this.waiting ? this.#wheel!.advance(nowMs, fire) : 0;
  }

  nextAtMs(): number {
    return this.waiting ? this.#wheel!.nextAtMs() : Number.POSITIVE_INFINITY;
  }

  /** The wall clock went back. */
  rewind(nowMs: number): void {
    const wheel = this.#wheel;
    if (wheel === undefined) return;
    const waiting: number[] = [];
    for (let row = 0; row < this.#rows; row++) if (wheel.has(row)) waiting.push(row);
    wheel.reset(nowMs);
    for (const row of waiting) wheel.insert(row, this.#when[row]!);
  }
}
