import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ARENA_UNIT_BYTES, Arena } from '../../native-free/arena.js';

const KIB = 1024;
const MIB = 1024 * KIB;
const PAGE_BYTES = 16 * KIB;

interface Block {
  readonly ref: number;
  readonly bytes: number;
  readonly stamp: number;
}

/** The obvious model: live blocks as intervals, each filled with a byte of its own. */
class Intervals {
  readonly live: Block[] = [];
  readonly #bytes: Uint8Array;
  #stamp = 0;
  constructor(
    readonly memory: SharedArrayBuffer,
    readonly arena: Arena,
    readonly from: number,
    readonly to: number,
  ) {
    this.#bytes = new Uint8Array(memory);
  }

  alloc(bytes: number): boolean {
    const ref = this.arena.alloc(bytes);
    if (ref === -1) return false;
    const at = ref * ARENA_UNIT_BYTES;
    if (!Number.isInteger(ref) || ref <= 0 || at < this.from || at + bytes > this.to)
      expect.fail(`block outside: ${ref}`);
    for (const other of this.live) {
      const otherAt = other.ref * ARENA_UNIT_BYTES;
      if (at < otherAt + other.bytes && otherAt < at + bytes) expect.fail(`blocks overlap: ${ref} ${other.ref}`);
    }
    this.#stamp = (this.#stamp + 1) & 255;
    this.#bytes.fill(this.#stamp, at, at + bytes);
    this.live.push({ ref, bytes, stamp: this.#stamp });
    return true;
  }

  free(nth: number): void {
    const [block] = this.live.splice(nth % this.live.length, 1);
    const at = block.ref * ARENA_UNIT_BYTES;
    for (let i = at; i < at + block.bytes; i++)
      if (this.#bytes[i] !== block.stamp) expect.fail(`block ${block.ref} altered`);
    this.arena.free(block.ref, block.bytes);
  }

  freeAll(): void {
    while (this.live.length > 0) this.free(0);
    expect(this.arena.usedBytes).toBe(0);
  }
}

function arenaOf(pages: number, from = 64): { arena: Arena; memory: SharedArrayBuffer } {
  const memory = new SharedArrayBuffer(from + pages * PAGE_BYTES);
  return { memory, arena: new Arena(memory, from, memory.byteLength) };
}

const refsUntilFull = (arena: Arena, bytes: number) => {
  const refs: number[] = [];
  for (let ref = arena.alloc(bytes); ref !== -1; ref = arena.alloc(bytes)) refs.push(ref);
  return refs;
};

describe('Arena', () => {
  it('keeps live blocks apart and unaltered in every history, and is whole again when all are freed', () => {
    const bytes = fc.oneof(
      { weight: 5, arbitrary: fc.integer({ min: 1, max: 300 }) },
      { weight: 3, arbitrary: fc.integer({ min: 1, max: 9_000 }) },
      { weight: 2, arbitrary: fc.integer({ min: 1, max: 70 * KIB }) },
      { weight: 1, arbitrary: fc.integer({ min: 64 * KIB, max: 400 * KIB }) },
    );
    const operation = fc.oneof(
      { weight: 5, arbitrary: fc.record({ bytes, count: fc.integer({ min: 1, max: 40 }) }) },
      { weight: 4, arbitrary: fc.record({ nth: fc.nat(), count: fc.integer({ min: 1, max: 60 }) }) },
    );
    fc.assert(
      fc.property(
        fc.array(operation, { maxLength: 60, size: 'max' }),
        fc.constantFrom(1, 5, 40, 65),
        fc.constantFrom(0, 4096),
        (ops, pages, from) => {
          const memory = new SharedArrayBuffer(from + 64 + pages * PAGE_BYTES);
          const arena = new Arena(memory, from, memory.byteLength);
          expect(arena.capacityBytes).toBe(pages * PAGE_BYTES);
          const model = new Intervals(memory, arena, from, memory.byteLength);
          for (const op of ops) {
            for (let i = 0; i < op.count; i++) {
              if ('bytes' in op) model.alloc(op.bytes);
              else if (model.live.length > 0) model.free(op.nth);
            }
            const liveBytes = model.live.reduce((sum, block) => sum + block.bytes, 0);
            expect(arena.usedBytes).toBeGreaterThanOrEqual(liveBytes);
            expect(arena.usedBytes).toBeLessThanOrEqual(arena.capacityBytes);
          }
          model.freeAll();
          const whole = arena.alloc(arena.capacityBytes);
          expect(whole).toBeGreaterThan(0);
          expect(arena.usedBytes).toBeGreaterThanOrEqual(arena.capacityBytes);
          expect(arena.alloc(1)).toBe(-1);
          arena.free(whole, arena.capacityBytes);
        },
      ),
      { numRuns: 150 },
    );
  });

  it.each([16, 17, 255, 256, 257, 320, 321, 8 * KIB, 8 * KIB + 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 300 * KIB])(
    'refuses a block of %d bytes only when nearly all is taken, and recovers as blocks are freed',
    (bytes) => {
      const { arena } = arenaOf(100);
      const refs = refsUntilFull(arena, bytes);
      expect(new Set(refs).size).toBe(refs.length);
      // A class wastes at most a fifth of its block, the end of a span an eighth; a large block up to a page less a unit.
      const worst =
        bytes > 64 * KIB ? Math.ceil(bytes / PAGE_BYTES) * PAGE_BYTES : Math.ceil(bytes / 16) * 16 * 1.25 * 1.15;
      expect(refs.length).toBeGreaterThanOrEqual(Math.floor(arena.capacityBytes / worst) - 1);
      expect(arena.alloc(bytes)).toBe(-1);
      arena.free(refs[3], bytes);
      expect(arena.alloc(bytes)).toBe(refs[3]);
      expect(arena.alloc(bytes)).toBe(-1);
      for (const ref of refs) arena.free(ref, bytes);
      expect(arena.usedBytes).toBe(0);
      expect(refsUntilFull(arena, bytes).length).toBe(refs.length);
    },
  );

  it('rounds no size up by more than a quarter, up to 64 KiB, nor by more than 16 bytes up to 256', () => {
    const { arena } = arenaOf(64);
    for (let bytes = 1; bytes <= 64 * KIB; bytes += bytes < 2000 ? 1 : 509) {
      const ref = arena.alloc(bytes);
      const extra = arena.usedBytes - bytes;
      expect(extra, `${bytes}`).toBeGreaterThanOrEqual(0);
      expect(extra, `${bytes}`).toBeLessThan(bytes <= 256 ? 16 : bytes * 0.25 + 16);
      arena.free(ref, bytes);
    }
  });

  it('lets one class use the memory that another filled and freed', () => {
    const { arena } = arenaOf(64);
    for (const bytes of [16, 48 * KIB, 100, 200 * KIB, 5000, 16]) {
      const refs = refsUntilFull(arena, bytes);
      expect(refs.length * bytes).toBeGreaterThan(arena.capacityBytes * 0.7);
      // Every second one first, so that runs are joined from both sides.
      for (let i = 0; i < refs.length; i += 2) arena.free(refs[i], bytes);
      for (let i = 1; i < refs.length; i += 2) arena.free(refs[i], bytes);
    }
  });

  it('takes back the empty span that each class keeps, before it refuses', () => {
    const { arena } = arenaOf(16);
    for (const bytes of [16, 32, 48]) arena.free(arena.alloc(bytes), bytes);
    expect(arena.alloc(arena.capacityBytes)).toBeGreaterThan(0);
  });

  it('hands out the block freed last, and touches new memory only when nothing else is left', () => {
    const { arena } = arenaOf(1000);
    const refs = Array.from({ length: 1000 }, () => arena.alloc(100));
    const touched = arena.touchedBytes;
    expect(touched).toBeLessThan(1000 * 112 + 5 * PAGE_BYTES);
    arena.free(refs[10], 100);
    arena.free(refs[500], 100);
    expect(arena.alloc(100)).toBe(refs[500]);
    expect(arena.alloc(100)).toBe(refs[10]);
    for (let round = 0; round < 50; round++) {
      for (const ref of refs) arena.free(ref, 100);
      for (let i = 0; i < refs.length; i++) refs[i] = arena.alloc(100);
    }
    expect(arena.touchedBytes).toBe(touched);
  });

  it('joins freed runs with their neighbours and serves the largest block again', () => {
    const { arena } = arenaOf(1100, 128);
    const largest = 16 * MIB + 64;
    const pieces = [5, 200, 6, 300, 7, 20, 400].map((pages) => pages * PAGE_BYTES);
    for (const order of [
      [0, 1, 2, 3, 4, 5, 6],
      [6, 5, 4, 3, 2, 1, 0],
      [1, 3, 5, 0, 2, 4, 6],
      [3, 6, 0, 2, 1, 5, 4],
    ]) {
      const refs = pieces.map((bytes) => arena.alloc(bytes));
      expect(Math.min(...refs)).toBeGreaterThan(0);
      for (const i of order) arena.free(refs[i], pieces[i]);
      const ref = arena.alloc(largest);
      expect(ref).toBe(128 / ARENA_UNIT_BYTES);
      expect(arena.alloc(largest)).toBe(-1);
      arena.free(ref, largest);
    }
    expect(arena.usedBytes).toBe(0);
  });

  it('reaches past 8 GiB, where neither a byte offset nor the index of a word fits a signed integer', () => {
    const memory = new SharedArrayBuffer(8.5 * 1024 * MIB);
    const arena = new Arena(memory, 64, memory.byteLength);
    const large: number[] = [];
    while (large.length < 8.25 * 64) large.push(arena.alloc(16 * MIB)); // untouched, so it costs nothing
    const refs = Array.from({ length: 100 }, () => arena.alloc(1000));
    const bytesOf = (ref: number) => new Uint8Array(memory, ref * ARENA_UNIT_BYTES, 1000);
    for (const [i, ref] of refs.entries()) bytesOf(ref).fill(i);
    expect(refs[0] * ARENA_UNIT_BYTES).toBeGreaterThan(2 ** 33);
    for (const [i, ref] of refs.entries()) expect(bytesOf(ref).every((byte) => byte === i)).toBe(true);
    for (const ref of refs) arena.free(ref, 1000);
    const again = arena.alloc(1000);
    expect(refs).toContain(again);
    arena.free(again, 1000);
    for (const ref of large) arena.free(ref, 16 * MIB);
    expect(arena.alloc(8 * 1024 * MIB)).toBe(4);
  });

  it('refuses what no owner of a block would do', () => {
    const { arena } = arenaOf(40);
    const small = arena.alloc(40);
    const other = arena.alloc(40);
    const large = arena.alloc(100 * KIB);
    expect(() => arena.free(small, 100)).toThrow('size it was allocated with');
    expect(() => arena.free(small + 1, 40)).toThrow('a block of its span');
    expect(() => arena.free(small + 3 * 100, 40)).toThrow('a block of its span');
    expect(() => arena.free(large, 200 * KIB)).toThrow('size it was allocated with');
    expect(() => arena.free(large + 6 * 1024, 100 * KIB)).toThrow('start of its block');
    for (const outside of [0, 1, 3, 2 ** 30, -5, large + 7 * 1024])
      expect(() => arena.free(outside, 40)).toThrow('lies in a span');
    arena.free(small, 40);
    expect(() => arena.free(small, 40)).toThrow('freed once');
    arena.free(other, 40);
    expect(() => arena.free(small, 40)).toThrow('freed once');
    expect(() => arena.alloc(-1)).toThrow('size of a block');
    expect(() => arena.alloc(Number.NaN)).toThrow('size of a block');
  });

  it('does not take a payload that looks like a freed block for one', () => {
    const { arena, memory } = arenaOf(8);
    const words = new Int32Array(memory);
    const [other, a] = [arena.alloc(40), arena.alloc(40)];
    arena.free(other, 40);
    arena.free(a, 40);
    const mark = words[a * 4 + 1];
    expect(arena.alloc(40)).toBe(a);
    words[a * 4 + 1] = mark;
    arena.free(a, 40);
    expect(arena.usedBytes).toBe(0);
  });

  it('hands out no block with the mark of a freed one, whichever class the memory served before', () => {
    const { arena, memory } = arenaOf(16);
    const words = new Int32Array(memory);
    for (const bytes of [16, 32, 48, 16]) {
      const refs = refsUntilFull(arena, bytes);
      for (const ref of refs) if (words[ref * 4 + 1] !== 0) expect.fail(`block ${ref} is marked`);
      for (const ref of refs) arena.free(ref, bytes);
    }
  });

  it('stops when somebody wrote into a freed block, rather than handing out memory twice', () => {
    const { arena, memory } = arenaOf(40);
    const a = arena.alloc(40);
    const elsewhere = arena.alloc(5000);
    arena.alloc(40);
    arena.free(a, 40);
    new Int32Array(memory)[a * 4] = elsewhere;
    expect(() => arena.alloc(40)).toThrow('stays in the span');
  });

  it('gives an empty block a place, and has no room in a region below a page', () => {
    const { arena } = arenaOf(4);
    expect(arena.alloc(0)).not.toBe(arena.alloc(0));
    for (const bytes of [0, PAGE_BYTES - 1]) {
      const memory = new SharedArrayBuffer(64 + bytes);
      const tiny = new Arena(memory, 64, memory.byteLength);
      expect([tiny.capacityBytes, tiny.alloc(1), tiny.alloc(100 * KIB)]).toEqual([0, -1, -1]);
    }
    const memory = new SharedArrayBuffer(64 + PAGE_BYTES);
    expect(new Arena(memory, 64, memory.byteLength).alloc(1)).toBe(4);
    expect(() => new Arena(memory, 65, memory.byteLength)).toThrow('multiple of 64');
    expect(() => new Arena(memory, 64, memory.byteLength + 1)).toThrow('inside its memory');
  });
});
