/**
 * The only door to shared memory that more than one thread writes.
 *
 * Everything lock-free in millrace calls these functions instead of `Atomics`, so that one source runs on real
 * atomics in production and, with this module swapped, under a scheduler that explores interleavings.
 * The wrappers cost nothing: V8 inlines them into their callers. What they call it does not inline: every operation of
 * `Atomics` is a call of 7 to 8 ns (Node 20), so hot paths read plainly where a guess is enough.
 *
 * `wait` blocks and so is never called on the main thread; `waitAsync` has its own care-taker in `src/client/waiters`.
 */
export function load(words: Int32Array, index: number): number {
  return Atomics.load(words, index);
}

export function store(words: Int32Array, index: number, value: number): void {
  Atomics.store(words, index, value);
}

/** Returns the value found; the exchange happened when that equals `expected`. */
export function compareExchange(words: Int32Array, index: number, expected: number, value: number): number {
  return Atomics.compareExchange(words, index, expected, value);
}

/** Returns the value before the addition. */
export function add(words: Int32Array, index: number, value: number): number {
  return Atomics.add(words, index, value);
}

export function or(words: Int32Array, index: number, bits: number): number {
  return Atomics.or(words, index, bits);
}

export function and(words: Int32Array, index: number, bits: number): number {
  return Atomics.and(words, index, bits);
}

export function notify(words: Int32Array, index: number): number {
  return Atomics.notify(words, index);
}

/** Blocks until notified or `timeoutMs` passed; returns at once when the word is not `expected`. */
export function wait(words: Int32Array, index: number, expected: number, timeoutMs: number): void {
  Atomics.wait(words, index, expected, timeoutMs);
}
