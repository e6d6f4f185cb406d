import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { TimingWheel } from '../../native-free/wheel.js';

const TIME_MAX_MS = 2 ** 53;

function columns(rows: number) {
  return { when: new Float64Array(rows), next: new Int32Array(rows), prev: new Int32Array(rows) };
}

/** The obvious wheel: a list searched for its least time. Rows inserted too late for the running advance are held. */
class SortedModel {
  readonly rows = new Map<number, { whenMs: number; order: number; held: boolean }>();
  #order = 0;
  constructor(public nowMs: number) {}

  insert(row: number, whenMs: number): void {
    this.rows.set(row, { whenMs, order: this.#order++, held: whenMs <= this.nowMs });
  }

  minMs(): number {
    return Math.min(...[...this.rows.values()].map((timer) => timer.whenMs));
  }

  advance(nowMs: number, fire: (row: number) => void): number {
    this.nowMs = Math.max(this.nowMs, nowMs);
    for (const timer of this.rows.values()) timer.held = false;
    for (let fired = 0; ; fired++) {
      const due = [...this.rows].filter(([, timer]) => timer.whenMs <= nowMs && !timer.held);
      if (due.length === 0) return fired;
      due.sort(([, a], [, b]) => a.whenMs - b.whenMs || a.order - b.order);
      const [row] = due[0];
      this.rows.delete(row);
      fire(row);
    }
  }
}

const borders = [6, 12, 18, 24, 30, 31, 32, 36, 42, 48, 52].flatMap((power) => [-1, 0, 1].map((d) => 2 ** power + d));
const delayMs = fc.oneof(
  { weight: 3, arbitrary: fc.integer({ min: -3, max: 70 }) },
  { weight: 3, arbitrary: fc.integer({ min: -100, max: 10_000 }) },
  { weight: 2, arbitrary: fc.constantFrom(...borders) },
  { weight: 1, arbitrary: fc.integer({ min: 0, max: 2 ** 52 }) },
);
const rowsMax = 24;
const row = fc.nat(rowsMax - 1);
/** What the callback does when the row fires: insert some row, cancel some row, or neither. */
const reaction = fc.record({
  insert: fc.option(fc.record({ row, delayMs }), { nil: undefined, freq: 2 }),
  cancel: fc.option(row, { nil: undefined, freq: 3 }),
});
const operation = fc.oneof(
  { weight: 50, arbitrary: fc.record({ kind: fc.constant('insert' as const), row, delayMs }) },
  { weight: 10, arbitrary: fc.record({ kind: fc.constant('cancel' as const), row }) },
  {
    weight: 30,
    arbitrary: fc.record({ kind: fc.constant('advance' as const), delayMs, fraction: fc.constantFrom(0, 0.9) }),
  },
  { weight: 20, arbitrary: fc.record({ kind: fc.constant('step' as const) }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('reset' as const), delayMs }) },
);
const startMs = fc.constantFrom(0, 63, 2 ** 31 - 1, 2 ** 32 - 1, 1_764_000_000_000, 2 ** 52);

const within = (ms: number) => Math.min(Math.max(ms, 0), TIME_MAX_MS);

describe('TimingWheel', () => {
  it('fires, in every history, the rows a sorted list fires, in the same order', () => {
    fc.assert(
      fc.property(
        startMs,
        fc.array(operation, { maxLength: 60 }),
        fc.array(reaction, { minLength: rowsMax, maxLength: rowsMax }),
        (start, operations, reactions) => {
          const table = columns(rowsMax);
          const wheel = new TimingWheel(table, start);
          const model = new SortedModel(start);

          const advance = (nowMs: number) => {
            const seen: number[] = [];
            const expected: number[] = [];
            const fired = wheel.advance(nowMs, (fired) => {
              seen.push(fired);
              expect(wheel.has(fired)).toBe(false);
              const { insert, cancel } = reactions[fired];
              if (cancel !== undefined) wheel.cancel(cancel);
              if (insert !== undefined && !wheel.has(insert.row)) {
                wheel.insert(insert.row, within(wheel.nowMs + insert.delayMs));
              }
            });
            model.advance(Math.floor(nowMs), (fired) => {
              expected.push(fired);
              const { insert, cancel } = reactions[fired];
              if (cancel !== undefined) model.rows.delete(cancel);
              if (insert !== undefined && !model.rows.has(insert.row)) {
                model.insert(insert.row, within(model.nowMs + insert.delayMs));
              }
            });
            expect(seen).toEqual(expected);
            expect(fired).toBe(seen.length);
          };

          for (const op of operations) {
            if (op.kind === 'insert' && !model.rows.has(op.row)) {
              const whenMs = within(model.nowMs + op.delayMs);
              wheel.insert(op.row, whenMs);
              model.insert(op.row, whenMs);
              expect(table.when[op.row]).toBe(whenMs);
            } else if (op.kind === 'cancel') {
              expect(wheel.cancel(op.row)).toBe(model.rows.delete(op.row));
            } else if (op.kind === 'advance') {
              advance(Math.min(within(model.nowMs + op.delayMs) + op.fraction, TIME_MAX_MS));
            } else if (op.kind === 'step') {
              const nextMs = wheel.nextAtMs();
              if (nextMs !== Number.POSITIVE_INFINITY) advance(nextMs);
            } else if (op.kind === 'reset') {
              const nowMs = within(model.nowMs - op.delayMs);
              wheel.reset(nowMs);
              model.rows.clear();
              model.nowMs = nowMs;
            }
            expect(wheel.size).toBe(model.rows.size);
            expect(wheel.nowMs).toBe(model.nowMs);
            // No bound is later than the true next expiry, and only an empty wheel has none.
            expect(wheel.nextAtMs()).toBeLessThanOrEqual(model.minMs());
            expect(wheel.nextAtMs() === Number.POSITIVE_INFINITY).toBe(model.rows.size === 0);
            // With nothing overdue it lies ahead, or its owner would advance over and over without the time moving.
            if (model.minMs() > model.nowMs) expect(wheel.nextAtMs()).toBeGreaterThan(model.nowMs);
            for (let i = 0; i < rowsMax; i++) {
              if (wheel.has(i) !== model.rows.has(i)) expect.fail(`row ${i} is in one of the two only`);
              if (!wheel.has(i) && (table.prev[i] !== 0 || table.next[i] !== 0)) expect.fail(`row ${i} keeps a link`);
            }
          }
        },
      ),
      { numRuns: 1000 },
    );
  });

  it('comes to rest when advanced to its own next time again and again, within nine steps a row', () => {
    fc.assert(
      fc.property(startMs, fc.array(fc.integer({ min: 0, max: 2 ** 52 }), { maxLength: 50 }), (start, delays) => {
        const table = columns(50);
        const wheel = new TimingWheel(table, start);
        for (const [i, delay] of delays.entries()) wheel.insert(i, start + delay);
        let steps = 0;
        let fired = 0;
        for (; wheel.size > 0; steps++) {
          const nextMs = wheel.nextAtMs();
          fired += wheel.advance(nextMs, (row) => expect(table.when[row]).toBe(nextMs));
        }
        expect(fired).toBe(delays.length);
        expect(steps).toBeLessThanOrEqual(9 * delays.length);
      }),
    );
  });

  it.each(borders)('fires a delay of %d ms on its millisecond, from whatever time it starts', (delay) => {
    for (const start of [0, 1, 62, 63, 64, 4095, 2 ** 31 - 1, 2 ** 31, 2 ** 32 - 1, 2 ** 32, 1_764_000_000_000]) {
      const wheel = new TimingWheel(columns(1), start);
      wheel.insert(0, start + delay);
      expect(wheel.advance(start + delay - 1, () => {})).toBe(0);
      expect(wheel.advance(start + delay, () => {})).toBe(1);
      expect(wheel.nextAtMs()).toBe(Number.POSITIVE_INFINITY);
    }
  });

  it('visits nothing but the rows when ten years pass at once', () => {
    const table = columns(2);
    const wheel = new TimingWheel(table, 1_764_000_000_000);
    const tenYearsMs = 10 * 365 * 86_400_000;
    // A million jumps over an empty decade: with a visit to each slot on the way this would take months.
    for (let i = 0; i < 1_000_000; i++) wheel.advance(1_764_000_000_000 + i * tenYearsMs * 1e-6, () => {});
    wheel.insert(0, wheel.nowMs + tenYearsMs);
    wheel.insert(1, wheel.nowMs + tenYearsMs + 1);
    expect(wheel.advance(wheel.nowMs + tenYearsMs, () => {})).toBe(1);
    expect(wheel.has(1)).toBe(true);
  });

  it('fires a row that is overdue when it is inserted in the next advance, even one to the same time', () => {
    const wheel = new TimingWheel(columns(3), 1000);
    wheel.insert(0, 1000);
    wheel.insert(1, 0);
    wheel.insert(2, 1001);
    expect(wheel.nextAtMs()).toBe(0);
    const seen: number[] = [];
    expect(wheel.advance(1000, (row) => seen.push(row))).toBe(2);
    expect(seen).toEqual([1, 0]);
  });

  it('ends an advance whose callback makes its own row due again each time', () => {
    const wheel = new TimingWheel(columns(1), 0);
    wheel.insert(0, 5);
    for (let round = 0; round < 3; round++) {
      expect(wheel.advance(10, (row) => wheel.insert(row, 7))).toBe(1);
      expect(wheel.size).toBe(1);
    }
  });

  it('lets a callback cancel rows of the slot that is firing', () => {
    const wheel = new TimingWheel(columns(4), 0);
    for (let i = 0; i < 4; i++) wheel.insert(i, 100);
    const seen: number[] = [];
    wheel.advance(100, (row) => {
      seen.push(row);
      if (row === 0) for (const other of [1, 3]) expect(wheel.cancel(other)).toBe(true);
    });
    expect(seen).toEqual([0, 2]);
    expect(wheel.size).toBe(0);
  });

  it('keeps rows apart from one another when two wheels share the columns', () => {
    const table = columns(4);
    const a = new TimingWheel(table, 0);
    const b = new TimingWheel(table, 0);
    for (let i = 0; i < 4; i++) (i % 2 === 0 ? a : b).insert(i, 50 + i);
    expect([a.size, b.size]).toEqual([2, 2]);
    expect(a.advance(100, (row) => expect(row % 2).toBe(0))).toBe(2);
    expect(b.advance(100, (row) => expect(row % 2).toBe(1))).toBe(2);
  });

  it('after a clock was set back fires nothing before its time', () => {
    const wheel = new TimingWheel(columns(3), 10_000);
    wheel.insert(0, 9_000);
    wheel.insert(1, 10_500);
    wheel.insert(2, 8_000);
    expect(wheel.advance(7_999, () => {})).toBe(0);
    expect(wheel.nextAtMs()).toBe(8_000);
    expect(wheel.advance(8_000, (row) => expect(row).toBe(2))).toBe(1);
    expect(wheel.nextAtMs()).toBe(9_000);
    expect(wheel.advance(9_000, (row) => expect(row).toBe(0))).toBe(1);
    expect(wheel.nowMs).toBe(10_000);
    expect(wheel.advance(10_500, (row) => expect(row).toBe(1))).toBe(1);
  });

  it('refuses what would break it', () => {
    const wheel = new TimingWheel(columns(3), 0);
    wheel.insert(0, 10);
    expect(() => wheel.insert(0, 20)).toThrow('unlinked');
    for (const bad of [0.5, Number.NaN, Number.POSITIVE_INFINITY, TIME_MAX_MS + 2]) {
      expect(() => wheel.insert(1, bad)).toThrow('whole number');
    }
    wheel.insert(1, TIME_MAX_MS);
    wheel.insert(2, TIME_MAX_MS - 1);
    expect(() => wheel.advance(Number.NaN, () => {})).toThrow('between');
    expect(wheel.advance(TIME_MAX_MS - 1, () => {})).toBe(2);
    expect(wheel.advance(TIME_MAX_MS, () => {})).toBe(1);
    wheel.reset(0);
    wheel.insert(0, 1);
    expect(() => wheel.advance(1, () => wheel.advance(2, () => {}))).toThrow('not entered twice');
  });
});
