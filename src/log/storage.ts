/**
 * Bytes on disk, the only door to them: thirteen small synchronous calls and their node:fs implementation.
 * Called by the log writer, recovery, the lock and the tools, each on its own thread; tests put a disk in memory here
 * that keeps live and durable bytes apart.
 *
 * D1  Every read and write names its position; no file has a cursor.
 * D2  A short write is a value, not an error: the caller decides what it means.
 * D3  Errors are Node's own, with their errno name in `code`; nothing is tried again here.
 * D4  Files that are created get mode 0600 and directories 0700 whatever the umask; a symbolic link, or anything else
 *     that is not a plain file, is refused where a file is expected.
 */
import * as fs from 'node:fs';
import { dirname, resolve } from 'node:path';

/** read: must exist. update: must exist, writable. create: made if it is not there. exclusive: must not exist. */
export type OpenMode = 'read' | 'update' | 'create' | 'exclusive';

export interface StorageFile {
  /** Bytes in the file now. */
  size(): number;
  /** Fills `into` from `position`; returns how many bytes there were, less than its length only at the file's end. */
  read(into: Uint8Array, position: number): number;
  /** Writes the buffers one behind the other by one system call. Returns the bytes written: may be short (D2). */
  write(buffers: readonly Uint8Array[], position: number): number;
  /** Returns when every byte written is durable (fdatasync). */
  sync(): void;
  truncate(bytes: number): void;
  close(): void;
}

export interface Storage {
  /** Makes the directory, and those above it, where missing; what it made is durable when it returns. */
  ensureDirectory(dir: string): void;
  /** The names in a directory, in no order. */
  list(dir: string): string[];
  open(path: string, mode: OpenMode): StorageFile;
  rename(from: string, to: string): void;
  remove(path: string): void;
  /** Makes creations, renames and removals in a directory durable. */
  syncDirectory(dir: string): void;
  /** The same text for the same directory by whatever path, and for no other: device and inode. */
  identity(dir: string): string;
}

/** Another disk, for tests and benches: a module whose default export makes a Storage out of `data`, in each thread. */
export interface StorageModule {
  /** A file URL or path. */
  readonly module: URL | string;
  /** Structured-cloneable. */
  readonly data?: unknown;
}

/** The storage that an option names; the disk when it names none. */
export async function storageOf(given: StorageModule | undefined): Promise<Storage> {
  if (given === undefined) return new DiskStorage();
  const { default: make } = (await import(String(given.module))) as { default: (data: unknown) => Storage };
  return make(given.data);
}

/** The errno name of a failed storage call; Node says UNKNOWN for those it has no name for. */
export function errnoOf(error: unknown): string {
  const code = error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
  return typeof code === 'string' ? code : 'UNKNOWN';
}

const { O_RDONLY, O_RDWR, O_CREAT, O_EXCL } = fs.constants;
/** Windows has no such flag, and needs a privilege to make a symbolic link. */
const O_NOFOLLOW = fs.constants.O_NOFOLLOW ?? 0;
const FILE_MODE = 0o600;
const DIRECTORY_MODE = 0o700;

export class DiskStorage implements Storage {
  ensureDirectory(dir: string): void {
    const path = resolve(dir);
    const made = fs.mkdirSync(path, { recursive: true, mode: DIRECTORY_MODE });
    if (made === undefined) return;
    fs.chmodSync(path, DIRECTORY_MODE);
    for (let at = path; ; at = dirname(at)) {
      this.syncDirectory(dirname(at));
      if (at === made || at === dirname(at)) return;
    }
  }

  list(dir: string): string[] {
    return fs.readdirSync(dir);
  }

  open(path: string, mode: OpenMode): StorageFile {
    if (mode === 'read') return DiskFile.over(fs.openSync(path, O_RDONLY | O_NOFOLLOW), path);
    if (mode === 'update') return DiskFile.over(fs.openSync(path, O_RDWR | O_NOFOLLOW), path);
    try {
      const fd = fs.openSync(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, FILE_MODE);
      fs.fchmodSync(fd, FILE_MODE);
      return DiskFile.over(fd, path);
    } catch (error) {
      if (mode === 'exclusive' || errnoOf(error) !== 'EEXIST') throw error;
      return this.open(path, 'update');
    }
  }

  rename(from: string, to: string): void {
    fs.renameSync(from, to);
  }

  remove(path: string): void {
    fs.unlinkSync(path);
  }

  syncDirectory(dir: string): void {
    // Windows cannot open a directory to flush it; NTFS journals its names.
    if (process.platform === 'win32') return;
    const fd = fs.openSync(dir, O_RDONLY);
    try {
      fs.fsyncSync(fd);
    } finally {
      fs.closeSync(fd);
    }
  }

  identity(dir: string): string {
    const { dev, ino } = fs.statSync(dir, { bigint: true });
    return `${dev}-${ino}`;
  }
}

class DiskFile implements StorageFile {
  readonly #fd: number;

  private constructor(fd: number) {
    this.#fd = fd;
  }

  static over(fd: number, path: string): DiskFile {
    if (fs.fstatSync(fd).isFile()) return new DiskFile(fd);
    fs.closeSync(fd);
    throw Object.assign(new Error(`not a plain file: ${path}`), { code: 'EINVAL', path });
  }

  size(): number {
    return fs.fstatSync(this.#fd).size;
  }

  read(into: Uint8Array, position: number): number {
    let read = 0;
    while (read < into.length) {
      const count = fs.readSync(this.#fd, into, read, into.length - read, position + read);
      if (count === 0) break;
      read += count;
    }
    return read;
  }

  write(buffers: readonly Uint8Array[], position: number): number {
    return fs.writevSync(this.#fd, buffers, position);
  }

  sync(): void {
    fs.fdatasyncSync(this.#fd);
  }

  truncate(bytes: number): void {
    fs.ftruncateSync(this.#fd, bytes);
  }

  close(): void {
    fs.closeSync(this.#fd);
  }
}

const O_EXLOCK = 0x20;

/** Opens a file with the kernel's lock on it (macOS, BSD); undefined when somebody has that. Returns the unlocking. */
export function tryLockFile(path: string): (() => void) | undefined {
  try {
    const fd = fs.openSync(path, O_RDWR | O_CREAT | O_NOFOLLOW | fs.constants.O_NONBLOCK | O_EXLOCK, FILE_MODE);
    return () => fs.closeSync(fd);
  } catch (error) {
    if (errnoOf(error) === 'EAGAIN') return undefined;
    throw error;
  }
}
