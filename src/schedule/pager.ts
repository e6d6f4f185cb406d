/**
 * Where the bytes of jobs are: in the arena, or, when that holds as much as it may, their payloads in the log alone. A
 * payload comes back when its job is offered, so memory is bounded by a cap and the backlog by the disk. A body without
 * its payload keeps everything in front of it (limits, attributes, key), under the mark PAGED_OUT. Scheduler thread only.
 *
 * G1  A payload leaves the arena only while nobody but this thread can want it (the row is ready, delayed, dead or done),
 *     and only if the log holds the job: a job of level `memory` stays.
 * G2  What is read back is checked, identity and checksum. If that fails the log is not what it was: poison.
 * G3  A row's position is always readable: compaction removes a segment when no row points into it (X3 in compactor.ts).
 * G4  Offering waits for room, but never with nothing offered: what is in flight is what makes room.
 */
import { ARENA_UNIT_BYTES, type Arena } from '../../native-free/arena.js';
import { assert } from '../../native-free/assert.js';
import type { Shared } from '../../native-free/layout.js';
import * as record from '../../native-free/record.js';
import { BODY, type Memory, RecordType } from '../../native-free/record.js';
import type { LogReader } from '../log/reader.js';
import type { JobTable } from './job-table.js';
import { State } from './transitions.js';

/** A smaller payload is not worth it. */
const PAGED_BYTES_MIN = 128;
const ROWS_A_STEP = 2048;

/** A body in some memory: `offset` is where its record begins or would begin. */
export interface Body {
  readonly memory: Memory;
  readonly offset: number;
  readonly bytes: number;
}

export class Pager {
  /** Rows whose payload is in the log alone. */
  out = 0;
  readonly #shared: Shared;
  readonly #arena: Arena;
  readonly #table: JobTable;
  readonly #reader: LogReader;
  /** With more than this in the arena payloads leave it; with more than that they wait for room to come back. */
  readonly #high: number;
  readonly #full: number;
  /** The row that is looked at next, and how many in a row had nothing to give. */
  #hand = 1;
  #fruitless = 0;

  constructor(shared: Shared, arena: Arena, table: JobTable, reader: LogReader, capBytes: number) {
    this.#shared = shared;
    this.#arena = arena;
    this.#table = table;
    this.#reader = reader;
    this.#high = Math.floor(capBytes * 0.75);
    this.#full = Math.floor(capBytes * 0.875);
  }

  /** Gives a row its body: a copy of `bytes` from `offset + BODY`, with or without the payload at their end. */
  store(row: number, memory: Memory, offset: number, bytes: number, position: number): void {
    const size = record.sizeOf(memory, offset);
    const leaves = position > 0 && size >= PAGED_BYTES_MIN && this.#arena.usedBytes + bytes > this.#high;
    this.#put(row, memory, offset, leaves ? bytes - size : bytes);
    if (leaves) this.#markOut(row);
  }

  /** Gives a row's block back. */
  drop(row: number): void {
    const { ref, bytes } = this.#shared;
    if (this.isOut(row)) this.out--;
    this.#arena.free(ref[row]!, bytes[row]!);
    ref[row] = 0;
  }

  isOut(row: number): boolean {
    return this.out > 0 && record.isPagedOut(this.#shared.arena, this.#offsetOf(row));
  }

  /** Bytes of a row's body, wherever they are. */
  bytesOf(row: number): number {
    const kept = this.#shared.bytes[row]!;
    return this.isOut(row) ? kept + record.sizeOf(this.#shared.arena, this.#offsetOf(row)) : kept;
  }

  /** A row's whole body; from the log it is good until the next call. Throws as `LogReader.read`. */
  body(row: number): Body {
    if (!this.isOut(row)) {
      return { memory: this.#shared.arena, offset: this.#offsetOf(row), bytes: this.#shared.bytes[row]! };
    }
    const bytes = this.bytesOf(row);
    const offset = this.#reader.read(this.#shared.position[row]!, this.#shared.id[row]!);
    const { memory } = this.#reader;
    const end = record.typeOf(memory, offset) === RecordType.IMAGE ? record.bodyEnd(memory, offset) : -1;
    const found = (end < 0 ? offset + record.bytesOf(memory, offset) : end) - offset - BODY;
    assert(found === bytes, 'the log holds the body that was put there');
    return { memory, offset, bytes };
  }

  /** Brings a row's payload into the arena. False: no room now. `mayWait`: others are in flight (G4). Throws as `body`. */
  tryBringIn(row: number, mayWait: boolean): boolean {
    if (!this.isOut(row)) return true;
    if (mayWait && this.#arena.usedBytes + this.bytesOf(row) > this.#full) return false;
    const { memory, offset, bytes } = this.body(row);
    const { ref, bytes: kept } = this.#shared;
    const [headRef, headBytes] = [ref[row]!, kept[row]!];
    if (!this.#tryPut(row, memory, offset, bytes)) return false;
    this.#arena.free(headRef, headBytes);
    this.out--;
    return true;
  }

  /** Lets payloads leave while the arena holds more than it should. Looks at a bounded number of rows; returns 0 if idle. */
  relieve(): number {
    const { high } = this.#table;
    if (this.#arena.usedBytes <= this.#high) {
      this.#fruitless = 0;
      return 0;
    }
    // A whole round for nothing: until the arena has been below the mark again, only new rows could give anything.
    if (this.#fruitless >= high) return 0;
    for (let looked = 0; looked < ROWS_A_STEP && this.#fruitless < high; looked++) {
      if (this.#arena.usedBytes <= this.#high) break;
      if (this.#hand >= high) this.#hand = 1;
      this.#fruitless = this.#tryLetGo(this.#hand++) ? 0 : this.#fruitless + 1;
    }
    return 1;
  }

  #tryLetGo(row: number): boolean {
    const { ref, bytes, position, arena } = this.#shared;
    const state = this.#table.state(row);
    if (state !== State.READY && state !== State.DELAYED && state !== State.DEAD && state !== State.DONE) return false;
    const offset = this.#offsetOf(row);
    const size = record.sizeOf(arena, offset);
    if (position[row]! === 0 || size < PAGED_BYTES_MIN || this.isOut(row)) return false;
    const [wholeRef, wholeBytes] = [ref[row]!, bytes[row]!];
    if (!this.#tryPut(row, arena, offset, wholeBytes - size)) return false;
    this.#arena.free(wholeRef, wholeBytes);
    this.#markOut(row);
    return true;
  }

  #markOut(row: number): void {
    record.markPagedOut(this.#shared.arena, this.#offsetOf(row));
    this.out++;
  }

  #put(row: number, memory: Memory, offset: number, bytes: number): void {
    assert(this.#tryPut(row, memory, offset, bytes), 'the arena is full');
  }

  #tryPut(row: number, memory: Memory, offset: number, bytes: number): boolean {
    const ref = this.#arena.alloc(bytes);
    if (ref <= 0) return false;
    copyBody(memory, offset + BODY, this.#shared.arena, ref * ARENA_UNIT_BYTES, bytes);
    this.#shared.ref[row] = ref;
    this.#shared.bytes[row] = bytes;
    return true;
  }

  /** Where a record over the row's body would begin. */
  #offsetOf(row: number): number {
    return this.#shared.ref[row]! * ARENA_UNIT_BYTES - BODY;
  }
}

/** Copies a body to its arena block, which starts at a multiple of 16 as the body does at a multiple of 8. */
function copyBody(from: Memory, fromByte: number, to: Memory, toByte: number, bytes: number): void {
  if (bytes <= 512) {
    const source = from.i32;
    const target = to.i32;
    const first = fromByte >>> 2;
    const at = toByte / 4;
    const words = (bytes + 3) >>> 2;
    for (let word = 0; word < words; word++) target[at + word] = source[first + word]!;
  } else {
    to.u8.set(from.u8.subarray(fromByte, fromByte + bytes), toByte);
  }
}
