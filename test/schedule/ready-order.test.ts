import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { allocateShared, Shared } from '../../native-free/layout.js';
import { ReadyOrder } from '../../src/schedule/ready-order.js';

const ROWS = 64;

const shared = new Shared(allocateShared({ ringSlots: 64, rows: ROWS, arenaBytes: 4096 }));

describe('ready order', () => {
  it('gives rows by priority, then run-at, then id, whatever was pushed and removed between', () => {
    const command = fc.oneof(
      fc.record({ do: fc.constant('push' as const), priority: fc.integer({ min: -1, max: 1 }), runAt: fc.nat(3) }),
      fc.record({ do: fc.constant('pop' as const) }),
      fc.record({ do: fc.constant('remove' as const), which: fc.nat() }),
    );
    fc.assert(
      fc.property(fc.array(command, { maxLength: 200 }), (commands) => {
        shared.next.fill(0);
        shared.prev.fill(0);
        const order = new ReadyOrder(shared);
        const model: number[] = [];
        const free = Array.from({ length: ROWS - 1 }, (_, i) => ROWS - 1 - i);
        const before = (a: number, b: number): number =>
          shared.priority[a]! - shared.priority[b]! ||
          shared.runAt[a]! - shared.runAt[b]! ||
          shared.id[a]! - shared.id[b]!;
        let id = 0;
        for (const step of commands) {
          if (step.do === 'push') {
            const row = free.pop();
            if (row === undefined) continue;
            shared.id[row] = ++id;
            shared.priority[row] = step.priority;
            shared.runAt[row] = step.runAt;
            order.push(row);
            model.push(row);
            model.sort(before);
          } else if (step.do === 'pop') {
            const row = order.pop();
            expect(row).toBe(model.shift() ?? 0);
            if (row !== 0) free.push(row);
          } else if (model.length > 0) {
            const [row] = model.splice(step.which % model.length, 1);
            order.remove(row!);
            expect([shared.next[row!], shared.prev[row!]]).toEqual([0, 0]);
            free.push(row!);
          }
          expect(order.size).toBe(model.length);
          expect(order.peek()).toBe(model[0] ?? 0);
        }
        while (model.length > 0) expect(order.pop()).toBe(model.shift());
        expect(order.pop()).toBe(0);
      }),
      { numRuns: 300 },
    );
  });
});
