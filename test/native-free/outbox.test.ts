import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  allocateShared,
  Cell,
  Owner,
  reservationSlotsMax,
  Shared,
  type Sizes,
  Word,
} from '../../native-free/layout.js';
import { Outbox } from '../../native-free/outbox.js';
import * as record from '../../native-free/record.js';
import { Level, RecordType, SLOT_BYTES } from '../../native-free/record.js';
import { Ring } from '../../native-free/ring.js';

const ACKS_A_RECORD = 512;
const clock = { wallMs: () => 1234 };

interface Left {
  readonly type: number;
  readonly level: number;
  readonly id: number;
  readonly slots: number;
  readonly acks: readonly (readonly number[])[];
}

/** An outbox at a submit ring, and the ring's other end. */
class Bench {
  readonly shared: Shared;
  readonly outbox: Outbox;
  readonly left: Left[] = [];
  /** Slots of each reservation. */
  readonly reservations: number[] = [];
  readonly #follower: Ring;
  #next: number;

  constructor(ringSlots: number) {
    const sizes: Sizes = { ringSlots, rows: 2, arenaBytes: 64 };
    this.shared = new Shared(allocateShared(sizes));
    this.outbox = new Outbox(this.shared, new Ring(this.shared.submitPlace, Owner.FIRST));
    this.#follower = new Ring(this.shared.submitPlace, Owner.WRITER);
    this.#next = this.#follower.head();
  }

  /** Follows at most `max` reservations and frees their slots. */
  follow(max = Infinity): void {
    const memory = this.shared.slots;
    for (let n = 0; n < max; n++) {
      const count = this.#follower.countAt(this.#next);
      if (count === 0) return;
      const from = this.shared.slotOffset(this.#next);
      for (let at = from; at < from + count * SLOT_BYTES; ) {
        expect(record.isIntact(memory, at)).toBe(true);
        const padded = record.paddedBytes(record.bytesOf(memory, at));
        const acks: number[][] = [];
        if (record.typeOf(memory, at) === RecordType.ACK_MANY) {
          expect(record.bytesOf(memory, at)).toBe(record.HEADER_BYTES + 16 * record.rowOf(memory, at));
          for (let i = 0; i < record.rowOf(memory, at); i++) {
            const word = (at + record.HEADER_BYTES + 16 * i) >>> 2;
            acks.push([memory.f64[word >>> 1]!, memory.i32[word + 2]!, memory.i32[word + 3]!]);
          }
        }
        const head = {
          type: record.typeOf(memory, at),
          level: record.levelOf(memory, at),
          id: record.idOf(memory, at),
        };
        this.left.push({ ...head, slots: padded / SLOT_BYTES, acks });
        at += padded;
      }
      this.reservations.push(count);
      this.#follower.release(this.#next, count);
      this.#next = (this.#next + count) | 0;
      this.#follower.releaseTo(this.#next);
    }
  }
}

function cancel(outbox: Outbox, id: number, level: number = Level.FSYNC): void {
  outbox.finish(outbox.appendShort(RecordType.CANCEL, level, id, 1, 2, 3));
}

function retry(outbox: Outbox, id: number, bytes: number): void {
  const offset = outbox.append(RecordType.RETRY, Level.FSYNC, id, 1, 2, 3, 0);
  outbox.payloadBytes(offset, new Uint8Array(bytes));
  outbox.finish(offset);
}

describe('an outbox', () => {
  it('acks in a row share one record, up to 512 and of one level', () => {
    for (const count of [1, 2, ACKS_A_RECORD - 1, ACKS_A_RECORD, ACKS_A_RECORD + 1]) {
      const bench = new Bench(4096);
      for (let i = 0; i < count; i++) bench.outbox.appendAck(2 ** 40 + i, i, 7, Level.FSYNC, clock);
      expect(bench.outbox.trySubmit()).toBe(true);
      bench.follow();
      expect(bench.left.map(({ acks }) => acks.length)).toEqual(count <= 512 ? [count] : [512, count - 512]);
      const acks = bench.left.flatMap((one) => one.acks);
      expect(acks).toEqual(Array.from({ length: count }, (_, i) => [2 ** 40 + i, i, 7]));
    }
    const bench = new Bench(64);
    bench.outbox.appendAck(1, 1, 1, Level.FSYNC, clock);
    bench.outbox.appendAck(2, 2, 1, Level.OS, clock);
    bench.outbox.appendAck(3, 3, 1, Level.OS, clock);
    bench.outbox.trySubmit();
    bench.follow();
    expect(bench.left.map(({ level, acks }) => [level, acks.length])).toEqual([
      [Level.FSYNC, 1],
      [Level.OS, 2],
    ]);
  });

  it('a small ring gets no record that is longer than a reservation may be', () => {
    const bench = new Bench(64);
    for (let i = 1; i <= 200; i++) bench.outbox.appendAck(i, i, 1, Level.FSYNC, clock);
    for (let i = 0; i < 10 && !bench.outbox.trySubmit(); i++) bench.follow(1);
    bench.follow();
    expect(bench.left.map(({ acks }) => acks.length)).toEqual([62, 62, 62, 14]);
    expect(bench.left[0]!.slots).toBe(reservationSlotsMax(bench.shared.sizes));
  });

  it('whatever is appended, in any mixture and by a ring however full, leaves once and in order', () => {
    const step = fc.oneof(
      { weight: 6, arbitrary: fc.record({ do: fc.constant('ack' as const), n: fc.integer({ min: 1, max: 30 }) }) },
      { weight: 3, arbitrary: fc.record({ do: fc.constant('cancel' as const), n: fc.nat({ max: 2 }) }) },
      { weight: 3, arbitrary: fc.record({ do: fc.constant('retry' as const), n: fc.nat({ max: 300 }) }) },
      { weight: 1, arbitrary: fc.record({ do: fc.constant('copy' as const), n: fc.constant(0) }) },
      { weight: 4, arbitrary: fc.record({ do: fc.constant('submit' as const), n: fc.constant(0) }) },
      { weight: 4, arbitrary: fc.record({ do: fc.constant('follow' as const), n: fc.integer({ min: 1, max: 3 }) }) },
    );
    fc.assert(
      fc.property(fc.constantFrom(64, 128), fc.array(step, { maxLength: 60 }), (ringSlots, steps) => {
        const bench = new Bench(ringSlots);
        const { outbox } = bench;
        const appended: number[] = [];
        let id = 0;
        for (const { do: what, n } of steps) {
          if (what === 'ack') {
            for (let i = 0; i < n; i++) {
              outbox.appendAck(++id, id, 1, Level.FSYNC, clock);
              appended.push(id);
            }
          } else if (what === 'cancel') {
            cancel(outbox, ++id, n);
            appended.push(id);
          } else if (what === 'retry') {
            retry(outbox, ++id, n);
            appended.push(id);
          } else if (what === 'copy') {
            const other = new Bench(64);
            cancel(other.outbox, ++id, Level.MEMORY);
            outbox.appendCopy(other.outbox.memory.u8.slice(0, 32), Level.OS);
            appended.push(id);
          } else if (what === 'submit') {
            expect(outbox.trySubmit()).toBe(outbox.waitingBytes === 0);
          } else {
            bench.follow(n);
          }
        }
        for (let i = 0; i < 1000 && !outbox.trySubmit(); i++) bench.follow(1);
        expect(outbox.waitingBytes).toBe(0);
        bench.follow();
        const left = bench.left.flatMap(({ id: one, acks }) => (acks.length > 0 ? acks.map(([ack]) => ack) : [one]));
        expect(left).toEqual(appended);
        for (const slots of bench.reservations) expect(slots).toBeLessThanOrEqual(ringSlots / 2);
      }),
      { numRuns: 100 },
    );
  });

  it('a full ring leaves everything in the outbox, and says how much room the next reservation needs', () => {
    const bench = new Bench(64);
    const { outbox } = bench;
    for (let id = 1; id <= 70; id++) cancel(outbox, id);
    expect(outbox.trySubmit()).toBe(false);
    expect(outbox.waitingBytes).toBe(6 * SLOT_BYTES);
    expect(outbox.firstSlots()).toBe(6);
    expect(outbox.trySubmit()).toBe(false);
    expect(outbox.waitingBytes).toBe(6 * SLOT_BYTES);
    bench.follow(1);
    expect(outbox.trySubmit()).toBe(true);
    bench.follow();
    expect(bench.reservations).toEqual([32, 32, 6]);
    expect(bench.left.map(({ id }) => id)).toEqual(Array.from({ length: 70 }, (_, i) => i + 1));
  });

  it('records do not share a reservation that would be too long for them together', () => {
    const bench = new Bench(64);
    const longest = reservationSlotsMax(bench.shared.sizes);
    retry(bench.outbox, 1, longest * SLOT_BYTES - 40);
    cancel(bench.outbox, 2);
    expect(bench.outbox.firstSlots()).toBe(longest);
    expect(bench.outbox.trySubmit()).toBe(true);
    bench.follow();
    expect(bench.reservations).toEqual([longest, 1]);
  });

  it('an ack that comes while older records wait keeps its place behind them', () => {
    const bench = new Bench(64);
    const { outbox } = bench;
    for (let id = 1; id <= 65; id++) cancel(outbox, id);
    expect(outbox.trySubmit()).toBe(false);
    outbox.appendAck(66, 1, 1, Level.FSYNC, clock);
    // An open ack is closed by a look at what is next, and a later one opens another.
    expect(outbox.firstSlots()).toBe(3);
    outbox.appendAck(67, 1, 1, Level.FSYNC, clock);
    bench.follow();
    expect(outbox.trySubmit()).toBe(true);
    bench.follow();
    expect(bench.left.slice(-3).map(({ id, acks }) => [id, acks.length])).toEqual([
      [65, 0],
      [66, 1],
      [67, 1],
    ]);
  });

  it('wakes the log writer once something has moved, and not otherwise', () => {
    const bench = new Bench(64);
    const { control } = bench.shared;
    control[Word.WRITER_ASLEEP] = 1;
    expect(bench.outbox.trySubmit()).toBe(true);
    expect(control[Word.WRITER_ASLEEP]).toBe(1);
    cancel(bench.outbox, 1);
    expect(bench.outbox.trySubmit()).toBe(true);
    expect(control[Word.WRITER_ASLEEP]).toBe(0);
  });

  it('enqueues that go through it get the ids of their slots', () => {
    const bench = new Bench(64);
    bench.shared.cells[Cell.ID_BASE] = 1000;
    cancel(bench.outbox, 5);
    const offset = bench.outbox.append(RecordType.ENQUEUE, Level.FSYNC, 0, 1, 0, 0, 0);
    bench.outbox.finish(offset);
    bench.outbox.trySubmit();
    bench.follow();
    // The ring's first position is its capacity; the enqueue is one slot behind it.
    expect(bench.left.map(({ id }) => id)).toEqual([5, 1000 + 64 + 1]);
  });
});
