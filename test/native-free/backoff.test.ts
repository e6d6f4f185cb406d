import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { backoffMs } from '../../native-free/backoff.js';

const never = () => expect.fail('no chance was asked for');

describe('backoffMs', () => {
  it('doubles from base to max when there is no jitter', () => {
    const backoff = { base: 1_000, max: 3_600_000, jitter: 'none' } as const;
    const waits = [1, 2, 3, 4, 11, 12, 13, 14].map((attempt) => backoffMs(backoff, attempt, never));
    expect(waits).toEqual([1_000, 2_000, 4_000, 8_000, 1_024_000, 2_048_000, 3_600_000, 3_600_000]);
  });

  it('draws the whole wait at random with full jitter', () => {
    const backoff = { base: 1_000, max: 10_000, jitter: 'full' } as const;
    expect([0, 0.25, 0.9999999].map((chance) => backoffMs(backoff, 3, () => chance))).toEqual([0, 1_000, 3_999]);
    expect(backoffMs(backoff, 30, () => 0.5)).toBe(5_000);
  });

  it('is a whole number within its bounds for every attempt up to 2^31', () => {
    const ms = fc.oneof(fc.nat(), fc.double({ min: 0.001, max: 2 ** 53, noNaN: true }), fc.constantFrom(0, 1, 2 ** 53));
    const attempt = fc.oneof(
      fc.integer({ min: 1, max: 2 ** 31 }),
      fc.constantFrom(1, 53, 1023, 1024, 1025, 1026, 2 ** 31),
    );
    const chance = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true });
    fc.assert(
      fc.property(
        ms,
        ms,
        attempt,
        chance,
        fc.constantFrom('full' as const, 'none' as const),
        (base, max, n, c, jitter) => {
          const waitMs = backoffMs({ base, max, jitter }, n, () => c);
          const ceilingMs = base === 0 ? 0 : Math.min(max, base * 2 ** (n - 1));
          expect(Number.isInteger(waitMs)).toBe(true);
          expect(waitMs).toBeGreaterThanOrEqual(0);
          expect(waitMs).toBeLessThanOrEqual(ceilingMs);
          if (jitter === 'none') expect(waitMs).toBe(Math.floor(ceilingMs));
          else expect(Math.abs(waitMs - c * ceilingMs)).toBeLessThanOrEqual(1);
        },
      ),
      { numRuns: 2000 },
    );
  });

  it('refuses an attempt before the first and a negative bound', () => {
    expect(() => backoffMs({ base: 1, max: 1, jitter: 'none' }, 0, never)).toThrow('from 1');
    expect(() => backoffMs({ base: -1, max: 1, jitter: 'none' }, 1, never)).toThrow('at least 0');
    expect(() => backoffMs({ base: Number.NaN, max: 1, jitter: 'none' }, 1, never)).toThrow('at least 0');
  });
});
