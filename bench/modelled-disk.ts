/**
 * A disk whose flush takes a given time: the real one, and a wait in `sync`. The default export is what the `storage`
 * option of `open` loads in the broker's threads.
 */
import { DiskStorage, type OpenMode, type Storage, type StorageFile } from '../src/log/storage.js';

export interface ModelledDisk {
  /** Milliseconds of one flush. */
  readonly flushMs: number;
}

const nobody = new Int32Array(new SharedArrayBuffer(4));

/** Waits on this thread to the microsecond: sleeps for whole milliseconds, turns for the rest. */
function pause(ms: number): void {
  const until = performance.now() + ms;
  if (ms > 2) Atomics.wait(nobody, 0, 0, ms - 1);
  while (performance.now() < until);
}

export default function modelled({ flushMs }: ModelledDisk): Storage {
  const disk = new DiskStorage();
  const slow = (file: StorageFile): StorageFile => ({
    size: () => file.size(),
    read: (into, position) => file.read(into, position),
    write: (buffers, position) => file.write(buffers, position),
    sync: () => pause(flushMs),
    truncate: (bytes) => file.truncate(bytes),
    close: () => file.close(),
  });
  return {
    ensureDirectory: (dir) => disk.ensureDirectory(dir),
    list: (dir) => disk.list(dir),
    open: (path: string, mode: OpenMode) => slow(disk.open(path, mode)),
    rename: (from, to) => disk.rename(from, to),
    remove: (path) => disk.remove(path),
    syncDirectory: (dir) => disk.syncDirectory(dir),
    identity: (dir) => disk.identity(dir),
  };
}
