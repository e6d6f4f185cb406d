import { expect, it } from 'vitest';
import { leftMs } from '../../src/schedule/lease.js';

const LONGEST = 2 ** 31 - 1;

it.each([0, 1, 12_345, 2 ** 31 - 5, 2 ** 31, 2 ** 32 - 1, 2 ** 40 + 7])('time left of a lease, at %i ms', (now) => {
  const deadlineIn = (ms: number): number => (now + ms) | 0;
  for (const ms of [1, 1000, 2 ** 30, LONGEST]) expect(leftMs(deadlineIn(ms), now)).toBe(ms);
  for (const late of [0, 1, 1000, 2 ** 30, 2 ** 31 - 2 ** 23]) expect(leftMs(deadlineIn(-late), now)).toBe(-late || 0);
  // The holder looked at the clock after the scheduler did.
  for (const skew of [1, 10, 60_000]) expect(leftMs(deadlineIn(skew + LONGEST), now)).toBe(skew + LONGEST);
});
