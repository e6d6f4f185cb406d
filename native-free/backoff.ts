// How long a failed job waits before its next attempt. Called by the wheel thread when a job is given back; chance
// comes in as an argument, so that a seed replays it and so that the record keeps the outcome, not the recipe.
//
// 1. The result is a whole number of milliseconds, 0 <= result <= max, for every attempt from 1 to 2^31.
// 2. random is called once for 'full' and never for 'none'.
//
// Source: Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 4 March 2015, whose "full jitter"
// draws the whole wait at random and so spreads out clients that failed together.

import { assert } from './assert.js';

export interface ExponentialBackoff {
  /** Upper bound of the wait after the first attempt, in milliseconds. */
  readonly base: number;
  /** Upper bound of every wait, in milliseconds. */
  readonly max: number;
  readonly jitter: 'full' | 'none';
}

// 2 ** 1023 is the largest power of two in a double; a larger exponent gives Infinity, and 0 * Infinity is NaN.
const EXPONENT_MAX = 1023;

/** Milliseconds to wait after attempt number `attempt` (1 is the first run) has failed; `random` gives [0, 1). */
export function backoffMs(backoff: ExponentialBackoff, attempt: number, random: () => number): number {
  assert(attempt >= 1, 'attempts are counted from 1');
  const ceilingMs = Math.min(backoff.max, backoff.base * 2 ** Math.min(attempt - 1, EXPONENT_MAX));
  assert(ceilingMs >= 0, 'a backoff has a base and a max of at least 0');
  return Math.floor(backoff.jitter === 'full' ? random() * ceilingMs : ceilingMs);
}
