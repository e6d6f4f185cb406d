/**
 * A disk in memory behind the storage door, for tests. It keeps what a running process sees (live) apart from what a
 * power cut leaves (durable), and records every operation in order.
 *
 * 1. A write changes live bytes only; `sync` makes that file's bytes durable, `syncDirectory` its names.
 * 2. Before each operation `fault` is asked: it may throw (the operation fails), stop the disk, or cut a write short.
 * 3. `crash` gives a new disk as a machine would find it after power came back: by default only what is durable, or for
 *    each 512-byte sector that is not, whatever `sector` chooses.
 */
import { basename, dirname, posix } from 'node:path';
import type { OpenMode, Storage, StorageFile } from '../../src/log/storage.js';

export const SECTOR_BYTES = 512;

export interface Operation {
  readonly index: number;
  readonly kind: 'create' | 'open' | 'write' | 'sync' | 'truncate' | 'rename' | 'remove' | 'syncDirectory';
  /** Base name; of the directory for syncDirectory. */
  readonly name: string;
  readonly position?: number;
  readonly bytes?: number;
  /** How many buffers a write had. */
  readonly buffers?: number;
}

/** What a faulty disk does to one operation: nothing, or write only so many bytes. It may also throw. */
export type Fault = ((operation: Operation) => number | undefined) | ((operation: Operation) => void);

export type Sector = 'durable' | 'live' | 'zero' | 'ones' | 'garbage';

export class DiskStopped extends Error {
  override readonly name = 'DiskStopped';
}

export function errno(code: string): Error {
  return Object.assign(new Error(`${code}: simulated`), { code });
}

class Inode {
  live = new Uint8Array(0);
  durable = new Uint8Array(0);
}

export class MemoryStorage implements Storage {
  readonly operations: Operation[] = [];
  fault: Fault | undefined;
  /** Bytes that all files together may have. */
  capacity = Infinity;
  /** The largest `read` so far, and the open files. */
  largestRead = 0;
  openFiles = 0;
  #names = new Map<string, Inode>();
  #durableNames = new Map<string, Inode>();
  #directories = new Set<string>();

  /** The n-th operation from now (1 = the next one) and everything after it does not happen. */
  stopAt(n: number): void {
    const last = this.operations.length + n;
    this.fault = (operation) => {
      if (operation.index >= last - 1) throw new DiskStopped(`stopped at operation ${n}: ${operation.kind}`);
    };
  }

  crash(
    sector: (name: string, index: number) => Sector = () => 'durable',
    names: 'durable' | 'live' | ((path: string) => 'durable' | 'live') = 'durable',
  ): MemoryStorage {
    const after = new MemoryStorage();
    after.#directories = new Set(this.#directories);
    for (const path of new Set([...this.#durableNames.keys(), ...this.#names.keys()])) {
      const which = typeof names === 'function' ? names(path) : names;
      const inode = (which === 'durable' ? this.#durableNames : this.#names).get(path);
      if (inode === undefined) continue;
      const bytes = torn(inode, (index) => sector(basename(path), index));
      const copy = new Inode();
      copy.live = bytes.slice();
      copy.durable = bytes.slice();
      after.#names.set(path, copy);
      after.#durableNames.set(path, copy);
    }
    return after;
  }

  /** The same bytes, all durable: to start several tests from. */
  clone(): MemoryStorage {
    return this.crash(() => 'live', 'live');
  }

  /** What the next process finds when this one died: the same live bytes, no more durable than they were. */
  restarted(): MemoryStorage {
    const after = new MemoryStorage();
    after.#directories = new Set(this.#directories);
    const copies = new Map<Inode, Inode>();
    const copyOf = (inode: Inode): Inode => {
      const copy = copies.get(inode) ?? new Inode();
      copies.set(inode, copy);
      copy.live = inode.live.slice();
      copy.durable = inode.durable.slice();
      return copy;
    };
    for (const [path, inode] of this.#names) after.#names.set(path, copyOf(inode));
    for (const [path, inode] of this.#durableNames) after.#durableNames.set(path, copyOf(inode));
    return after;
  }

  bytes(path: string): Uint8Array {
    return this.#inode(path).live.slice();
  }

  durableBytes(path: string): Uint8Array {
    return this.#inode(path).durable.slice();
  }

  has(path: string): boolean {
    return this.#names.has(posix.normalize(path));
  }

  /** Puts a file there, durably, without an operation. */
  put(path: string, bytes: Uint8Array): void {
    const inode = new Inode();
    inode.live = bytes.slice();
    inode.durable = bytes.slice();
    this.#names.set(posix.normalize(path), inode);
    this.#durableNames.set(posix.normalize(path), inode);
  }

  drop(path: string): void {
    this.#names.delete(posix.normalize(path));
    this.#durableNames.delete(posix.normalize(path));
  }

  /** Every live byte, to compare. */
  snapshot(): Record<string, string> {
    return Object.fromEntries(
      [...this.#names].sort().map(([path, { live }]) => [path, Buffer.from(live).toString('base64')]),
    );
  }

  ensureDirectory(dir: string): void {
    this.#directories.add(posix.normalize(dir));
  }

  list(dir: string): string[] {
    const at = posix.normalize(dir);
    return [...this.#names.keys()].filter((path) => dirname(path) === at).map((path) => basename(path));
  }

  open(path: string, mode: OpenMode): StorageFile {
    const at = posix.normalize(path);
    let inode = this.#names.get(at);
    if (inode === undefined) {
      if (mode === 'read' || mode === 'update') throw errno('ENOENT');
      this.#does('create', at);
      inode = new Inode();
      this.#names.set(at, inode);
    } else {
      if (mode === 'exclusive') throw errno('EEXIST');
      this.#does('open', at);
    }
    this.openFiles++;
    return this.#file(inode, at);
  }

  rename(from: string, to: string): void {
    const inode = this.#inode(from);
    this.#does('rename', from);
    this.#names.delete(posix.normalize(from));
    this.#names.set(posix.normalize(to), inode);
  }

  remove(path: string): void {
    this.#inode(path);
    this.#does('remove', path);
    this.#names.delete(posix.normalize(path));
  }

  syncDirectory(dir: string): void {
    this.#does('syncDirectory', dir);
    const at = posix.normalize(dir);
    for (const path of this.#durableNames.keys()) {
      if (dirname(path) === at && !this.#names.has(path)) this.#durableNames.delete(path);
    }
    for (const [path, inode] of this.#names) if (dirname(path) === at) this.#durableNames.set(path, inode);
  }

  identity(dir: string): string {
    return posix.normalize(dir);
  }

  #file(inode: Inode, path: string): StorageFile {
    const closed = (): never => {
      throw errno('EBADF');
    };
    const file: StorageFile = {
      size: () => inode.live.length,
      read: (into, position) => {
        this.largestRead = Math.max(this.largestRead, into.length);
        const found = inode.live.subarray(position, position + into.length);
        into.set(found);
        return found.length;
      },
      write: (buffers, position) => {
        const bytes = Buffer.concat(buffers);
        const allowed = this.#does('write', path, { position, bytes: bytes.length, buffers: buffers.length });
        const room = this.capacity - this.#used() + inode.live.length - position;
        const written = Math.min(allowed ?? bytes.length, bytes.length, Math.max(0, room));
        if (written === 0 && bytes.length > 0) throw errno('ENOSPC');
        if (position + written > inode.live.length) inode.live = resized(inode.live, position + written);
        inode.live.set(bytes.subarray(0, written), position);
        return written;
      },
      sync: () => {
        this.#does('sync', path);
        inode.durable = inode.live.slice();
      },
      truncate: (bytes) => {
        this.#does('truncate', path, { bytes });
        inode.live = resized(inode.live, bytes);
      },
      close: () => {
        this.openFiles--;
        Object.assign(file, {
          size: closed,
          read: closed,
          write: closed,
          sync: closed,
          truncate: closed,
          close: closed,
        });
      },
    };
    return file;
  }

  #does(kind: Operation['kind'], path: string, facts: Partial<Operation> = {}): number | undefined {
    const operation = { index: this.operations.length, kind, name: basename(path), ...facts };
    this.operations.push(operation);
    return this.fault?.(operation) ?? undefined;
  }

  #inode(path: string): Inode {
    const inode = this.#names.get(posix.normalize(path));
    if (inode === undefined) throw errno('ENOENT');
    return inode;
  }

  #used(): number {
    let bytes = 0;
    for (const { live } of this.#names.values()) bytes += live.length;
    return bytes;
  }
}

function resized(bytes: Uint8Array, length: number): Uint8Array<ArrayBuffer> {
  const copy = new Uint8Array(length);
  copy.set(bytes.subarray(0, length));
  return copy;
}

function byteOf(choice: Sector, at: number): number {
  if (choice === 'garbage') return Math.imul(at + 1, 0x9e3779b1) >>> 24;
  return choice === 'zero' ? 0 : 0xff;
}

/** A file after a power cut: sectors that are the same live and durable stay, the others are as `choose` says. */
function torn(inode: Inode, choose: (index: number) => Sector): Uint8Array {
  const { live, durable } = inode;
  const choices = new Map<number, Sector>();
  let length = durable.length;
  const sectors = Math.ceil(Math.max(live.length, durable.length) / SECTOR_BYTES);
  for (let index = 0; index < sectors; index++) {
    const from = index * SECTOR_BYTES;
    const to = from + SECTOR_BYTES;
    if (Buffer.compare(live.subarray(from, to), durable.subarray(from, to)) === 0) continue;
    const choice = choose(index);
    choices.set(index, choice);
    if (choice === 'durable') continue;
    length = Math.max(length, Math.min(to, Math.max(live.length, from)));
    // A file that was cut and not flushed may come back shorter.
    if (choice === 'live' && live.length < durable.length) length = live.length;
  }
  const result = resized(durable, length);
  for (const [index, choice] of choices) {
    const from = index * SECTOR_BYTES;
    const to = Math.min(from + SECTOR_BYTES, length);
    if (choice === 'durable' || to <= from) continue;
    if (choice === 'live') result.set(live.subarray(from, to), from);
    else {
      // Garbage comes in place of what was being written; bytes that are the same live and durable are not touched.
      for (let at = from; at < to; at++) if (live[at] !== durable[at]) result[at] = byteOf(choice, at);
    }
  }
  return result;
}
