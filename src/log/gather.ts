/**
 * Follows the submit ring and collects the next batch: which reservations it takes and which runs of slot memory go to
 * the file. Log writer thread only; `LogWriter` owns one and commits what it collected.
 *
 * G1  A reservation is never split between batches: its records are all or nothing.
 * G2  Stops at the first reservation that is not published, unless its owner is dead: then it is filled with a hole.
 * G3  Questions, holes and records of level MEMORY take part in the order but not in the log.
 * G4  A run is contiguous in slot memory, which ends a ring's length and one reservation behind its start: a reservation
 *     that crosses the ring's end is one piece, and the next one begins at the wrapped place.
 * Nothing is allocated per record; one view is made per run, and batches of one or two runs are the rule.
 */
import { assert } from '../../native-free/assert.js';
import { load } from '../../native-free/atomics.js';
import { crc32cMix } from '../../native-free/crc32c.js';
import { OwnerState, OwnerWord, type Shared } from '../../native-free/layout.js';
import { Level, lengthWord, memoryOver, RecordType, SLOT_BYTES, SLOT_WORDS } from '../../native-free/record.js';
import type { Ring } from '../../native-free/ring.js';

/**
 * More runs than this are copied together: one system call takes 1024 buffers. Up to there views win or do not matter:
 * one costs 0.12 us, a copy 0.4 us a KiB.
 */
const RUNS_MAX = 1000;
const LENGTH_MASK = 0xffffff;

export interface GatherLimits {
  readonly recordsMax: number;
  readonly bytesMax: number;
}

export class Gather {
  /** The ring position behind the last reservation taken. */
  next: number;
  /** Slots taken, holes included. */
  slots = 0;
  /** Records to be logged, their bytes, and the fold of their CRC words. */
  records = 0;
  bytes = 0;
  recordsCrc = 0;
  /** Is a record among them that must be flushed? */
  flush = false;
  /** No more can be taken before these are committed. */
  full = false;

  readonly #shared: Shared;
  readonly #ring: Ring;
  readonly #limits: GatherLimits;
  /** [from, to) byte offsets in slot memory, two by two. */
  #runs = new Int32Array(2 * RUNS_MAX);
  #runCount = 0;
  #runEnd = -1;
  #packed = memoryOver(new ArrayBuffer(0));

  constructor(shared: Shared, ring: Ring, first: number, limits: GatherLimits) {
    this.#shared = shared;
    this.#ring = ring;
    this.#limits = limits;
    this.next = first;
  }

  /** Takes what is there. May be called again before `clear` to take more. */
  take(): void {
    while (!this.full) {
      const count = this.#ring.countAt(this.next);
      if (count === 0) return;
      if (count < 0) {
        if (!this.#isDead(-count)) return;
        this.#fill(this.next, -count);
        continue;
      }
      const offset = this.#shared.slotOffset(this.next);
      const bytes = count * SLOT_BYTES;
      if (this.records > 0 && (this.bytes + bytes > this.#limits.bytesMax || this.records >= this.#limits.recordsMax)) {
        this.full = true;
        return;
      }
      this.#walk(offset, offset + bytes);
      this.next = (this.next + count) | 0;
      this.slots += count;
    }
  }

  clear(): void {
    this.slots = 0;
    this.records = 0;
    this.bytes = 0;
    this.recordsCrc = 0;
    this.flush = false;
    this.full = false;
    this.#runCount = 0;
    this.#runEnd = -1;
  }

  /** Appends the bytes to be logged to `buffers`, in order. */
  pushRuns(buffers: Uint8Array[]): void {
    const u8 = this.#shared.slots.u8;
    const runs = this.#runs;
    if (this.#runCount <= RUNS_MAX) {
      for (let i = 0; i < this.#runCount; i++) buffers.push(u8.subarray(runs[2 * i], runs[2 * i + 1]));
      return;
    }
    if (this.#packed.u8.length < this.bytes) this.#packed = memoryOver(new ArrayBuffer(this.bytes));
    const from = this.#shared.slots.i32;
    const to = this.#packed.i32;
    let at = 0;
    for (let i = 0; i < this.#runCount; i++) {
      const end = runs[2 * i + 1] >>> 2;
      for (let word = runs[2 * i] >>> 2; word < end; word++) to[at++] = from[word];
    }
    buffers.push(this.#packed.u8.subarray(0, this.bytes));
  }

  /**
   * Marks every record that was to be logged as refused, for the scheduler to skip. Jobs of level MEMORY too: their
   * producers are told by position, as those of the others are.
   */
  refuse(): void {
    const { i32 } = this.#shared.slots;
    this.eachRecord((type, at) => {
      const word = i32[(at + 4) >>> 2]!;
      const isRefused = type === RecordType.ENQUEUE || (type < RecordType.ASK && word >>> 30 < Level.MEMORY);
      if (isRefused) i32[(at + 4) >>> 2] = (word & 0x3fffffff) | (Level.REFUSED << 30);
    });
  }

  /** Calls `visit` for every record that was taken, with its byte offset in slot memory. Not for the hot path. */
  eachRecord(visit: (type: number, at: number) => void): void {
    const { i32 } = this.#shared.slots;
    for (let position = (this.next - this.slots) | 0; position !== this.next; ) {
      const count = this.#ring.countAt(position);
      let at = this.#shared.slotOffset(position);
      const end = at + count * SLOT_BYTES;
      while (at < end) {
        const word = i32[(at + 4) >>> 2]!;
        const type = (word >>> 24) & 0x3f;
        if (type === RecordType.VOID) break;
        visit(type, at);
        at += ((word & LENGTH_MASK) + (SLOT_BYTES - 1)) & ~(SLOT_BYTES - 1);
      }
      position = (position + count) | 0;
    }
  }

  #walk(from: number, end: number): void {
    const { i32 } = this.#shared.slots;
    for (let at = from; at < end; ) {
      const word = i32[(at + 4) >>> 2];
      const padded = ((word & LENGTH_MASK) + (SLOT_BYTES - 1)) & ~(SLOT_BYTES - 1);
      const next = at + padded;
      assert(padded > 0 && next <= end, 'records fill their reservation');
      const type = (word >>> 24) & 0x3f;
      if (type < RecordType.ASK && word >>> 30 < Level.MEMORY) {
        if (word >>> 30 === Level.FSYNC) this.flush = true;
        this.recordsCrc = crc32cMix(this.recordsCrc, i32[at >>> 2]);
        this.records++;
        this.bytes += padded;
        if (at !== this.#runEnd) this.#startRun(at);
        this.#runEnd = next;
        this.#runs[2 * this.#runCount - 1] = next;
      } else if (type === RecordType.VOID) {
        // A hole is one record for the whole reservation (G2): what stands behind its first slot is nobody's.
        return;
      }
      at = next;
    }
  }

  #startRun(at: number): void {
    if (2 * this.#runCount === this.#runs.length) {
      const longer = new Int32Array(2 * this.#runs.length);
      longer.set(this.#runs);
      this.#runs = longer;
    }
    this.#runs[2 * this.#runCount++] = at;
  }

  #isDead(owner: number): boolean {
    const state = load(this.#shared.owners, owner * OwnerWord.WORDS + OwnerWord.STATE);
    return state === OwnerState.DEAD || state === OwnerState.DRAINED;
  }

  #fill(position: number, owner: number): void {
    // The stamp was read before the death was known: it may have been published in between.
    if (this.#ring.repair(position, owner) === 0) return;
    const { i32 } = this.#shared.slots;
    const word = this.#shared.slotOffset(position) >>> 2;
    i32.fill(0, word, word + SLOT_WORDS);
    i32[word + 1] = lengthWord(SLOT_BYTES, RecordType.VOID, Level.MEMORY);
    this.#ring.publish(position);
  }
}
