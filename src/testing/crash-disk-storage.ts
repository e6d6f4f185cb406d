/**
 * The storage behind `crashDisk`, one instance in each of the broker's threads. Everything is done in the directory as
 * usual; beside it, `mirror` holds what would be there after a power cut now.
 *
 * M1  A file's mirror changes when the file is flushed, and not before; a name's when its directory is.
 * M2  A new file's mirror has no name at first; its name is linked to it when the directory is flushed.
 * M3  Whoever changes the mirror or copies it holds the lock, so a copy is of one moment.
 */
import * as fs from 'node:fs';
import { basename, join } from 'node:path';
import { DiskStorage, type OpenMode, type Storage, type StorageFile } from '../log/storage.js';

export interface CrashDiskData {
  readonly mirror: string;
  /** One word: 1 = somebody holds the lock. */
  readonly lock: SharedArrayBuffer;
}

/** Where mirrors without a name are, inside `mirror`. */
export const NAMELESS = '.nameless';

let created = 0;

/** Runs `act` under the lock. Spins: whoever holds it copies some bytes between files, and nothing else. */
export function locked<Result>(lock: SharedArrayBuffer, act: () => Result): Result {
  const word = new Int32Array(lock);
  while (Atomics.compareExchange(word, 0, 0, 1) !== 0);
  try {
    return act();
  } finally {
    Atomics.store(word, 0, 0);
  }
}

class CrashFile implements StorageFile {
  readonly #file: StorageFile;
  readonly #mirror: string;
  readonly #lock: SharedArrayBuffer;
  #unflushed: ((fd: number) => void)[] = [];

  constructor(file: StorageFile, mirror: string, lock: SharedArrayBuffer) {
    this.#file = file;
    this.#mirror = mirror;
    this.#lock = lock;
  }

  size(): number {
    return this.#file.size();
  }

  read(into: Uint8Array, position: number): number {
    return this.#file.read(into, position);
  }

  write(buffers: readonly Uint8Array[], position: number): number {
    const written = this.#file.write(buffers, position);
    const bytes = Buffer.concat(buffers).subarray(0, written);
    this.#unflushed.push((fd) => fs.writeSync(fd, bytes, 0, bytes.length, position));
    return written;
  }

  truncate(bytes: number): void {
    this.#file.truncate(bytes);
    this.#unflushed.push((fd) => fs.ftruncateSync(fd, bytes));
  }

  /** Nothing is asked of the disk itself: the power that is cut is this one's. */
  sync(): void {
    const changes = this.#unflushed;
    this.#unflushed = [];
    locked(this.#lock, () => {
      const fd = fs.openSync(this.#mirror, 'r+');
      for (const change of changes) change(fd);
      fs.closeSync(fd);
    });
  }

  close(): void {
    this.#file.close();
  }
}

class CrashStorage extends DiskStorage implements Storage {
  readonly #data: CrashDiskData;
  /** Of files that this thread created: their mirrors. */
  readonly #nameless = new Map<string, string>();
  #names: (() => void)[] = [];

  constructor(data: CrashDiskData) {
    super();
    this.#data = data;
  }

  override open(path: string, mode: OpenMode): StorageFile {
    if (mode === 'read') return super.open(path, mode);
    const isNew = !fs.existsSync(path);
    const file = super.open(path, mode);
    const { mirror, lock } = this.#data;
    const named = join(mirror, basename(path));
    if (isNew) {
      const nameless = join(mirror, NAMELESS, `${process.pid}-${Date.now()}-${created++}-${basename(path)}`);
      fs.writeFileSync(nameless, '');
      this.#nameless.set(named, nameless);
      this.#names.push(() => {
        fs.rmSync(named, { force: true });
        fs.linkSync(nameless, named);
      });
    }
    return new CrashFile(file, this.#nameless.get(named) ?? named, lock);
  }

  override rename(from: string, to: string): void {
    super.rename(from, to);
    const { mirror } = this.#data;
    this.#names.push(() => fs.renameSync(join(mirror, basename(from)), join(mirror, basename(to))));
  }

  override remove(path: string): void {
    super.remove(path);
    const named = join(this.#data.mirror, basename(path));
    this.#nameless.delete(named);
    this.#names.push(() => fs.rmSync(named, { force: true }));
  }

  override syncDirectory(): void {
    const changes = this.#names;
    this.#names = [];
    locked(this.#data.lock, () => {
      for (const change of changes) change();
    });
  }
}

export default function crashStorage(data: CrashDiskData): Storage {
  return new CrashStorage(data);
}
