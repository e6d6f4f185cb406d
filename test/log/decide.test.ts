import { expect, it } from 'vitest';
import {
  BATCH_TABLE,
  BODIES,
  decideBatch,
  decideSegment,
  FOUND,
  HEADS,
  matchesBatch,
  matchesSegment,
  SEGMENT_TABLE,
} from '../../src/log/decide.js';

const BOTH = [true, false];

it('has exactly one row for every combination of facts about a batch', () => {
  const used = new Set<string>();
  for (const found of FOUND) {
    for (const body of BODIES) {
      for (const newest of BOTH) {
        for (const durable of BOTH) {
          const facts = { found, body, newest, durable };
          const rows = BATCH_TABLE.filter((row) => matchesBatch(row, facts));
          expect(
            rows.map((row) => row.label),
            JSON.stringify(facts),
          ).toHaveLength(1);
          expect(decideBatch(facts)).toBe(rows[0]);
          used.add(rows[0].label);
        }
      }
    }
  }
  expect(used.size).toBe(BATCH_TABLE.length);
});

it('has exactly one row for every combination of facts about the head of a segment', () => {
  const used = new Set<string>();
  for (const head of HEADS) {
    for (const bytesBehind of BOTH) {
      for (const newest of BOTH) {
        for (const durable of BOTH) {
          const facts = { head, bytesBehind, newest, durable };
          const rows = SEGMENT_TABLE.filter((row) => matchesSegment(row, facts));
          expect(
            rows.map((row) => row.label),
            JSON.stringify(facts),
          ).toHaveLength(1);
          expect(decideSegment(facts)).toBe(rows[0]);
          used.add(rows[0].label);
        }
      }
    }
  }
  expect(used.size).toBe(SEGMENT_TABLE.length);
});

it('cuts only in the newest segment and only what nothing says was durable', () => {
  for (const found of FOUND) {
    for (const body of BODIES) {
      for (const newest of BOTH) {
        for (const durable of BOTH) {
          const { action } = decideBatch({ found, body, newest, durable });
          if (action === 'cut' || action === 'end') expect(newest && !durable).toBe(true);
          if (action === 'apply') expect([found, body]).toEqual(['good', 'intact']);
          if (action === 'newer') expect(found === 'newer' || body === 'newer').toBe(true);
        }
      }
    }
  }
});
