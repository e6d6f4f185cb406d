/**
 * Reads single records of the log back while the log writer goes on writing: for jobs whose payload is not in memory.
 * One thread. Keeps one file open and a piece of it in memory, since jobs mostly come back in the order they went.
 *
 * L1  Nothing is read beyond what the log writer had written when the piece was fetched, so a piece never goes stale.
 * L2  A record counts only if its checksum is right and it is the one that was asked for.
 */
import { bytesOf, idOf, isIntact, type Memory, memoryOver, paddedBytes } from '../../native-free/record.js';
import { MillraceError } from '../errors.js';
import { SEGMENT_HEADER_BYTES, segmentName } from './segment.js';
import type { Storage, StorageFile } from './storage.js';

/** How much is read at once when the next record follows the last. */
const AHEAD_BYTES = 256 * 1024;
const HEADER_BYTES = 32;

/** The segment that holds a position. */
export interface SegmentPlace {
  readonly number: number;
  readonly base: number;
  /** The position behind the last byte that may be read. */
  readonly end: number;
}

export class LogReader {
  memory: Memory = memoryOver(new ArrayBuffer(AHEAD_BYTES));
  readonly #storage: Storage;
  readonly #dir: string;
  readonly #placeOf: (position: number) => SegmentPlace;
  #segment = 0;
  #file: StorageFile | undefined;
  /** The positions that `memory` holds. */
  #from = 0;
  #to = 0;

  constructor(storage: Storage, dir: string, placeOf: (position: number) => SegmentPlace) {
    this.#storage = storage;
    this.#dir = dir;
    this.#placeOf = placeOf;
  }

  /**
   * The offset in `memory` of the record of job `id` at `position`; good until the next call.
   * Throws the storage's error, or ERR_MILLRACE_CORRUPT (file, position).
   */
  read(position: number, id: number): number {
    const place = this.#placeOf(position);
    this.#fetch(place, position, HEADER_BYTES);
    const bytes = paddedBytes(bytesOf(this.memory, position - this.#from));
    if (position + bytes <= place.end) {
      this.#fetch(place, position, bytes);
      const offset = position - this.#from;
      if (idOf(this.memory, offset) === id && isIntact(this.memory, offset)) return offset;
    }
    const file = `${this.#dir}/${segmentName(place.number)}`;
    throw new MillraceError(
      'ERR_MILLRACE_CORRUPT',
      `cannot read job ${id} back: ${file} is damaged at position ${position}`,
      { file, position, reason: 'a record that was intact is not' },
    );
  }

  close(): void {
    this.#file?.close();
    this.#file = undefined;
    this.#segment = 0;
    this.#from = 0;
    this.#to = 0;
  }

  #fetch({ number, base, end }: SegmentPlace, position: number, bytes: number): void {
    if (number !== this.#segment) {
      this.close();
      this.#file = this.#storage.open(`${this.#dir}/${segmentName(number)}`, 'read');
      this.#segment = number;
    }
    if (position >= this.#from && position + bytes <= this.#to) return;
    const follows = position >= this.#from && position - this.#to < AHEAD_BYTES;
    const wanted = Math.min(follows ? Math.max(bytes, AHEAD_BYTES) : bytes, end - position);
    if (wanted > this.memory.u8.length) this.memory = memoryOver(new ArrayBuffer(wanted));
    this.#to = this.#from = position;
    this.#to += this.#file!.read(this.memory.u8.subarray(0, wanted), position - base + SEGMENT_HEADER_BYTES);
    if (this.#to - this.#from < bytes) this.memory.u8.fill(0, this.#to - this.#from, bytes);
  }
}
