/**
 * The lease word: who may run a job, in one Int32 that everybody changes by CAS and nobody any other way.
 * Counter (29 bits, rises with every offer of the row) and state (3 bits). Called by consumers and the scheduler.
 *
 * L1  IDLE -> READY            scheduler, with a new counter, before the row enters a ready ring
 *     READY -> CLAIMING        the consumer that took the ring's entry, having announced the row (OwnerWord.CLAIMING)
 *     CLAIMING -> LEASED       the same consumer, after writing deadline and holder
 *     LEASED -> SETTLED        ack or fail, by the holder
 *     LEASED -> IDLE           cancellation, death of the holder's thread: the scheduler
 *     READY -> IDLE            withdrawn: the scheduler
 *     SETTLED -> IDLE          the scheduler, when it applies the settling record
 *     LEASED -> EXPIRING -> LEASED or IDLE   expiry: the scheduler
 * L2  So a lease ends exactly once. Whoever wins the CAS that ends it writes the record that says how.
 * L4  Extending stores the deadline, then reads the word; expiring stores EXPIRING, then reads the deadline. One of
 *     the two sees the other, and whoever meets EXPIRING waits the few instructions until it is decided.
 * L3  The counter never falls while the broker is open, also when the row serves another job: a stale word never
 *     matches. With the epoch in front it is the token, which rises per job for the life of the directory.
 */
import { LEASE_COUNTER_SHIFT, LEASE_STATE_MASK, LeaseState, TOKEN_COUNTERS } from '../../native-free/layout.js';

export function leaseWord(counter: number, state: number): number {
  return (counter << LEASE_COUNTER_SHIFT) | state;
}

export function leaseState(word: number): number {
  return word & LEASE_STATE_MASK;
}

export function leaseCounter(word: number): number {
  return word >>> LEASE_COUNTER_SHIFT;
}

/** The same counter in another state. */
export function withState(word: number, state: number): number {
  return (word & ~LEASE_STATE_MASK) | state;
}

/** The word for the next offer of a row. */
export function nextOffer(word: number): number {
  return leaseWord(leaseCounter(word) + 1, LeaseState.READY);
}

/** A row whose counter is past this serves no further job; 2^28 leases are left to the one it serves. */
export const COUNTER_RETIRED = 2 ** 28;

export function tokenOf(epoch: number, word: number): number {
  return epoch * TOKEN_COUNTERS + leaseCounter(word);
}

/** More than two threads' looks at the clock are ever apart. */
const SKEW_MS_MAX = 2 ** 22;

/**
 * Milliseconds from `nowMs` to a lease's deadline, an Int32 that wraps; not positive when it has passed. A span may be as
 * long as 2^31 - 1, and begin after `nowMs` was read: what would be a deadline of long ago is one that is far off.
 */
export function leftMs(deadline: number, nowMs: number): number {
  const left = (deadline - (nowMs | 0)) | 0;
  return left > SKEW_MS_MAX - 2 ** 31 ? left : left + 2 ** 32;
}
