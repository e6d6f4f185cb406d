import { describe, expect, it } from 'vitest';
import { crc32cMix } from '../../native-free/crc32c.js';
import { At, checksumOf, lengthWord, RecordType } from '../../native-free/record.js';
import { MillraceError } from '../../src/errors.js';
import { type RecoverOptions, recover } from '../../src/log/recovery.js';
import { FORMAT_VERSION, readSegmentHeader, segmentName, writeSegmentHeader } from '../../src/log/segment.js';
import type { Storage } from '../../src/log/storage.js';
import { batchesIn, closedLogOf, copyOf, joined, LOG, logOf, memoryOf, resealed, saltOf } from './logs.js';
import { DiskStopped, errno, MemoryStorage } from './memory-storage.js';
import { DIR, Run, textsIn } from './run.js';

const KEPT = `${LOG}.cut-`;

function fails(storage: Storage, options: RecoverOptions = {}): MillraceError {
  try {
    recover(storage, DIR, () => {}, options);
  } catch (error) {
    if (error instanceof MillraceError) return error;
    throw error;
  }
  throw new Error('it was opened');
}

/** Refused as corrupt, with all the facts, and not a byte changed. */
function expectRefused(disk: MemoryStorage, position?: number, reason?: string | RegExp): MillraceError {
  const before = disk.snapshot();
  const { length } = disk.operations;
  const error = fails(disk);
  expect(error.code).toBe('ERR_MILLRACE_CORRUPT');
  expect(error.file).toMatch(/^\/data\/.+/);
  expect(typeof error.position).toBe('number');
  expect(error.reason).toBeTruthy();
  if (position !== undefined) expect(error.position).toBe(position);
  if (reason !== undefined) expect(error.reason).toMatch(reason);
  expect(disk.snapshot()).toEqual(before);
  expect(disk.operations.slice(length).filter(({ kind }) => kind !== 'open')).toEqual([]);
  return error;
}

function put(disk: MemoryStorage, bytes: Uint8Array, path = LOG): MemoryStorage {
  disk.put(path, bytes);
  return disk;
}

describe('a torn tail', () => {
  const texts = ['first', 'second', 'x'.repeat(100), 'last'];

  it('reopens at a batch border wherever the newest segment was cut, keeps what it cut, and takes the next job', () => {
    const whole = logOf(texts);
    const bytes = whole.bytes(LOG);
    const places = batchesIn(bytes);
    for (let length = 0; length < bytes.length; length++) {
      const disk = put(whole.clone(), bytes.slice(0, length));
      const intact = places.filter(({ end }) => end <= length);
      const border = intact.at(-1)?.end ?? Math.min(length, 64);
      const recovery = recover(disk, DIR, () => {});
      expect(recovery.position, `cut at ${length}`).toBe(length < 64 ? 0 : border - 64);
      expect(recovery.batches).toBe(intact.length);
      expect(recovery.batchNumber).toBe(intact.length);
      if (length >= 64) {
        expect(disk.durableBytes(LOG)).toEqual(bytes.slice(0, border));
        if (length > border) {
          expect(recovery.cut).toMatchObject({ file: LOG, position: border - 64, bytes: length - border });
          expect(disk.durableBytes(`${KEPT}${border - 64}`)).toEqual(bytes.slice(border, length));
        } else {
          expect(recovery.cut).toBeUndefined();
        }
      } else {
        expect(disk.has(LOG)).toBe(false);
        expect(recovery).toMatchObject({ fresh: true, segment: 0 });
      }
      const run = new Run(disk.crash());
      run.enqueue('next');
      run.settle();
      const expected = [...texts.slice(0, Math.max(0, intact.length - 1)), 'next'];
      expect(textsIn((run.storage as MemoryStorage).crash()), `cut at ${length}`).toEqual(expected);
    }
  });

  it('is cut durably, and its bytes kept durably, before recovery returns', () => {
    const disk = logOf(texts);
    put(disk, disk.bytes(LOG).slice(0, -1));
    const { length } = disk.operations;
    recover(disk, DIR, () => {});
    const kinds = disk.operations.slice(length).map(({ kind, name }) => `${kind} ${name.slice(16)}`.trim());
    const kept = kinds.findIndex((kind) => kind.startsWith('sync .log.cut'));
    const keptName = kinds.indexOf('syncDirectory');
    const truncated = kinds.indexOf('truncate .log');
    const synced = kinds.indexOf('sync .log');
    expect(kept).toBeGreaterThan(0);
    expect(keptName).toBeGreaterThan(kept);
    expect(truncated).toBeGreaterThan(keptName);
    expect(synced).toBeGreaterThan(truncated);
    expect(kinds.lastIndexOf('syncDirectory')).toBeGreaterThan(synced);
  });

  it.each([1, 512, 1024, 65_536])('of %i zeros is room set aside behind the end of the log', (zeros) => {
    const disk = logOf(texts);
    const bytes = disk.bytes(LOG);
    put(disk, joined(bytes, new Uint8Array(zeros)));
    const recovery = recover(disk, DIR, () => {});
    expect(recovery.position).toBe(bytes.length - 64);
    expect(recovery.cut).toBeUndefined();
    expect(disk.list(DIR).filter((name) => name.includes('cut'))).toEqual([]);
  });

  it('keeps several cuts at one position apart', () => {
    const disk = logOf(texts);
    const bytes = disk.bytes(LOG);
    const position = bytes.length - 64;
    for (const filler of [1, 2, 3]) {
      put(disk, joined(bytes, new Uint8Array(100).fill(filler)));
      const recovery = recover(disk, DIR, () => {});
      const name = filler === 1 ? `${KEPT}${position}` : `${KEPT}${position}-${filler}`;
      expect(recovery.cut?.kept).toBe(name);
      expect(disk.durableBytes(name)).toEqual(new Uint8Array(100).fill(filler));
    }
    // The same bytes once more need no other copy.
    put(disk, joined(bytes, new Uint8Array(100).fill(2)));
    expect(recover(disk, DIR, () => {}).cut?.kept).toBe(`${KEPT}${position}-2`);
  });

  it.each([0, 100])('is cut without a copy when the disk has no room for one but %i bytes', (room) => {
    const disk = logOf(texts);
    const bytes = disk.bytes(LOG);
    put(disk, joined(bytes, new Uint8Array(5000).fill(7)));
    disk.capacity = bytes.length + 5000 + room;
    const recovery = recover(disk, DIR, () => {});
    expect(recovery.cut).toMatchObject({ bytes: 5000 });
    expect(recovery.cut?.kept).toBeUndefined();
    expect(disk.bytes(LOG)).toEqual(bytes);
    expect(disk.list(DIR).filter((name) => name.includes('cut'))).toEqual([]);
  });

  it.each([
    ['zero-length', new Uint8Array(0)],
    ['all-zero', new Uint8Array(4096)],
    ['half a header', new Uint8Array(31).fill(9)],
    ['a header of ones', new Uint8Array(64).fill(255)],
  ])('in the shape of a newest segment that is %s is the end of the log', (_, content) => {
    const disk = logOf(texts);
    const bytes = disk.bytes(LOG);
    put(disk, content, `${DIR}/${segmentName(2)}`);
    const recovery = recover(disk, DIR, () => {});
    expect(recovery).toMatchObject({ segment: 1, position: bytes.length - 64, batches: 5 });
    expect(disk.crash().has(`${DIR}/${segmentName(2)}`)).toBe(false);
    const run = new Run(disk);
    run.enqueue('next');
    run.settle();
    expect(textsIn(disk)).toEqual([...texts, 'next']);
  });
});

describe('a crash in recovery', () => {
  function torn(): [string, MemoryStorage][] {
    const tail = logOf(['one', 'two', 'three']);
    put(tail, joined(tail.bytes(LOG).slice(0, -40), new Uint8Array(700).fill(3)));
    const created = logOf(['one', 'two', 'three']);
    put(created, new Uint8Array(20).fill(1), `${DIR}/${segmentName(2)}`);
    const whole = logOf(['one', 'two', 'three']);
    const unflushed = new MemoryStorage();
    const run = new Run(unflushed);
    run.enqueue('one', 1);
    run.settle();
    return [
      ['torn batch', tail],
      ['torn segment', created],
      ['nothing torn', whole],
      ['not flushed', unflushed.clone()],
    ];
  }

  for (const [name, disk] of torn()) {
    it(`at every operation leaves a log that recovers to the same (${name})`, () => {
      const straight = disk.clone();
      const before = straight.operations.length;
      const expected = recover(straight, DIR, () => {});
      const texts = textsIn(straight);
      const operations = straight.operations.length - before;
      for (let n = 1; n <= operations; n++) {
        for (const [how, after] of [
          ['power cut', (stopped: MemoryStorage) => stopped.crash()],
          ['names live', (stopped: MemoryStorage) => stopped.crash(() => 'durable', 'live')],
          ['process died', (stopped: MemoryStorage) => stopped.clone()],
          [
            'sectors mixed',
            (stopped: MemoryStorage) => stopped.crash((_, index) => (index % 2 ? 'live' : 'zero'), 'live'),
          ],
        ] as const) {
          const stopped = disk.clone();
          stopped.stopAt(n);
          try {
            recover(stopped, DIR, () => {});
          } catch (error) {
            expect(error).toBeInstanceOf(DiskStopped);
          }
          const again = after(stopped);
          const { cut: _, ...state } = recover(again, DIR, () => {});
          const { cut: __, ...wanted } = expected;
          expect(state, `${how} at ${n}`).toEqual(wanted);
          expect(textsIn(again)).toEqual(texts);
          expect(again.durableBytes(LOG)).toEqual(straight.durableBytes(LOG));
          for (const path of straight.list(DIR).filter((file) => file.includes('cut'))) {
            expect(
              again.list(DIR).some((file) => sameBytes(again, file, straight.durableBytes(`${DIR}/${path}`))),
            ).toBe(true);
          }
        }
      }
      expect(operations).toBeGreaterThan(2);
    });

    it(`or a failure at every operation is ERR_MILLRACE_IO, and the next open works (${name})`, () => {
      const straight = disk.clone();
      const before = straight.operations.length;
      recover(straight, DIR, () => {});
      const operations = straight.operations.length - before;
      for (let n = 1; n <= operations; n++) {
        const failing = disk.clone();
        failing.fault = ({ index }) => {
          if (index === n - 1) throw errno('EIO');
        };
        const error = fails(failing);
        expect(error).toMatchObject({ code: 'ERR_MILLRACE_IO', errno: 'EIO' });
        expect(failing.openFiles).toBe(0);
        failing.fault = undefined;
        expect(textsIn(failing)).toEqual(textsIn(straight));
      }
    });
  }

  function sameBytes(disk: MemoryStorage, name: string, bytes: Uint8Array): boolean {
    return Buffer.compare(disk.durableBytes(`${DIR}/${name}`), bytes) === 0;
  }
});

describe('damage where the log was durable', () => {
  it('of any single bit is refused with file and position, and nothing is changed', () => {
    const batches = Array.from({ length: 24 }, (_, i) => [`job ${i}`, 'y'.repeat((i * 37) % 300)]);
    const closed = closedLogOf(batches);
    const bytes = closed.bytes(LOG);
    expect(bytes.length).toBeGreaterThan(8192);
    const places = batchesIn(bytes);
    const { snapshot } = { snapshot: closed.snapshot() };
    let place = -1;
    for (let at = 0; at < bytes.length; at++) {
      if (at >= 64 && at >= (places[place]?.end ?? 64)) place++;
      const expected = place < 0 ? 0 : places[place].at - 64;
      for (let bit = 0; bit < 8; bit++) {
        const flipped = copyOf(bytes);
        flipped[at] ^= 1 << bit;
        closed.put(LOG, flipped);
        const error = fails(closed);
        if (
          error.code !== 'ERR_MILLRACE_CORRUPT' ||
          error.position !== expected ||
          error.file !== LOG ||
          !error.reason
        ) {
          expect.fail(
            `byte ${at} bit ${bit}: ${error.code} ${String(error.position)}, not ${expected}: ${error.message}`,
          );
        }
        if (Buffer.compare(closed.bytes(LOG), flipped) !== 0) expect.fail(`byte ${at} bit ${bit} changed the log`);
      }
    }
    closed.put(LOG, bytes);
    expect(closed.snapshot()).toEqual(snapshot);
    expect(textsIn(closed)).toEqual(batches.flat());
  });

  it('is known from later headers alone, except in the last batch, which then is a torn tail', () => {
    const disk = logOf(['one', 'two', 'three', 'four']);
    const bytes = disk.bytes(LOG);
    const places = batchesIn(bytes);
    for (const [index, { at, end, header }] of places.entries()) {
      for (const offset of [at, at + 4, at + 8, at + 40, at + 64, end - 1]) {
        const flipped = copyOf(bytes);
        flipped[offset] ^= 0x10;
        const damaged = put(disk.clone(), flipped);
        if (index < places.length - 1) expectRefused(damaged, header.position);
        else expect(recover(damaged, DIR, () => {}).cut?.position).toBe(header.position);
      }
    }
  });

  it('is known across segments: one that has a successor was complete', () => {
    const disk = logOf(
      ['one', 'two', 'three', 'four'].map((text) => text.repeat(20)),
      { segmentBytes: 400 },
    );
    const names = disk.list(DIR).filter((name) => /^\d+\.log$/.test(name));
    expect(names.length).toBeGreaterThanOrEqual(3);
    const bytes = disk.bytes(LOG);
    const last = batchesIn(bytes).at(-1)!;
    const flipped = copyOf(bytes);
    flipped[last.end - 1] ^= 1;
    expectRefused(put(disk.clone(), flipped), last.header.position);
    expectRefused(put(disk.clone(), bytes.slice(0, last.at)), last.header.position);
    expectRefused(put(disk.clone(), bytes.slice(0, last.at + 32)), last.header.position);
    expectRefused(put(disk.clone(), joined(bytes, new Uint8Array(512))), last.end - 64);
    expectRefused(put(disk.clone(), new Uint8Array(0)), 0);
  });

  it('is known from the watermark: a log that ends below it is refused, also when it is gone', () => {
    const disk = closedLogOf(['one', 'two']);
    const bytes = disk.bytes(LOG);
    const last = batchesIn(bytes).at(-1)!;
    expectRefused(put(disk.clone(), bytes.slice(0, last.at)), last.header.position, /below a position/);
    expectRefused(put(disk.clone(), bytes.slice(0, -1)), last.header.position);
    expectRefused(put(disk.clone(), new Uint8Array(0)), 0);
    const gone = disk.clone();
    gone.drop(LOG);
    expectRefused(gone, 0, /segment 1 is missing/);
  });

  it('is not made up by a damaged, short or foreign watermark', () => {
    const disk = closedLogOf(['one', 'two']);
    const path = `${DIR}/watermark`;
    const watermark = disk.bytes(path);
    const cut = (content: Uint8Array) => {
      const damaged = disk.clone();
      damaged.put(LOG, disk.bytes(LOG).slice(0, -1));
      damaged.put(path, content);
      return damaged;
    };
    expectRefused(cut(watermark));
    for (let at = 0; at < 32; at++) {
      if (at >= 12 && at < 16) continue;
      const flipped = copyOf(watermark);
      flipped[at] ^= 4;
      expect(textsIn(cut(flipped)), `byte ${at}`).toEqual(['one']);
    }
    for (const length of [0, 1, 31]) expect(textsIn(cut(watermark.slice(0, length)))).toEqual(['one']);
    const foreign = new MemoryStorage();
    foreign.ensureDirectory(DIR);
    const recovery = { ...recover(foreign, DIR, () => {}), salt: 77 };
    const run = new Run(foreign, { recovery });
    run.enqueue('z'.repeat(4000));
    run.settle();
    run.close();
    expect(textsIn(cut(foreign.bytes(path)))).toEqual(['one']);
  });
});

describe('what is intact but in the wrong place', () => {
  const texts = ['one', 'two', 'six', 'ten'];

  it('is refused: a batch copied behind itself', () => {
    const disk = logOf(texts);
    const bytes = disk.bytes(LOG);
    for (const { at, end } of batchesIn(bytes)) {
      const copied = joined(bytes.slice(0, end), bytes.slice(at, end), bytes.slice(end));
      expectRefused(put(disk.clone(), copied), end - 64, /belongs to another place/);
    }
  });

  it('is refused: two batches swapped, one taken out', () => {
    const disk = logOf(texts);
    const bytes = disk.bytes(LOG);
    const [, a, b] = batchesIn(bytes);
    const swapped = joined(
      bytes.slice(0, a.at),
      bytes.slice(b.at, b.end),
      bytes.slice(a.at, a.end),
      bytes.slice(b.end),
    );
    expectRefused(put(disk.clone(), swapped), a.header.position);
    expectRefused(put(disk.clone(), joined(bytes.slice(0, a.at), bytes.slice(a.end))), a.header.position);
  });

  it('is refused: a middle segment missing, the first missing, two with one number, two swapped', () => {
    const disk = logOf(
      texts.map((text) => text.repeat(30)),
      { segmentBytes: 400 },
    );
    const name = (number: number) => `${DIR}/${segmentName(number)}`;
    expect(disk.has(name(3))).toBe(true);
    const missing = disk.clone();
    missing.drop(name(2));
    expect(expectRefused(missing, undefined, /segment 2 is missing/).file).toBe(name(2));
    const headless = disk.clone();
    headless.drop(name(1));
    expectRefused(headless, 0, /segment 1 is missing/);
    const doubled = disk.clone();
    doubled.put(name(3), disk.bytes(name(2)));
    expect(expectRefused(doubled, undefined, /belongs to another place/).file).toBe(name(3));
    const twice = disk.clone();
    twice.put(`${DIR}/2.log`, disk.bytes(name(2)));
    expectRefused(twice, undefined, /segment too many/);
    const swapped = disk.clone();
    swapped.put(name(2), disk.bytes(name(3)));
    swapped.put(name(3), disk.bytes(name(2)));
    expectRefused(swapped, undefined, /belongs to another place/);
  });

  it('is refused: a segment whose number, base, batch number or salt does not follow', () => {
    const disk = logOf(
      texts.map((text) => text.repeat(30)),
      { segmentBytes: 400 },
    );
    for (const number of [1, 2]) {
      const path = `${DIR}/${segmentName(number)}`;
      const memory = memoryOf(disk.bytes(path));
      const header = readSegmentHeader(memory, 0)!;
      for (const change of [
        { number: header.number + 1 },
        { base: header.base + 32 },
        { batchNumber: header.batchNumber + 1 },
        { epoch: header.epoch + 1 },
        { idHigh: header.idHigh + 1 },
        { salt: header.salt ^ 1 },
      ]) {
        writeSegmentHeader(memory, 0, { ...header, ...change });
        const changed = put(disk.clone(), memory.u8.slice(0, disk.bytes(path).length), path);
        // The first segment's salt is what the others are compared with; its own batches do not fit another.
        expectRefused(changed, header.base, number === 1 && 'salt' in change ? undefined : /belongs to another place/);
      }
    }
  });

  it('is refused: a batch whose number, epoch or marks do not follow', () => {
    const disk = logOf(texts);
    const bytes = disk.bytes(LOG);
    const places = batchesIn(bytes);
    const { at, header } = places.at(-1)!;
    for (const change of [
      { number: header.number + 1 },
      { number: header.number - 1 },
      { number: Number.NaN },
      { epoch: header.epoch + 1 },
      { syncedUpTo: header.position + 32 },
      { syncedUpTo: 0 },
      { idHigh: 0 },
    ]) {
      expectRefused(put(disk.clone(), resealed(bytes, at, change)), header.position, /does not follow/);
    }
  });

  it('is a torn tail when it is what an earlier epoch left behind the end', () => {
    const disk = logOf(texts);
    const bytes = disk.bytes(LOG);
    const last = batchesIn(bytes).at(-1)!;
    const stale = resealed(bytes, last.at, { epoch: 0 });
    expect(recover(put(disk.clone(), stale), DIR, () => {}).cut).toMatchObject({ position: last.header.position });
    const middle = batchesIn(bytes).at(-2)!;
    expectRefused(put(disk.clone(), resealed(bytes, middle.at, { epoch: 0 })), middle.header.position);
  });

  it('is not taken for the log when a payload holds it', () => {
    const disk = logOf(texts);
    const bytes = disk.bytes(LOG);
    const places = batchesIn(bytes);
    const image = (from: number, to: number) => Buffer.from(bytes.slice(from, to)).toString('latin1');
    const run = new Run(disk);
    const nasty = [
      image(64, bytes.length),
      image(places[1].at, places[1].end),
      image(places[1].at + 64, places[1].end),
    ];
    for (const text of nasty) {
      run.enqueue(text);
      run.settle();
    }
    expect(textsIn(disk)).toEqual([...texts, ...nasty]);
    // Also when the record around the image is damaged: it is skipped or refused, its contents are never replayed.
    const whole = disk.bytes(LOG);
    const [first, , last] = batchesIn(whole).slice(-3);
    const broken = copyOf(whole);
    broken[last.at + 70] ^= 1;
    expect(textsIn(put(disk.clone(), broken))).toEqual([...texts, ...nasty.slice(0, 2)]);
    const refused = copyOf(whole);
    refused[first.at + 70] ^= 1;
    expectRefused(put(disk.clone(), refused), first.header.position);
  });

  it('is not taken for the log when a payload holds the very batch that would stand there', () => {
    // The payload of the last batch is a batch sealed for the place in the file where the payload comes to lie.
    const disk = logOf(['one']);
    const probe = disk.clone();
    const run = new Run(probe);
    run.enqueue('q'.repeat(1000));
    run.settle();
    const base = probe.bytes(LOG);
    const last = batchesIn(base).at(-1)!;
    const payloadAt = base.indexOf(0x71, last.at);
    const inside = (payloadAt + 31) & ~31;
    const donor = batchesIn(base)[1];
    const forged = joined(base.slice(0, 64), base.slice(donor.at, donor.end));
    const sealed = resealed(forged, 64, {
      position: inside - 64,
      number: last.header.number + 1,
      epoch: last.header.epoch,
      syncedUpTo: last.header.position,
      idHigh: last.header.idHigh,
    }).slice(64);
    const again = new Run(disk);
    again.enqueue('q'.repeat(inside - payloadAt) + Buffer.from(sealed).toString('latin1') + 'q'.repeat(100));
    again.settle();
    expect(textsIn(disk)).toHaveLength(2);
    const bytes = disk.bytes(LOG);
    bytes[last.at + 80] ^= 1;
    expect(textsIn(put(disk.clone(), bytes))).toEqual(['one']);
  });
});

it('does not take a header in a payload for evidence: it does not stand where it says', () => {
  const disk = logOf(['one']);
  const later = disk.clone();
  const ahead = new Run(later);
  for (let i = 0; i < 20; i++) {
    ahead.enqueue('x'.repeat(200));
    ahead.settle();
  }
  const bytes = later.bytes(LOG);
  const { at } = batchesIn(bytes).at(-1)!;
  const header = Buffer.from(bytes.slice(at, at + 64)).toString('latin1');
  for (let shift = 0; shift < 32; shift += 8) {
    const target = disk.clone();
    const run = new Run(target);
    run.enqueue('p'.repeat(shift) + header + 'p'.repeat(100));
    run.settle();
    const damaged = target.bytes(LOG);
    const last = batchesIn(damaged).at(-1)!;
    damaged[last.at + 65] ^= 1;
    expect(textsIn(put(target, damaged))).toEqual(['one']);
  }
});

describe('sectors of the last batch that was not flushed', () => {
  const OLD = 'old';
  const CHOICES = ['new', 'zero', 'ones', OLD] as const;

  /** Every mixture of sectors, whole or with one kind of garbage, of a batch of five sectors. */
  function mixtures(base: Uint8Array, fresh: Uint8Array, old: Uint8Array): { bytes: Uint8Array; choices: string[] }[] {
    const from = base.length;
    const sectors: [number, number][] = [];
    for (let at = from; at < fresh.length; ) {
      const to = Math.min((Math.floor(at / 512) + 1) * 512, fresh.length);
      sectors.push([at, to]);
      at = to;
    }
    const made = [];
    for (let code = 0; code < 4 ** sectors.length; code++) {
      const bytes = copyOf(fresh);
      const choices = sectors.map(([at, to], index) => {
        const choice = CHOICES[Math.floor(code / 4 ** index) % 4];
        if (choice === 'zero') bytes.fill(0, at, to);
        if (choice === 'ones') bytes.fill(0xff, at, to);
        if (choice === OLD) bytes.set(old.subarray(at, to), at);
        return choice;
      });
      made.push({ bytes, choices });
    }
    return made;
  }

  it('are torn, never refused and never accepted, whatever the other sectors hold', () => {
    const base = logOf(['kept', 'z'.repeat(90)]);
    const write = (texts: string[]) => {
      const disk = base.clone();
      const run = new Run(disk);
      const durable = disk.bytes(LOG);
      run.enqueue(texts);
      run.writer.step();
      return { disk, durable, bytes: disk.bytes(LOG) };
    };
    const records = (filler: string) => Array.from({ length: 16 }, (_, i) => `${filler}${i}`.padEnd(60, filler));
    // Old bytes of the same shape: each record in them is intact by itself, and their header fits the place.
    const fresh = write(records('n'));
    const old = write(records('o'));
    expect(fresh.durable).toEqual(old.durable);
    const accepted = [];
    for (const { bytes, choices } of mixtures(fresh.durable, fresh.bytes, old.bytes)) {
      const disk = put(fresh.disk.clone(), bytes);
      const texts = textsIn(disk);
      if (texts.length > 2) accepted.push([...new Set(choices)].join());
      else expect(texts).toEqual(['kept', 'z'.repeat(90)]);
    }
    // Only the batch as it was written, and the other one as that was written.
    expect(accepted.sort()).toEqual(['new', 'old']);
  });

  it('are torn when the old bytes are of an earlier epoch, also as a whole', () => {
    const base = logOf(['kept']);
    const first = new Run(base);
    const durable = base.bytes(LOG);
    first.enqueue(Array.from({ length: 12 }, (_, i) => `old ${i}`.padEnd(60)));
    first.writer.step();
    const old = resealed(base.bytes(LOG), durable.length, { epoch: 1 });
    const disk = put(base.clone(), durable);
    const fresh = base.bytes(LOG);
    for (const { bytes } of mixtures(durable, fresh, old)) {
      const texts = textsIn(put(disk.clone(), bytes));
      expect(texts.length > 1).toBe(Buffer.compare(bytes, fresh) === 0);
    }
    expect(textsIn(put(disk.clone(), old))).toEqual(['kept']);
  });

  it('may also hold whatever else the log held before: batches of other places', () => {
    const base = logOf(['kept', 'more', 'x'.repeat(700)]);
    const run = new Run(base);
    const durable = base.bytes(LOG);
    run.enqueue(Array.from({ length: 12 }, (_, i) => `new ${i}`.padEnd(60)));
    run.writer.step();
    const fresh = base.bytes(LOG);
    for (let shift = 32; shift < durable.length - 64; shift += 32) {
      const old = copyOf(fresh);
      // A sector that starts with a whole batch of another place cannot be told from a copied batch: that is refused.
      for (let at = durable.length; at < fresh.length; at++) old[at] = durable[at - durable.length + 64 + shift] ?? 0;
      if (batchesIn(durable).some(({ at }) => at === 64 + shift)) continue;
      expect(textsIn(put(base.clone(), old)), `shift ${shift}`).toEqual(['kept', 'more', 'x'.repeat(700)]);
    }
  });
});

describe('a newer version', () => {
  it('of the segment header is named so and nothing is changed', () => {
    const disk = logOf(['one']);
    const memory = memoryOf(disk.bytes(LOG));
    writeSegmentHeader(memory, 0, {
      version: 2,
      salt: saltOf(disk.bytes(LOG)),
      number: 1,
      base: 0,
      batchNumber: 0,
      epoch: 0,
      idHigh: 0,
    });
    expectNewer(put(disk.clone(), memory.u8.slice(0, disk.bytes(LOG).length)), 0);
    // With a wrong checksum it is only damage.
    const flipped = disk.bytes(LOG);
    flipped[8] = 2;
    expectRefused(put(disk.clone(), flipped), 0);
  });

  it('of a batch, or a flag that is not known, is named so, never corrupt and never torn', () => {
    const disk = logOf(['one', 'two']);
    const bytes = disk.bytes(LOG);
    for (const { at, header } of batchesIn(bytes)) {
      for (const version of [2, FORMAT_VERSION | (1 << 16)]) {
        expectNewer(put(disk.clone(), resealed(bytes, at, { version })), header.position);
      }
    }
  });

  it('of a record is named so, never corrupt and never torn', () => {
    const disk = logOf(['one', 'two']);
    const bytes = disk.bytes(LOG);
    const last = batchesIn(bytes).at(-1)!;
    for (const type of [19, 40, RecordType.ASK, RecordType.VOID, 63]) {
      const memory = memoryOf(bytes);
      const at = last.at + 64;
      memory.i32[(at + At.LENGTH) >>> 2] = lengthWord(memory.i32[(at + At.LENGTH) >>> 2] & 0xffffff, type, 0);
      memory.i32[at >>> 2] = checksumOf(memory, at);
      const changed = memory.u8.slice(0, bytes.length);
      const sealed = resealed(changed, last.at, { recordsCrc: crc32cMix(0, memory.i32[at >>> 2]) });
      expectNewer(put(disk.clone(), sealed), last.header.position);
      // The record alone, in a batch that is not intact, is a torn tail.
      expect(textsIn(put(disk.clone(), changed))).toEqual(['one']);
    }
  });

  function expectNewer(disk: MemoryStorage, position: number): void {
    const before = disk.snapshot();
    expect(fails(disk)).toMatchObject({ code: 'ERR_MILLRACE_NEWER_VERSION', position, file: LOG });
    expect(disk.snapshot()).toEqual(before);
  }
});

describe('memory', () => {
  it('is never asked for beyond the bytes of the file, whatever a length field says', () => {
    const disk = logOf(['one', 'two']);
    const bytes = disk.bytes(LOG);
    const last = batchesIn(bytes).at(-1)!;
    for (const bodyBytes of [0xffffffe0, 0x7fffffe0, 1 << 30, last.header.bodyBytes + 32, 32, 1, 0]) {
      const damaged = put(disk.clone(), resealed(bytes, last.at, { bodyBytes }));
      expect(textsIn(damaged), `${bodyBytes}`).toEqual(['one']);
      expect(damaged.largestRead).toBeLessThan(bytes.length + 32 + 1024);
    }
    for (const length of [0xffffff, 31, 0, 4000]) {
      const memory = memoryOf(bytes);
      const at = last.at + 64;
      memory.i32[(at + At.LENGTH) >>> 2] = lengthWord(length, RecordType.ENQUEUE, 0);
      const damaged = put(disk.clone(), memory.u8.slice(0, bytes.length));
      expect(textsIn(damaged)).toEqual(['one']);
    }
    const records = put(disk.clone(), resealed(bytes, last.at, { records: 0xffffffff }));
    expect(textsIn(records)).toEqual(['one']);
  });

  it('is a window: a log many chunks long replays the same as in one piece', () => {
    const batches = Array.from({ length: 40 }, (_, i) => [`${i}`, 'w'.repeat((i * 97) % 1500)]);
    const disk = logOf(batches, { segmentBytes: 20_000 });
    const whole = textsIn(disk);
    expect(whole).toEqual(batches.flat());
    for (const chunkBytes of [64, 96, 1024, 4096]) {
      const fresh = disk.clone();
      let texts = 0;
      const recovery = recover(fresh, DIR, () => texts++, { chunkBytes });
      expect(texts).toBe(recovery.records);
      expect(recovery.records).toBe(81);
      expect(fresh.largestRead).toBeLessThanOrEqual(Math.max(chunkBytes, 1800));
    }
  });
});

it('reads a log from the segment that its newest HEAD names, and removes what is left below it', () => {
  const texts = Array.from({ length: 12 }, (_, i) => `${i}`.repeat(40));
  const disk = logOf(texts, { segmentBytes: 600 });
  const all = recover(disk.clone(), DIR, () => {});
  expect(all.segment).toBeGreaterThan(4);
  for (let head = 2; head <= 4; head++) {
    const headed = disk.clone();
    const again = new Run(headed, { segmentBytes: 600 });
    again.head(head);
    again.settle();
    // Cut short anywhere between the HEAD record and the last removal: the same log comes out.
    for (let gone = 1; gone <= head; gone++) {
      const found = headed.clone();
      for (let number = 1; number < gone; number++) found.drop(`${DIR}/${segmentName(number)}`);
      const { segments, position } = recover(found, DIR, () => {});
      expect(segments[0]!.number).toBe(head);
      expect(found.has(`${DIR}/${segmentName(head - 1)}`)).toBe(false);
      expect(found.has(`${DIR}/${segmentName(head)}`)).toBe(true);
      expect(recover(found, DIR, () => {}).position).toBe(position);
      // One more than the log allows is a loss.
      found.drop(`${DIR}/${segmentName(head)}`);
      expectRefused(found, undefined, new RegExp(`segment ${head} is missing`));
    }
  }
});

it('describes an empty directory as fresh, with a salt of its own, and creates nothing in it', () => {
  const disk = new MemoryStorage();
  disk.ensureDirectory(DIR);
  const recovery = recover(disk, DIR, () => {}, { random: () => 0.5 });
  expect(recovery).toEqual({
    fresh: true,
    segment: 0,
    segmentBase: 0,
    segments: [],
    position: 0,
    batchNumber: 0,
    epoch: 0,
    idHigh: 0,
    salt: 2 ** 31,
    records: 0,
    batches: 0,
  });
  expect(disk.list(DIR)).toEqual([]);
  expect(structuredClone(recovery)).toEqual(recovery);
});

it('lets an error of whoever applies the records through as it is', () => {
  const disk = logOf(['one']);
  const error = new RangeError('no rows left');
  expect(() =>
    recover(disk, DIR, () => {
      throw error;
    }),
  ).toThrow(error);
  expect(disk.openFiles).toBe(1 + 1);
});

it('ignores files that are not its own', () => {
  const disk = logOf(['one']);
  for (const name of ['lock', 'notes.txt', '0000000000000001.log.cut-64', 'x.log', '.log'])
    disk.put(`${DIR}/${name}`, new Uint8Array(9));
  expect(textsIn(disk)).toEqual(['one']);
});
