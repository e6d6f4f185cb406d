/**
 * Every bit counts: a log that was closed in good order, all of it acked, is refused when any one bit of it is another.
 * MILLRACE_FLIPS says how many bits are tried (default 65,536, spread over the log; `all` = each one).
 */
import { expect, it } from 'vitest';
import { Level } from '../../native-free/record.js';
import { useChecksum } from '../../src/log/checksum.js';
import { scan } from '../../src/log/scan.js';
import type { Storage, StorageFile } from '../../src/log/storage.js';
import { MemoryStorage } from './memory-storage.js';
import { DIR, Run } from './run.js';

const LOG_BYTES_MIN = 64 * 1024;

/** A disk that only reads, from byte arrays that the test changes in place. */
class Files implements Storage {
  readonly #files: ReadonlyMap<string, Uint8Array>;

  constructor(files: ReadonlyMap<string, Uint8Array>) {
    this.#files = files;
  }

  list(): string[] {
    return [...this.#files.keys()];
  }

  open(path: string): StorageFile {
    const bytes = this.#files.get(path.slice(DIR.length + 1))!;
    const refused = (): never => {
      throw new Error('nothing is written by looking');
    };
    return {
      size: () => bytes.length,
      read(into, position) {
        const part = bytes.subarray(position, position + into.length);
        into.set(part);
        return part.length;
      },
      write: refused,
      sync: refused,
      truncate: refused,
      close: () => {},
    };
  }

  ensureDirectory = this.#refused;
  rename = this.#refused;
  remove = this.#refused;
  syncDirectory = this.#refused;
  identity = this.#refused;

  #refused(): never {
    throw new Error('nothing is changed by looking');
  }
}

function closedLog(): Map<string, Uint8Array> {
  const disk = new MemoryStorage();
  const run = new Run(disk, { segmentBytes: 16 * 1024 });
  for (let n = 0; n < 200; n++) {
    run.enqueue(
      Array.from({ length: 1 + (n % 3) }, (_, i) => `${n}.${i}`.padEnd((n * 31) % 200, 'x')),
      n % 7 === 0 ? Level.OS : Level.FSYNC,
    );
    if (n % 2 === 0) run.settle();
  }
  run.settle();
  run.close();
  return new Map(disk.list(DIR).map((name) => [name, disk.bytes(`${DIR}/${name}`).slice()]));
}

it('a flipped bit anywhere in what was acked is refused', () => {
  useChecksum({ nativeFree: false });
  const files = closedLog();
  const storage = new Files(files);
  const look = (): { action: string; records: number } => {
    let records = 0;
    const { verdict } = scan(storage, DIR, { record: () => records++ }, { chunkBytes: 32 * 1024 });
    return { action: verdict.action, records };
  };
  const whole = look();
  expect(whole.action).toBe('end');
  const logs = [...files].filter(([name]) => name.endsWith('.log')).map(([, bytes]) => bytes);
  const bits = 8 * logs.reduce((sum, { length }) => sum + length, 0);
  expect(bits).toBeGreaterThanOrEqual(8 * LOG_BYTES_MIN);
  const wanted = process.env.MILLRACE_FLIPS;
  const flips = wanted === 'all' ? bits : Math.min(bits, Number(wanted ?? 65_536));

  const outcomes = { refused: 0, newer: 0, accepted: 0, dropped: 0 };
  // A step that has no divisor in common with the number of bits meets each of them once.
  let step = Math.floor(bits * 0.618) | 1;
  while (gcd(step, bits) !== 1) step += 2;
  for (let flip = 0, bit = 0; flip < flips; flip++, bit = (bit + step) % bits) {
    let byte = bit >>> 3;
    const log = logs.find(({ length }) => {
      if (byte < length) return true;
      byte -= length;
      return false;
    })!;
    log[byte]! ^= 1 << (bit & 7);
    const { action, records } = look();
    log[byte]! ^= 1 << (bit & 7);
    if (action === 'refuse') outcomes.refused++;
    else if (action === 'newer') outcomes.newer++;
    else if (records === whole.records) outcomes.accepted++;
    else outcomes.dropped++;
  }
  console.log(
    `bit flips: ${flips} of ${bits} bits of ${whole.records} acked records: refused ${outcomes.refused}, ` +
      `taken for a newer version ${outcomes.newer}, accepted ${outcomes.accepted}, silently dropped ${outcomes.dropped}`,
  );
  expect(outcomes).toEqual({ refused: flips, newer: 0, accepted: 0, dropped: 0 });
  expect(look()).toEqual(whole);
}, 600_000);

function gcd(a: number, b: number): number {
  return b === 0 ? a : gcd(b, a % b);
}
