/**
 * A window that slides over a file: recovery and the tools read through it, so that a log of any length is checked in
 * a few MiB and no length field decides how much is allocated. One file at a time, one thread.
 *
 * 1. The memory is never larger than the larger of the chunk and the longest stretch that was asked for, and nobody may
 *    ask for more than the file holds.
 * 2. A stretch stays where it is until the next `at`.
 */
import { assert } from '../../native-free/assert.js';
import { type Memory, memoryOver, paddedBytes } from '../../native-free/record.js';
import type { StorageFile } from './storage.js';

export const CHUNK_BYTES = 4 << 20;

export class Window {
  memory: Memory = memoryOver(new ArrayBuffer(0));
  /** Bytes of the file when it was opened. */
  size = 0;
  readonly #chunkBytes: number;
  #file: StorageFile | undefined;
  #start = 0;
  #end = 0;

  constructor(chunkBytes = CHUNK_BYTES) {
    this.#chunkBytes = chunkBytes;
  }

  open(file: StorageFile): void {
    this.#file = file;
    this.size = file.size();
    this.#start = 0;
    this.#end = 0;
  }

  /** Where in `memory` the file's bytes [from, from + bytes) are; a multiple of 32 when `from` is one. */
  at(from: number, bytes: number): number {
    if (from >= this.#start && from + bytes <= this.#end) return from - this.#start;
    assert(from + bytes <= this.size, 'a window was asked for more than the file holds');
    this.#slide(from, bytes);
    return 0;
  }

  #slide(from: number, bytes: number): void {
    const wanted = paddedBytes(Math.min(Math.max(bytes, this.#chunkBytes), this.size - from));
    const old = this.memory.u8;
    if (wanted > old.length) this.memory = memoryOver(new ArrayBuffer(wanted));
    const { u8 } = this.memory;
    const kept = from >= this.#start && from < this.#end ? this.#end - from : 0;
    if (kept > 0) u8.set(old.subarray(from - this.#start, this.#end - this.#start));
    const end = Math.min(this.size, from + u8.length);
    const read = this.#file!.read(u8.subarray(kept, end - from), from + kept);
    if (read < end - from - kept) throw Object.assign(new Error('the file shrank while it was read'), { code: 'EIO' });
    this.#start = from;
    this.#end = end;
  }

  /** True when every byte from `from` to the file's end is zero. */
  isZeroFrom(from: number): boolean {
    for (let at = from; at < this.size; ) {
      const bytes = Math.min(this.size - at, this.#chunkBytes);
      const offset = this.at(at, bytes);
      const { u8 } = this.memory;
      for (let i = offset; i < offset + bytes; i++) if (u8[i] !== 0) return false;
      at += bytes;
    }
    return true;
  }
}
