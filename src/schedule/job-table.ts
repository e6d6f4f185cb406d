/**
 * The job table: one row a live, dead or retained job, in columns of shared memory (`native-free/layout`).
 * Owned by the scheduler thread; consumers read columns of rows they hold a lease on.
 *
 * T1  Row 0 is never used. A row's state changes by `move` alone, along `transitions`.
 * T2  Freed rows are used again in the order they were freed, and not before REST of them are waiting: so no row's
 *     lease counter runs fast (29 bits last weeks at a million leases a second), yet the hot rows stay in cache.
 * T3  A row whose counter has run past COUNTER_RETIRED is not used again before the next open.
 */
import { assert } from '../../native-free/assert.js';
import { compareExchange, load } from '../../native-free/atomics.js';
import { LeaseState, type Shared } from '../../native-free/layout.js';
import { COUNTER_RETIRED, leaseCounter, leaseState, withState } from './lease.js';
import { nextState, State } from './transitions.js';

const REST = 1024;
const STATE_SHIFT = 24;

export class JobTable {
  readonly shared: Shared;
  /** One more than the highest row ever used. */
  high = 1;
  #freeHead = 0;
  #freeTail = 0;
  #freeCount = 0;

  constructor(shared: Shared) {
    this.shared = shared;
  }

  /** A free row, or 0 when the table is full. Its columns are the caller's to fill. */
  take(): number {
    if (this.#freeCount > REST || this.high >= this.shared.sizes.rows) {
      const row = this.#freeHead;
      if (row === 0) return 0;
      this.#freeHead = this.shared.next[row]!;
      if (--this.#freeCount === 0) this.#freeTail = 0;
      this.shared.next[row] = 0;
      return row;
    }
    return this.high++;
  }

  /** Gives back a row whose state is free and that no list holds. */
  give(row: number): void {
    const { next, prev, lease } = this.shared;
    next[row] = 0;
    prev[row] = 0;
    if (leaseCounter(lease[row]!) > COUNTER_RETIRED) return;
    if (this.#freeTail === 0) this.#freeHead = row;
    else next[this.#freeTail] = row;
    this.#freeTail = row;
    this.#freeCount++;
  }

  state(row: number): number {
    return this.shared.counts[row]! >>> STATE_SHIFT;
  }

  attempts(row: number): number {
    return this.shared.counts[row]! & 0xffff;
  }

  crashes(row: number): number {
    return (this.shared.counts[row]! >>> 16) & 0xff;
  }

  /** Moves the row along the transition table (T1). Returns the new state. */
  move(row: number, event: number): number {
    const counts = this.shared.counts;
    const word = counts[row]!;
    const next = nextState(word >>> STATE_SHIFT, event);
    counts[row] = (word & 0xffffff) | (next << STATE_SHIFT);
    return next;
  }

  count(row: number, attempts: number, crashes: number): void {
    const counts = this.shared.counts;
    counts[row] = (counts[row]! & ~0xffffff) | attempts | (crashes << 16);
  }

  /** Ends whatever the row's lease word says, at the scheduler's side. False: a consumer is in the middle of it. */
  tryEndLease(row: number, from: number): boolean {
    const lease = this.shared.lease;
    const word = load(lease, row);
    if (leaseState(word) !== from) return false;
    return compareExchange(lease, row, word, withState(word, LeaseState.IDLE)) === word;
  }

  /** Every row is in a state the audit can name; returns what does not add up. For tests and `stats`. */
  audit(): string[] {
    const wrong: string[] = [];
    for (let row = 1; row < this.high; row++) {
      const word = this.shared.lease[row]!;
      const leased = leaseState(word) !== LeaseState.IDLE;
      const state = this.state(row);
      if (leased && state !== State.OFFERED) wrong.push(`row ${row} has lease word ${word} in state ${state}`);
    }
    assert(this.high <= this.shared.sizes.rows, 'more rows in use than the table has');
    return wrong;
  }
}
