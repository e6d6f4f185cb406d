import fc from 'fast-check';
import FlatQueue from 'flatqueue';
import { describe, expect, it } from 'vitest';
import { precedes, ReadyHeap } from '../../native-free/heap.js';

function columns(rows: number) {
  return {
    priority: new Int32Array(rows),
    runAt: new Float64Array(rows),
    id: Float64Array.from({ length: rows }, (_, row) => 1000 + row),
    position: new Int32Array(rows),
  };
}

const rowsMax = 120;
const few = fc.integer({ min: -2, max: 2 });
const keys = fc.record({
  priority: fc.oneof(few, fc.constantFrom(-(2 ** 31), 2 ** 31 - 1)),
  runAt: fc.oneof(few, fc.constantFrom(0, 1_764_000_000_000, 2 ** 53)),
});

describe('ReadyHeap', () => {
  it('hands out, in every history, the row that a sort puts first', () => {
    const operation = fc.oneof(
      { weight: 50, arbitrary: fc.record({ kind: fc.constant('push' as const), keys }) },
      { weight: 30, arbitrary: fc.record({ kind: fc.constant('pop' as const) }) },
      { weight: 20, arbitrary: fc.record({ kind: fc.constant('remove' as const), nth: fc.nat() }) },
      { weight: 1, arbitrary: fc.record({ kind: fc.constant('drain' as const) }) },
    );
    fc.assert(
      fc.property(
        fc.array(operation, { maxLength: rowsMax, size: 'max' }),
        fc.infiniteStream(fc.nat()),
        (operations, order) => {
          const table = columns(rowsMax);
          const heap = new ReadyHeap(table);
          const free = Array.from({ length: rowsMax }, (_, row) => row);
          const rows: number[] = [];
          const compare = (a: number, b: number) =>
            table.priority[a] - table.priority[b] || table.runAt[a] - table.runAt[b] || table.id[a] - table.id[b];
          const pop = () => {
            rows.sort(compare);
            const expected = rows.length === 0 ? -1 : rows[0];
            expect(heap.peek()).toBe(expected);
            expect(heap.pop()).toBe(expected);
            if (expected >= 0) free.push(rows.shift()!);
          };
          for (const op of operations) {
            if (op.kind === 'push') {
              // Any free row, so that ids do not rise with the order of pushing.
              const [row] = free.splice(order.next().value % free.length, 1);
              table.priority[row] = op.keys.priority;
              table.runAt[row] = op.keys.runAt;
              heap.push(row);
              rows.push(row);
            } else if (op.kind === 'pop') {
              pop();
            } else if (op.kind === 'remove' && rows.length > 0) {
              const [row] = rows.splice(op.nth % rows.length, 1);
              heap.remove(row);
              free.push(row);
            } else if (op.kind === 'drain') {
              while (rows.length > 0) pop();
            }
            expect(heap.size).toBe(rows.length);
            const positions = rows.map((row) => table.position[row]).sort((a, b) => a - b);
            expect(positions).toEqual(rows.map((_, i) => i + 1));
            for (const row of free) if (table.position[row] !== 0) expect.fail(`row ${row} is out but has a position`);
          }
          while (rows.length > 0) pop();
          pop();
        },
      ),
      { numRuns: 500 },
    );
  });

  it('agrees with flatqueue where a single key decides', () => {
    fc.assert(
      fc.property(fc.uniqueArray(fc.integer(), { maxLength: 1000, size: 'max' }), fc.boolean(), (values, byRunAt) => {
        const table = columns(values.length);
        const heap = new ReadyHeap(table);
        const queue = new FlatQueue<number>();
        for (const [row, value] of values.entries()) {
          (byRunAt ? table.runAt : table.priority)[row] = value;
          heap.push(row);
          queue.push(row, value);
          if (value % 3 === 0) expect(heap.pop()).toBe(queue.pop());
        }
        while (queue.length > 0) expect(heap.pop()).toBe(queue.pop());
        expect(heap.pop()).toBe(-1);
      }),
      { numRuns: 50 },
    );
  });

  it('removes a row whose gap is filled from another branch, upwards as well as downwards', () => {
    // Root 0; its first child is large with large children, its second small with small children.
    const table = columns(12);
    const heap = new ReadyHeap(table);
    for (const [row, priority] of [0, 100, 10, 20, 30, 101, 102, 103, 104, 11, 12, 13].entries()) {
      table.priority[row] = priority;
      heap.push(row);
    }
    expect(table.position[5]).toBe(6);
    heap.remove(5); // row 11 (priority 13) moves from below 10 to below 100, and must rise
    const priorities = Array.from({ length: heap.size }, () => table.priority[heap.pop()]);
    expect(priorities).toEqual([...priorities].sort((a, b) => a - b));
  });

  it.each([5, 6, 7, 12, 13, 14, 27, 28, 55])(
    'keeps its order when it grows past %d rows and shrinks again',
    (count) => {
      const table = columns(count + 1);
      const heap = new ReadyHeap(table);
      for (let round = 0; round < 3; round++) {
        for (let row = count; row >= 0; row--) heap.push(row);
        for (let row = 0; row <= count; row++) expect(heap.pop()).toBe(row);
      }
      expect(heap.size).toBe(0);
    },
  );

  it('keeps the storage of two heaps over the same columns apart', () => {
    const table = columns(100);
    const heaps = [new ReadyHeap(table), new ReadyHeap(table)];
    expect(heaps[0].pop()).toBe(-1);
    for (let row = 99; row >= 0; row--) heaps[row % 2].push(row);
    expect(heaps.map((heap) => heap.peek())).toEqual([0, 1]);
    expect(new ReadyHeap(table).size).toBe(0);
    expect(() => heaps[0].remove(1)).toThrow('in this heap');
    expect(() => heaps[0].push(1)).toThrow('from no heap');
    for (let row = 0; row < 100; row++) expect(heaps[row % 2].pop()).toBe(row);
    expect(() => heaps[0].remove(0)).toThrow('in this heap');
  });

  it('orders by priority, then by time, then by id', () => {
    const table = columns(2);
    expect([precedes(table, 0, 1), precedes(table, 1, 0), precedes(table, 0, 0)]).toEqual([true, false, false]);
    table.runAt.set([2, 1]);
    expect(precedes(table, 0, 1)).toBe(false);
    table.priority.set([-1, 0]);
    expect(precedes(table, 0, 1)).toBe(true);
  });
});
