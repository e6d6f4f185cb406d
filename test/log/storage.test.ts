import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Encoder } from '../../native-free/encoder.js';
import { allocateShared, BrokerState, Shared, Word } from '../../native-free/layout.js';
import { RecordType } from '../../native-free/record.js';
import { Ring } from '../../native-free/ring.js';
import { MillraceError } from '../../src/errors.js';
import { recover } from '../../src/log/recovery.js';
import { segmentName } from '../../src/log/segment.js';
import { DiskStorage } from '../../src/log/storage.js';
import { LogWriter } from '../../src/log/writer.js';

const storage = new DiskStorage();
let dir: string;
let umask: number;

beforeEach(() => {
  umask = process.umask();
  dir = fs.mkdtempSync(join(tmpdir(), 'millrace-storage-'));
});

afterEach(() => {
  process.umask(umask);
  fs.rmSync(dir, { recursive: true, force: true });
});

function modeOf(path: string): number {
  return fs.statSync(path).mode & 0o777;
}

describe('files on the real disk', () => {
  it.each([0, 0o22, 0o77, 0o277, 0o777])('have modes 0700 and 0600 under umask %o', (mask) => {
    const path = join(dir, 'a');
    // A directory that the umask closes to its owner cannot hold another: only the leaf is made under these.
    process.umask(mask);
    storage.ensureDirectory(path);
    storage.open(join(path, 'create'), 'create').close();
    storage.open(join(path, 'exclusive'), 'exclusive').close();
    process.umask(umask);
    expect(modeOf(path)).toBe(0o700);
    expect(modeOf(join(path, 'create'))).toBe(0o600);
    expect(modeOf(join(path, 'exclusive'))).toBe(0o600);
  });

  it('are made with the directories above them, and those that exist are left as they are', () => {
    const deep = join(dir, 'x', 'y', 'z');
    storage.ensureDirectory(deep);
    expect(fs.statSync(deep).isDirectory()).toBe(true);
    fs.chmodSync(deep, 0o750);
    storage.ensureDirectory(deep);
    expect(modeOf(deep)).toBe(0o750);
  });

  it.each(['read', 'update', 'create', 'exclusive'] as const)(
    'are refused for %s when a symbolic link stands in their place',
    (mode) => {
      const target = join(dir, 'target');
      fs.writeFileSync(target, 'precious');
      for (const [name, to] of [
        ['link', target],
        ['dangling', join(dir, 'nothing')],
      ]) {
        const path = join(dir, name);
        fs.symlinkSync(to, path);
        expect(() => storage.open(path, mode)).toThrow(/ELOOP|EEXIST|ENOENT/);
        expect(fs.readFileSync(target, 'utf8')).toBe('precious');
        expect(fs.existsSync(join(dir, 'nothing'))).toBe(false);
      }
    },
  );

  it('are refused when something else than a file stands there', () => {
    fs.mkdirSync(join(dir, 'd'));
    expect(() => storage.open(join(dir, 'd'), 'read')).toThrow(/not a plain file/);
    expect(() => storage.open(join(dir, 'd'), 'create')).toThrow(/EISDIR/);
  });

  it('are read and written at positions, by several buffers at once, from shared memory too', () => {
    const file = storage.open(join(dir, 'f'), 'create');
    const shared = new Uint8Array(new SharedArrayBuffer(8)).fill(7);
    expect(file.write([Uint8Array.of(1, 2), shared.subarray(2, 5), Uint8Array.of(9)], 4)).toBe(6);
    expect(file.size()).toBe(10);
    const into = new Uint8Array(20);
    expect(file.read(into, 0)).toBe(10);
    expect([...into.subarray(0, 10)]).toEqual([0, 0, 0, 0, 1, 2, 7, 7, 7, 9]);
    expect(file.read(into.subarray(0, 3), 8)).toBe(2);
    file.truncate(5);
    file.sync();
    expect(file.size()).toBe(5);
    file.close();
    storage.rename(join(dir, 'f'), join(dir, 'g'));
    storage.syncDirectory(dir);
    expect(storage.list(dir)).toEqual(['g']);
    storage.remove(join(dir, 'g'));
    expect(storage.list(dir)).toEqual([]);
  });

  it('have their directory known by device and inode, whatever path leads there', () => {
    fs.symlinkSync(dir, `${dir}-link`);
    expect(storage.identity(`${dir}-link`)).toBe(storage.identity(dir));
    fs.unlinkSync(`${dir}-link`);
    expect(storage.identity(tmpdir())).not.toBe(storage.identity(dir));
  });
});

describe('a log on the real disk', () => {
  function run(segmentBytes: number, texts: string[]): void {
    const recovery = recover(storage, dir, () => {});
    const shared = new Shared(allocateShared({ ringSlots: 256, rows: 2, arenaBytes: 64 }));
    const writer = new LogWriter({
      shared,
      storage,
      dir,
      recovery,
      idBase: recovery.idHigh,
      epoch: recovery.epoch + 1,
      segmentBytes,
      now: () => 0,
      wallMs: 0,
    });
    writer.start();
    const ring = new Ring(shared.submitPlace, 3);
    const encoder = new Encoder();
    for (const text of texts) {
      encoder.clear();
      const at = encoder.append(RecordType.RETRY, 0, 1, 0, 0, 0, 0);
      encoder.payloadText(at, text);
      encoder.finish(at);
      if (!ring.tryReserve(encoder.slots)) throw new Error('full');
      encoder.moveInto(shared.slots, shared.slotOffset(ring.position), 0, encoder.bytes, 0);
      ring.publish(ring.position);
      writer.step();
    }
    shared.control[Word.STATE] = BrokerState.CLOSED;
    while (!writer.finished) writer.step();
    expect(writer.error).toBeUndefined();
  }

  it('is written and replayed, every file 0600', () => {
    process.umask(0);
    const texts = Array.from({ length: 20 }, (_, i) => `${i}`.repeat(30));
    run(1000, texts);
    run(1000, texts);
    const seen: string[] = [];
    recover(storage, dir, ({ u8, i32 }, offset) => {
      const bytes = i32[(offset + 4) >>> 2] & 0xffffff;
      if (i32[(offset + 4) >>> 2] >>> 24 === RecordType.RETRY) {
        seen.push(Buffer.from(u8.slice(offset + 40, offset + bytes)).toString());
      }
    });
    expect(seen).toEqual([...texts, ...texts]);
    const names = storage.list(dir);
    expect(names).toContain(segmentName(3));
    for (const name of names) expect(modeOf(join(dir, name))).toBe(0o600);
  });

  it('is refused when a symbolic link stands in place of one of its files', () => {
    run(1 << 20, ['one']);
    for (const name of [segmentName(1), 'watermark']) {
      const path = join(dir, name);
      fs.renameSync(path, `${dir}-moved`);
      fs.symlinkSync(`${dir}-moved`, path);
      const before = fs.readFileSync(`${dir}-moved`);
      try {
        recover(storage, dir, () => {});
        expect.fail('it was opened');
      } catch (error) {
        if (!(error instanceof MillraceError)) throw error;
        expect(error).toMatchObject({ code: 'ERR_MILLRACE_IO', errno: 'ELOOP', file: path });
      }
      expect(fs.readFileSync(`${dir}-moved`)).toEqual(before);
      fs.unlinkSync(path);
      fs.renameSync(`${dir}-moved`, path);
    }
    recover(storage, dir, () => {});
  });
});
