/**
 * A disk for a broker's threads that fails when it is told (`BrokerOptions.storage`): the real one, behind words of
 * shared memory that say what the next calls on log files do and count what was done.
 */
import { DiskStorage, type OpenMode, type Storage, type StorageFile } from '../../src/log/storage.js';

export const Disk = {
  /** How many of the next flushes fail with EIO. */
  SYNC_FAILS: 0,
  /** How many of the next writes fail with EIO. */
  WRITE_FAILS: 1,
  /** 1: there is no room; a write is short. */
  FULL: 2,
  WRITES: 3,
  SYNCS: 4,
  /** 1: writes wait until it is 0 again and notified. */
  HELD: 5,
  WORDS: 8,
} as const;

function failure(code: string): Error {
  return Object.assign(new Error(`${code}: told to fail`), { code });
}

function tookOne(words: Int32Array, index: number): boolean {
  if (Atomics.load(words, index) === 0) return false;
  Atomics.sub(words, index, 1);
  return true;
}

class FailingFile implements StorageFile {
  readonly #file: StorageFile;
  readonly #words: Int32Array;

  constructor(file: StorageFile, words: Int32Array) {
    this.#file = file;
    this.#words = words;
  }

  size(): number {
    return this.#file.size();
  }

  read(into: Uint8Array, position: number): number {
    return this.#file.read(into, position);
  }

  write(buffers: readonly Uint8Array[], position: number): number {
    Atomics.wait(this.#words, Disk.HELD, 1);
    Atomics.add(this.#words, Disk.WRITES, 1);
    if (tookOne(this.#words, Disk.WRITE_FAILS)) throw failure('EIO');
    if (Atomics.load(this.#words, Disk.FULL) === 0) return this.#file.write(buffers, position);
    const part = buffers[0]!.subarray(0, 16);
    return this.#file.write([part], position);
  }

  sync(): void {
    Atomics.add(this.#words, Disk.SYNCS, 1);
    if (tookOne(this.#words, Disk.SYNC_FAILS)) throw failure('EIO');
    this.#file.sync();
  }

  truncate(bytes: number): void {
    this.#file.truncate(bytes);
  }

  close(): void {
    this.#file.close();
  }
}

class FailingDisk extends DiskStorage implements Storage {
  readonly #words: Int32Array;

  constructor(words: Int32Array) {
    super();
    this.#words = words;
  }

  override open(path: string, mode: OpenMode): StorageFile {
    const file = super.open(path, mode);
    return path.endsWith('.log') ? new FailingFile(file, this.#words) : file;
  }
}

export default function failingDisk(words: SharedArrayBuffer): Storage {
  return new FailingDisk(new Int32Array(words));
}
