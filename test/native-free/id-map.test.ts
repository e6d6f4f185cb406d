import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { IdMap } from '../../native-free/id-map.js';

const SAFE_MAX = Number.MAX_SAFE_INTEGER;

/** Mean number of slots read for the ids of these rows. */
function meanProbes(map: IdMap, ids: Iterable<number>): number {
  let sum = 0;
  let count = 0;
  for (const id of ids) {
    sum += map.probes(id);
    count++;
  }
  return sum / count;
}

describe('IdMap', () => {
  it('gives, in every history, what a Map gives', () => {
    const rowsMax = 120;
    const operation = fc.oneof(
      { weight: 6, arbitrary: fc.record({ kind: fc.constant('insert' as const), row: fc.nat(rowsMax - 1) }) },
      { weight: 5, arbitrary: fc.record({ kind: fc.constant('remove' as const), nth: fc.nat() }) },
    );
    const idStep = fc.oneof(
      fc.integer({ min: 1, max: 5 }),
      fc.nat(40).map((power) => 2 ** power),
      fc.constant(0),
    );
    fc.assert(
      fc.property(
        fc.array(operation, { maxLength: 300, size: 'max' }),
        fc.constantFrom(1, 2 ** 31 - 3, 2 ** 32 - 3, 2 ** 52),
        idStep,
        fc.infiniteStream(fc.nat(9)),
        fc.constantFrom(0, 12, 13, 100),
        (operations, firstId, step, gaps, initialCapacity) => {
          const ids = new Float64Array(rowsMax);
          const map = new IdMap(ids, initialCapacity);
          const model = new Map<number, number>();
          const gone: number[] = [0, SAFE_MAX];
          let id = firstId;
          for (const op of operations) {
            if (op.kind === 'insert') {
              if ([...model.values()].includes(op.row)) continue;
              id += step === 0 ? 1 + gaps.next().value : step;
              if (id > SAFE_MAX) break;
              ids[op.row] = id;
              map.insert(op.row);
              model.set(id, op.row);
            } else if (model.size > 0) {
              const [oldId, row] = [...model][op.nth % model.size];
              map.remove(row);
              model.delete(oldId);
              gone.push(oldId);
            }
            expect(map.size).toBe(model.size);
            for (const [liveId, row] of model) if (map.find(liveId) !== row) expect.fail(`lost id ${liveId}`);
            for (const goneId of gone) if (map.find(goneId) !== -1) expect.fail(`found id ${goneId}`);
          }
        },
      ),
      { numRuns: 200 },
    );
  });

  it.each([11, 12, 13, 23, 24, 25, 767, 768, 769])(
    'finds %d ids on both sides of a growth and after shrinking',
    (count) => {
      const ids = Float64Array.from({ length: count }, (_, row) => 5 + 3 * row);
      const map = new IdMap(ids);
      for (let round = 0; round < 2; round++) {
        for (let row = 0; row < count; row++) map.insert(row);
        for (let row = 0; row < count; row++) expect(map.find(ids[row])).toBe(row);
        for (let row = 0; row < count; row++) {
          map.remove(row);
          expect(map.find(ids[row])).toBe(-1);
          if (row + 1 < count) expect(map.find(ids[count - 1])).toBe(count - 1);
        }
        expect(map.size).toBe(0);
      }
    },
  );

  const steps = [1, 2, 3, 4, 5, 7, 8, 16, 60, 64, 1000, 4096, 2 ** 16, 2 ** 20, 2 ** 31, 2 ** 32, 2 ** 33];
  it.each(steps)('reads few slots a lookup when ids rise by %d, at the highest load', (step) => {
    for (const bits of [10, 14, 17]) {
      const count = 0.75 * 2 ** bits;
      const ids = Float64Array.from({ length: count }, (_, row) => 1_000_000_007 + step * row);
      const map = new IdMap(ids);
      for (let row = 0; row < count; row++) map.insert(row);
      const mean = meanProbes(map, ids);
      // Random placement reads 2.5 slots at this load.
      expect(mean, `${step} ${bits}`).toBeLessThanOrEqual(step <= 8 ? 3 : 12);
    }
  });

  it('reads few slots a lookup when the window moves on and one in ten ids stays behind', () => {
    const rows = 20_000;
    for (const step of [1, 4, 5]) {
      const ids = new Float64Array(rows);
      const map = new IdMap(ids);
      const free = Array.from({ length: rows }, (_, row) => row);
      const window: number[] = [];
      const stayed: number[] = [];
      let id = 1;
      for (let i = 0; i < 100_000; i++) {
        const row = free.pop()!;
        ids[row] = id += step;
        map.insert(row);
        if (i % 10 === 0) stayed.push(row);
        else window.push(row);
        if (window.length > 4_000) {
          const [oldest] = window.splice(0, 1);
          map.remove(oldest);
          free.push(oldest);
        }
        if (stayed.length > 5_000) {
          const [some] = stayed.splice((i * 7919) % stayed.length, 1);
          map.remove(some);
          free.push(some);
        }
      }
      const live = [...window, ...stayed].map((row) => ids[row]);
      expect(map.size).toBe(live.length);
      expect(meanProbes(map, live)).toBeLessThanOrEqual(3);
    }
  });

  it('refuses to remove what it does not hold', () => {
    const map = new IdMap(Float64Array.of(7, 8));
    map.insert(0);
    expect(() => map.remove(1)).toThrow('in the map');
    expect(() => map.insert(0)).toThrow('not in the map');
  });
});
