/**
 * A disk for tests whose power can be cut: what a broker wrote and did not flush is gone in the copy that `crash` makes.
 */
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { StorageModule } from '../log/storage.js';
import { type CrashDiskData, locked, NAMELESS } from './crash-disk-storage.js';

export interface CrashDisk {
  /** For `open(dir, { storage })`, with the directory that the disk was made for. */
  readonly storage: StorageModule;
  /**
   * What would be in the directory if the power were cut now: a new directory, the caller's to remove. May be called
   * any number of times while the broker works; the broker does not notice.
   */
  crash(): string;
}

/** Makes a disk for one directory, which need not be there yet. */
export function crashDisk(dir: string): CrashDisk {
  const mirror = mkdtempSync(join(tmpdir(), 'millrace-mirror-'));
  if (existsSync(dir)) cpSync(dir, mirror, { recursive: true });
  mkdirSync(join(mirror, NAMELESS));
  const data: CrashDiskData = { mirror, lock: new SharedArrayBuffer(4) };
  return {
    storage: { module: new URL('./crash-disk-storage.js', import.meta.url), data },
    crash() {
      const copy = mkdtempSync(join(tmpdir(), 'millrace-crashed-'));
      locked(data.lock, () => {
        for (const name of readdirSync(mirror)) {
          if (name !== NAMELESS) cpSync(join(mirror, name), join(copy, name));
        }
      });
      return copy;
    },
  };
}
