import { describe, expect, it } from 'vitest';
import { BrokerState, Cell, OwnerState, OwnerWord, REFUSALS_KEPT, Wants, Word } from '../../native-free/layout.js';
import { Level, RecordType } from '../../native-free/record.js';
import { recover } from '../../src/log/recovery.js';
import { segmentName } from '../../src/log/segment.js';
import { SEGMENT_BYTES, WATERMARK_DELAY_MS } from '../../src/log/sink.js';
import { POISON_CODES } from '../../src/log/writer.js';
import { batchesIn, LOG } from './logs.js';
import { errno, MemoryStorage, type Operation } from './memory-storage.js';
import { DIR, Run, textsIn } from './run.js';

/** What happened to the disk since `from`, as short text. */
function since(disk: MemoryStorage, from: number): string[] {
  return disk.operations.slice(from).map(({ kind, name }) => `${kind} ${name === segmentName(1) ? 'log' : name}`);
}

describe('group commit', () => {
  it('writes and flushes a batch once, however many reservations arrived', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk);
    for (const count of [1, 2, 50]) {
      for (let i = 0; i < count; i++) run.enqueue([`${count}.${i}`, 'second']);
      const { length } = disk.operations;
      expect(run.writer.step()).toBeGreaterThan(0);
      expect(since(disk, length)).toEqual(['write log', 'sync log']);
      expect(disk.operations[length].buffers).toBe(2);
      expect(run.writer.step()).toBe(0);
      expect(since(disk, length)).toHaveLength(2);
    }
    expect(run.shared.cells[Cell.BATCHES]).toBe(4);
    expect(run.shared.cells[Cell.FLUSHES]).toBe(4);
    expect(run.shared.cells[Cell.RECORDS]).toBe(1 + 2 * 53);
    expect(run.shared.cells[Cell.POSITION]).toBe(disk.bytes(LOG).length - 64);
    expect(run.shared.cells[Cell.SYNCED]).toBe(disk.bytes(LOG).length - 64);
    expect(run.shared.cells[Cell.BYTES]).toBe(disk.bytes(LOG).length - 64);
  });

  it('moves the watermark after the flush and not before', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk);
    const seen: [Operation['kind'], number][] = [];
    disk.fault = ({ kind }) => {
      seen.push([kind, run.committed]);
    };
    const before = run.committed;
    const position = run.enqueue('a');
    run.enqueue('b');
    run.writer.step();
    expect(seen).toEqual([
      ['write', before],
      ['sync', before],
    ]);
    expect(run.committed - position).toBe(4);
    expect(disk.durableBytes(LOG)).toEqual(disk.bytes(LOG));
  });

  it('names in each header what was durable when it was written, and numbers batches without gaps', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk);
    for (const level of [Level.FSYNC, Level.OS, Level.OS, Level.FSYNC, Level.OS]) {
      run.enqueue('x', level);
      run.settle();
    }
    const places = batchesIn(disk.bytes(LOG));
    expect(places.map(({ header }) => header.number)).toEqual([1, 2, 3, 4, 5, 6]);
    expect(places.map(({ header }) => header.position)).toEqual(places.map(({ at }) => at - 64));
    const ends = places.map(({ end }) => end - 64);
    expect(places.map(({ header }) => header.syncedUpTo)).toEqual([0, ends[0], ends[1], ends[1], ends[1], ends[4]]);
  });

  it('starts a run by making its epoch durable', () => {
    const disk = new MemoryStorage();
    for (const epoch of [1, 2, 3]) {
      const run = new Run(disk.crash());
      expect(run.recovery.epoch).toBe(epoch - 1);
      const after = (run.storage as MemoryStorage).crash();
      const types: number[] = [];
      const recovery = recover(after, DIR, (memory, offset) => {
        types.push((memory.i32[(offset + 4) >>> 2] >>> 24) & 63);
      });
      expect(recovery.epoch).toBe(epoch);
      expect(types).toEqual(Array.from({ length: epoch }, () => RecordType.EPOCH));
      Object.assign(disk, { crash: () => after.crash() });
    }
  });

  it('takes no more than the caps in one batch, but never splits a reservation', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk, { batchBytesMax: 256, batchRecordsMax: 5 });
    for (let i = 0; i < 4; i++) run.enqueue(`${i}`.repeat(40));
    run.enqueue(Array.from({ length: 20 }, (_, i) => `of one reservation ${i}`));
    for (let i = 0; i < 7; i++) run.enqueue(`${i}`, Level.OS);
    run.settle();
    const bodies = batchesIn(disk.bytes(LOG))
      .slice(1)
      .map(({ header }) => [header.records, header.bodyBytes]);
    expect(bodies).toEqual(
      [
        [2, 192],
        [2, 192],
        [20, 1280 + 0 * 20],
        [4, 256],
        [3, 192],
      ].map(([records, bytes]) => [records, records === 20 ? expect.any(Number) : bytes]),
    );
    expect(textsIn(disk)).toHaveLength(31);
  });

  it('takes no more records than the cap in one batch', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk, { batchRecordsMax: 5 });
    for (let i = 0; i < 7; i++) run.enqueue([`${i}`, 'b']);
    run.settle();
    expect(batchesIn(disk.bytes(LOG)).map(({ header }) => header.records)).toEqual([1, 6, 6, 2]);
  });

  it('waits for more when asked to linger, by the clock, and no longer than for a full batch', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk, { lingerMs: 5, batchBytesMax: 300 });
    const { length } = disk.operations;
    run.nowMs = 100;
    expect(run.writer.idleForMs()).toBe(WATERMARK_DELAY_MS - 100);
    run.enqueue('a');
    expect(run.writer.step()).toBe(0);
    expect(run.writer.idleForMs()).toBe(5);
    run.nowMs = 104;
    run.enqueue('b');
    expect(run.writer.step()).toBe(0);
    expect(run.writer.idleForMs()).toBe(1);
    expect(since(disk, length)).toEqual([]);
    run.nowMs = 105;
    expect(run.writer.step()).toBe(4);
    expect(batchesIn(disk.bytes(LOG)).at(-1)!.header.records).toBe(2);
    for (let i = 0; i < 6; i++) run.enqueue('c');
    expect(run.writer.step()).toBe(8);
    expect(run.writer.step()).toBe(0);
    run.close();
    expect(textsIn(disk)).toHaveLength(8);
  });
});

describe('levels', () => {
  it('of os are written and not flushed, and the watermark does not wait', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk);
    const { length } = disk.operations;
    const position = run.enqueue('os', Level.OS);
    run.settle();
    expect(since(disk, length)).toEqual(['write log']);
    expect(run.committed - position).toBe(2);
    expect(run.shared.cells[Cell.SYNCED]).toBeLessThan(run.shared.cells[Cell.POSITION]);
    expect(textsIn(disk.clone())).toEqual(['os']);
    expect(textsIn(disk.crash())).toEqual([]);
    // What recovery replayed is durable after it.
    const next = disk.restarted();
    recover(next, DIR, () => {});
    expect(textsIn(next.crash())).toEqual(['os']);
  });

  it('of memory, and questions, are not logged: a batch of nothing else costs no write', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk);
    const { length } = disk.operations;
    run.enqueue(['m', 'n'], Level.MEMORY);
    run.ask();
    const last = run.enqueue('o', Level.MEMORY);
    run.settle();
    expect(since(disk, length)).toEqual([]);
    expect(run.committed - last).toBe(2);
    expect(run.shared.cells[Cell.BATCHES]).toBe(1);
  });

  it('mixed in one reservation or one batch log what asks for it, in order, in one write', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk);
    run.enqueue(['m', 'a', 'b', 'n', 'c'], [Level.MEMORY, Level.FSYNC, Level.OS, Level.MEMORY, Level.OS]);
    run.ask();
    run.enqueue('d', Level.OS);
    run.enqueue('e', Level.MEMORY);
    const { length } = disk.operations;
    run.settle();
    expect(since(disk, length)).toEqual(['write log', 'sync log']);
    expect(disk.operations[length].buffers).toBe(4);
    expect(textsIn(disk.crash())).toEqual(['a', 'b', 'c', 'd']);
  });

  it('that alternate thousands of times still go out in one write of few buffers', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk, { ringSlots: 16_384 });
    const texts = Array.from({ length: 3000 }, (_, i) => `${i}`);
    run.enqueue(
      texts,
      texts.map((_, i) => (i % 2 === 0 ? Level.FSYNC : Level.MEMORY)),
    );
    run.enqueue('more');
    const { length } = disk.operations;
    run.settle();
    expect(since(disk, length)).toEqual(['write log', 'sync log']);
    expect(disk.operations[length].buffers).toBeLessThan(1024);
    expect(textsIn(disk)).toEqual([...texts.filter((_, i) => i % 2 === 0), 'more']);
  });
});

describe('the ring', () => {
  it('is followed over its end, where a reservation runs on behind it, lap after lap', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk, { ringSlots: 16 });
    const texts: string[] = [];
    for (let i = 0; i < 300; i++) {
      const text = `${i}`.padEnd((i * 31) % 180, '.');
      texts.push(text);
      run.enqueue(text);
      if (i % 3 === 0) {
        texts.push('x', 'y');
        run.enqueue(['x', 'y']);
      }
      run.settle();
    }
    expect(textsIn(disk)).toEqual(texts);
  });

  it.each([2 ** 31 - 40, 2 ** 32 - 40, 2 ** 40 - 8, 2 ** 52])('may be anywhere: first position %d', (first) => {
    const disk = new MemoryStorage();
    const run = new Run(disk, { ringSlots: 16, first });
    const texts = Array.from({ length: 60 }, (_, i) => `job ${i}`);
    for (const text of texts) {
      run.enqueue(text);
      run.settle();
    }
    expect(run.shared.absolute(run.committed)).toBe(first + 120);
    expect(run.shared.control[Word.COMMITTED_HIGH]).toBe(Math.floor((first + 120) / 2 ** 31));
    expect(textsIn(disk)).toEqual(texts);
  });

  it('stops the batch at a reservation that is not published yet', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk);
    run.enqueue('a');
    const open = run.reserve(2, 4);
    run.enqueue('b');
    run.settle();
    expect(run.committed).toBe(open);
    expect(textsIn(disk)).toEqual(['a']);
  });
});

describe('ids', () => {
  it('are bounded by every batch: none that was or could be given out comes again', () => {
    const disk = new MemoryStorage();
    let highest = -1;
    for (let life = 0; life < 4; life++) {
      const run = new Run(disk, { ringSlots: 16 });
      const idBase = run.recovery.idHigh - 16;
      for (let i = 0; i < 10; i++) {
        const id = idBase + run.shared.absolute(run.enqueue('x'));
        expect(id).toBeGreaterThan(highest);
        highest = id;
        run.settle();
      }
      // Reserved and never committed.
      highest = idBase + run.shared.absolute(run.enqueue('lost'));
    }
  });

  it('that only records of level memory used up are bounded by a batch of their own', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk, { ringSlots: 1 << 16 });
    let highest = 0;
    const { length } = disk.operations;
    for (let i = 0; i < 80; i++) {
      const position = run.enqueue(
        Array.from({ length: 8000 }, () => ''),
        Level.MEMORY,
      );
      highest = run.recovery.idHigh - (1 << 16) + run.shared.absolute(position) + 16_000;
      run.settle();
    }
    expect(since(disk, length)).toEqual(['write log', 'sync log']);
    expect(recover(disk.crash(), DIR, () => {}).idHigh).toBeGreaterThan(highest);
  });

  it('that would repeat, or an epoch that does, are refused by an assertion', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk);
    run.close();
    expect(() => new Run(disk, { idBase: 0 })).toThrow(/ids never repeat/);
    expect(() => new Run(disk, { epoch: 1 })).toThrow(/epoch/);
  });
});

describe('a dead owner', () => {
  it('leaves a hole where it died, and is drained when the watermark has passed it', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk);
    run.enqueue('a');
    const hole = run.reserve(5, 4);
    run.enqueue('b');
    run.kill(4);
    expect(run.stateOf(4)).toBe(OwnerState.DEAD);
    run.settle();
    expect(run.committed - hole).toBe(7);
    expect(run.stateOf(4)).toBe(OwnerState.DRAINED);
    expect(run.shared.owners[4 * OwnerWord.WORDS + OwnerWord.DRAINED]).toBe(run.committed);
    expect(textsIn(disk)).toEqual(['a', 'b']);
  });

  it('is one record to the scheduler, whatever the slots hold', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk, { ringSlots: 16 });
    for (let i = 0; i < 8; i++) {
      run.enqueue('old');
      run.settle();
    }
    run.reserve(4, 4);
    run.kill(4);
    while (run.writer.step() > 0) {}
    expect(run.release()).toMatchObject([{ type: RecordType.VOID, level: Level.MEMORY }]);
    expect(run.ring(5).used()).toBe(0);
  });

  it('between its stamp and the tail is found at the tail, and the tail is moved past it', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk);
    run.enqueue('a');
    const hole = run.reserve(3, 4);
    // As if it had died before moving the tail.
    run.shared.control[Word.SUBMIT_TAIL] = hole;
    run.kill(4);
    run.settle();
    expect(run.shared.control[Word.SUBMIT_TAIL]).toBe(hole + 3);
    expect(run.committed).toBe(hole + 3);
    expect(run.stateOf(4)).toBe(OwnerState.DRAINED);
    expect(run.shared.owners[4 * OwnerWord.WORDS + OwnerWord.DRAINED]).toBe(hole + 3);
    run.enqueue('b');
    run.settle();
    expect(textsIn(disk)).toEqual(['a', 'b']);
  });

  it('is not drained while somebody in front of it has not published', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk);
    const open = run.reserve(1, 5);
    run.enqueue('dead man', Level.FSYNC, 4);
    run.kill(4);
    run.settle();
    expect(run.stateOf(4)).toBe(OwnerState.DEAD);
    run.shared.slots.i32[(run.shared.slotOffset(open) >>> 2) + 1] = 32 | (RecordType.VOID << 24) | (Level.MEMORY << 30);
    run.ring(5).publish(open);
    run.settle();
    expect(run.stateOf(4)).toBe(OwnerState.DRAINED);
    expect(textsIn(disk)).toEqual(['dead man']);
  });

  it('with nothing in the ring is drained at once, and the scheduler woken', () => {
    const run = new Run(new MemoryStorage());
    run.ring(6);
    run.kill(6);
    run.shared.control[Word.SCHEDULER_ASLEEP] = 1;
    run.settle();
    expect(run.stateOf(6)).toBe(OwnerState.DRAINED);
    expect(run.shared.control[Word.SCHEDULER_ASLEEP]).toBe(0);
  });
});

describe('wake-ups', () => {
  it('go to the scheduler and to owners that wait for durability, once a batch', () => {
    const run = new Run(new MemoryStorage());
    const { owners, control } = run.shared;
    const sleeper = (owner: number, wants: number) => {
      run.ring(owner);
      owners[owner * OwnerWord.WORDS + OwnerWord.ASLEEP] = 1;
      owners[owner * OwnerWord.WORDS + OwnerWord.WANTS] = wants;
      return () => owners[owner * OwnerWord.WORDS + OwnerWord.ASLEEP];
    };
    const durable = sleeper(4, Wants.DURABLE | Wants.REPLY);
    const other = sleeper(5, Wants.REPLY | Wants.ROOM | Wants.READY);
    control[Word.SCHEDULER_ASLEEP] = 1;
    run.enqueue('a');
    run.settle();
    expect([durable(), other(), control[Word.SCHEDULER_ASLEEP]]).toEqual([0, 1, 0]);
  });
});

describe('segments', () => {
  it('are switched at their size: the old one, the new header and its name are durable before a batch goes in', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk, { segmentBytes: 600 });
    const texts = Array.from({ length: 12 }, (_, i) => `${i}`.repeat(50));
    const { length } = disk.operations;
    for (const text of texts) {
      run.enqueue(text, Level.OS);
      run.settle();
    }
    const short = since(disk, length).map((line) => line.replace(segmentName(2), 'second'));
    const at = short.indexOf('create second');
    expect(short.slice(at - 1, at + 5)).toEqual([
      'sync log',
      'create second',
      'write second',
      'sync second',
      'syncDirectory data',
      'write second',
    ]);
    expect(disk.list(DIR).filter((name) => /^\d+\.log$/.test(name)).length).toBeGreaterThan(3);
    for (const name of disk.list(DIR))
      if (/^\d+\.log$/.test(name)) expect(disk.bytes(`${DIR}/${name}`).length).toBeLessThanOrEqual(600);
    expect(textsIn(disk)).toEqual(texts);
    run.close();
    expect(textsIn(disk.crash())).toEqual(texts);
  });

  it('hold at least one batch, however long it is', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk, { segmentBytes: 100 });
    run.enqueue('x'.repeat(1000));
    run.settle();
    run.enqueue('y'.repeat(1000));
    run.settle();
    expect(textsIn(disk)).toEqual(['x'.repeat(1000), 'y'.repeat(1000)]);
    expect(disk.list(DIR).filter((name) => /^\d+\.log$/.test(name))).toHaveLength(3);
    expect(SEGMENT_BYTES).toBe(64 << 20);
  });
});

describe('room set aside', () => {
  const lengthOf = (disk: MemoryStorage, segment = 1): number => disk.bytes(`${DIR}/${segmentName(segment)}`).length;
  const commit = (run: Run, text: string): void => {
    run.enqueue(text);
    run.settle();
  };

  it('lengthens the file once for many batches, and ends with a close', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk, { asideBytes: 2000 });
    const lengths = new Set<number>();
    for (let i = 0; i < 12; i++) {
      commit(run, `${i}`);
      lengths.add(lengthOf(disk));
    }
    expect(lengths.size).toBe(1);
    expect(disk.operations.filter(({ kind }) => kind === 'truncate')).toHaveLength(1);
    const texts = Array.from({ length: 12 }, (_, i) => `${i}`);
    expect(textsIn(disk.crash())).toEqual(texts);
    expect(recover(disk.clone(), DIR, () => {}).cut).toBeUndefined();
    run.close();
    expect(lengthOf(disk)).toBe(64 + run.shared.cells[Cell.POSITION]!);
    expect(disk.durableBytes(`${DIR}/${segmentName(1)}`)).toHaveLength(lengthOf(disk));
    expect(textsIn(disk.crash())).toEqual(texts);
  });

  it('is used by the next run', () => {
    const disk = new MemoryStorage();
    commit(new Run(disk, { asideBytes: 2000 }), 'a');
    const next = disk.restarted();
    const run = new Run(next, { asideBytes: 2000 });
    const before = next.operations.length;
    commit(run, 'b');
    expect(since(next, before)).toEqual(['write log', 'sync log']);
    expect(textsIn(next.crash())).toEqual(['a', 'b']);
  });

  it('is gone for good before there is another segment, and never reaches beyond the size of one', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk, { segmentBytes: 600, asideBytes: 2000 });
    commit(run, 'a');
    expect(lengthOf(disk)).toBe(600);
    const before = disk.operations.length;
    commit(run, 'b'.repeat(500));
    expect(since(disk, before).slice(0, 3)).toEqual(['truncate log', 'sync log', `create ${segmentName(2)}`]);
    expect(lengthOf(disk)).toBeLessThan(600);
    expect(textsIn(disk.crash())).toEqual(['a', 'b'.repeat(500)]);
  });

  it.each(['EFBIG', 'ENOSPC', 'EDQUOT'])('is done without where it is refused (%s)', (code) => {
    const disk = new MemoryStorage();
    disk.fault = ({ kind, bytes }) => {
      if (kind === 'truncate' && bytes! > 1000) throw errno(code);
    };
    const run = new Run(disk, { asideBytes: 2000 });
    for (const text of ['a', 'b']) commit(run, text);
    expect(run.writer.error).toBeUndefined();
    expect(disk.operations.filter(({ kind }) => kind === 'truncate')).toHaveLength(1);
    expect(textsIn(disk.crash())).toEqual(['a', 'b']);
  });

  it('that fails in any other way is poison', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk, { asideBytes: 100 });
    disk.fault = ({ kind }) => {
      if (kind === 'truncate') throw errno('EIO');
    };
    commit(run, 'a'.repeat(200));
    expect(POISON_CODES[run.shared.control[Word.POISON]!]).toBe('EIO');
  });
});

describe('the watermark file', () => {
  it('is written about a second after the last commit that it does not know, once, and not flushed', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk);
    run.enqueue('a');
    run.settle();
    expect(run.writer.idleForMs()).toBe(WATERMARK_DELAY_MS);
    run.nowMs = WATERMARK_DELAY_MS - 1;
    const { length } = disk.operations;
    run.settle();
    expect(since(disk, length)).toEqual([]);
    expect(run.writer.idleForMs()).toBe(1);
    run.nowMs = WATERMARK_DELAY_MS;
    run.settle();
    expect(since(disk, length)).toEqual(['write watermark']);
    expect(run.writer.idleForMs()).toBe(Infinity);
    run.settle();
    expect(since(disk, length)).toHaveLength(1);
  });

  it('is written about once a second under load', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk);
    for (let i = 0; i < 100; i++) {
      run.nowMs += 50;
      run.enqueue('a');
      run.settle();
    }
    expect(disk.operations.filter(({ kind, name }) => kind === 'write' && name === 'watermark')).toHaveLength(4);
  });

  it('never says more than what was flushed', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk);
    run.enqueue('a');
    run.settle();
    run.enqueue('b', Level.OS);
    run.nowMs = 5000;
    run.settle();
    run.settle();
    const live = disk.crash((name) => (name === 'watermark' ? 'live' : 'durable'), 'live');
    expect(textsIn(live)).toEqual(['a']);
  });
});

describe('closing', () => {
  it('commits what was published, flushes the log and the watermark, and finishes', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk, { lingerMs: 1000 });
    run.enqueue('a', Level.OS);
    run.settle();
    run.enqueue('b', Level.OS);
    run.shared.control[Word.STATE] = BrokerState.CLOSED;
    const { length } = disk.operations;
    while (!run.writer.finished) run.writer.step();
    expect(since(disk, length)).toEqual(['write log', 'sync log', 'write watermark', 'sync watermark']);
    expect(disk.openFiles).toBe(0);
    expect(textsIn(disk.crash())).toEqual(['a', 'b']);
    expect(run.writer.error).toBeUndefined();
  });
});

it('closes with a watermark that is written already by flushing it', () => {
  const disk = new MemoryStorage();
  const run = new Run(disk);
  run.enqueue('a');
  run.settle();
  run.nowMs = WATERMARK_DELAY_MS;
  run.settle();
  const { length } = disk.operations;
  run.close();
  expect(since(disk, length)).toEqual(['sync watermark']);
});

describe('poison', () => {
  const cases: [string, Operation['kind'], string][] = [
    ['write', 'write', 'EIO'],
    ['flush', 'sync', 'EIO'],
    ['write on a read-only file system', 'write', 'EROFS'],
    ['write that is too large', 'write', 'EFBIG'],
    ['write over quota, as Node names it', 'write', 'UNKNOWN'],
    ['flush for want of space', 'sync', 'ENOSPC'],
  ];
  it.each(cases)('by a failed %s is the last: nothing moves and nothing is touched again', (_, kind, code) => {
    const disk = new MemoryStorage();
    const run = new Run(disk, { segmentBytes: 400 });
    run.enqueue('a');
    run.settle();
    const before = run.committed;
    const { control, owners } = run.shared;
    for (const owner of [4, 5]) {
      run.ring(owner);
      owners[owner * OwnerWord.WORDS + OwnerWord.ASLEEP] = 1;
      owners[owner * OwnerWord.WORDS + OwnerWord.WANTS] = owner === 4 ? Wants.ROOM : Wants.READY;
    }
    control[Word.SCHEDULER_ASLEEP] = 1;
    let failed = false;
    disk.fault = (operation) => {
      if (operation.kind !== kind || failed) return;
      failed = true;
      throw errno(code);
    };
    run.enqueue('b');
    run.writer.step();
    expect(POISON_CODES[control[Word.POISON]]).toBe(code);
    expect(run.writer.error).toMatchObject({ code });
    expect(run.committed).toBe(before);
    expect(control[Word.SCHEDULER_ASLEEP]).toBe(0);
    for (const owner of [4, 5]) expect(owners[owner * OwnerWord.WORDS + OwnerWord.ASLEEP]).toBe(0);
    // The disk would work again from here on.
    const { length } = disk.operations;
    run.enqueue('c'.repeat(500));
    run.nowMs += 10_000;
    for (let i = 0; i < 10; i++) expect(run.writer.step()).toBe(0);
    expect(run.writer.idleForMs()).toBe(Infinity);
    run.close();
    expect(run.writer.finished).toBe(true);
    expect(disk.operations.slice(length)).toEqual([]);
    expect(run.committed).toBe(before);
    expect(POISON_CODES[control[Word.POISON]]).toBe(code);
    expect(disk.openFiles).toBe(0);
    expect(textsIn(disk.crash()).slice(0, 1)).toEqual(['a']);
  });

  it.each(['create', 'write', 'sync', 'syncDirectory'] as const)(
    'by a failed %s in the switch to a new segment',
    (kind) => {
      const disk = new MemoryStorage();
      const run = new Run(disk, { segmentBytes: 400 });
      run.enqueue('a');
      run.settle();
      disk.fault = (operation) => {
        if (operation.kind === kind && operation.name !== segmentName(1)) throw errno('EIO');
      };
      run.enqueue('b'.repeat(300));
      run.settle();
      expect(POISON_CODES[run.shared.control[Word.POISON]]).toBe('EIO');
      const { length } = disk.operations;
      run.enqueue('c');
      run.close();
      expect(disk.operations.slice(length)).toEqual([]);
      expect(textsIn(disk.clone())).toEqual(['a']);
      expect(textsIn(disk.crash())).toEqual(['a']);
    },
  );

  it('by a failed watermark, but not by a full disk there', () => {
    for (const [code, poisoned] of [
      ['EIO', true],
      ['ENOSPC', false],
    ] as const) {
      const disk = new MemoryStorage();
      const run = new Run(disk);
      disk.fault = ({ name, kind }) => {
        if (name === 'watermark' && kind === 'write') throw errno(code);
      };
      run.enqueue('a');
      run.settle();
      run.nowMs += 2000;
      run.settle();
      expect(run.shared.control[Word.POISON] !== 0).toBe(poisoned);
    }
  });

  it('by a record that breaks the rules of the ring, before anything of it is written', () => {
    const disk = new MemoryStorage();
    const run = new Run(disk);
    const position = run.reserve(2, 4);
    run.shared.slots.i32[(run.shared.slotOffset(position) >>> 2) + 1] = 500 | (RecordType.ENQUEUE << 24);
    run.ring(4).publish(position);
    const { length } = disk.operations;
    run.settle();
    expect(POISON_CODES[run.shared.control[Word.POISON]]).toBe('ERR_MILLRACE_BREACH');
    expect(disk.operations).toHaveLength(length);
  });

  it('is not tried again by start: what fails there is thrown', () => {
    for (const code of ['EIO', 'ENOSPC']) {
      const disk = new MemoryStorage();
      const before = new Run(disk, { start: false }).writer;
      disk.fault = ({ kind }) => {
        if (kind === 'write') throw errno(code);
      };
      expect(() => before.start()).toThrow(
        expect.objectContaining({ code: code === 'EIO' ? 'ERR_MILLRACE_IO' : 'ERR_MILLRACE_NO_SPACE' }),
      );
      expect(disk.openFiles).toBe(0);
    }
  });
});

describe('a full disk', () => {
  function full(): { disk: MemoryStorage; run: Run; room: (bytes: number) => void } {
    const disk = new MemoryStorage();
    const run = new Run(disk);
    run.enqueue('before');
    run.settle();
    const room = (bytes: number) => {
      disk.capacity = disk.list(DIR).reduce((sum, name) => sum + disk.bytes(`${DIR}/${name}`).length, bytes);
    };
    return { disk, run, room };
  }

  it.each([0, 1, 63, 64, 100])(
    'with room for %i bytes refuses the batch, cuts back, stays readable, and goes on',
    (bytes) => {
      const { disk, run, room } = full();
      const border = disk.bytes(LOG);
      room(bytes);
      const from = run.shared.absolute(run.enqueue(['no', 'neither']));
      run.ask();
      run.enqueue('m', Level.MEMORY);
      run.writer.step();
      const to = run.shared.absolute(run.committed);
      expect(disk.bytes(LOG)).toEqual(border);
      const { control, cells } = run.shared;
      expect([control[Word.DISK_FULL], control[Word.POISON], control[Word.REFUSALS]]).toEqual([1, 0, 1]);
      expect([cells[Cell.REFUSED], cells[Cell.REFUSED + 1]]).toEqual([from, to]);
      expect(to - from).toBe(4 + 1 + 2);
      expect(run.release().map(({ text, level }) => [text, level])).toEqual([
        ['no', Level.REFUSED],
        ['neither', Level.REFUSED],
        ['', Level.FSYNC],
        // Its producer is told by position, as those of the others are.
        ['m', Level.REFUSED],
      ]);
      disk.capacity = Infinity;
      run.enqueue('after');
      run.settle();
      expect(control[Word.DISK_FULL]).toBe(0);
      expect(textsIn(disk.crash())).toEqual(['before', 'after']);
      expect(batchesIn(disk.bytes(LOG)).map(({ header }) => header.number)).toEqual([1, 2, 3]);
    },
  );

  it('refuses the jobs of a queue whose declaration it refused, until that is written', () => {
    const { disk, run, room } = full();
    const { control } = run.shared;
    const commit = (): number[] => {
      run.writer.step();
      return run.release().map(({ level }) => level);
    };
    commit();
    room(400);
    run.declare(1000);
    run.enqueue('no');
    expect(commit()).toEqual([Level.REFUSED, Level.REFUSED]);
    // There is room for this one, but after a crash nobody would know whose it is.
    run.enqueue('no');
    expect(commit()).toEqual([Level.REFUSED]);
    expect(control[Word.DISK_FULL]).toBe(1);
    disk.capacity = Number.POSITIVE_INFINITY;
    run.enqueue('no');
    expect(commit()).toEqual([Level.REFUSED]);
    run.enqueue('in one batch with the declaration');
    run.declare(1000);
    expect(commit()).toEqual([Level.FSYNC, Level.FSYNC]);
    run.enqueue('after');
    expect(commit()).toEqual([Level.FSYNC]);
    expect(control[Word.DISK_FULL]).toBe(0);
    expect(textsIn(disk.crash())).toEqual(['before', 'in one batch with the declaration', 'after']);
  });

  it('tells of refusals in a row by the newest range, of others by one each', () => {
    const { disk, run, room } = full();
    room(10);
    const first = run.shared.absolute(run.enqueue('no'));
    run.settle();
    for (let i = 0; i < 3 * REFUSALS_KEPT; i++) {
      run.enqueue('no');
      run.settle();
    }
    const { control, cells } = run.shared;
    const range = () => {
      const at = Cell.REFUSED + 2 * ((control[Word.REFUSALS] - 1) % REFUSALS_KEPT);
      return [cells[at], cells[at + 1]];
    };
    expect(control[Word.REFUSALS]).toBe(1 + 3 * REFUSALS_KEPT);
    expect(range()).toEqual([first, run.shared.absolute(run.committed)]);
    disk.capacity = Infinity;
    run.enqueue('yes');
    run.settle();
    room(10);
    const second = run.shared.absolute(run.enqueue('no'));
    run.settle();
    expect(range()).toEqual([second, run.shared.absolute(run.committed)]);
    expect(textsIn(disk)).toEqual(['before', 'yes']);
  });

  it('is poison when the file cannot be cut back', () => {
    const { disk, run, room } = full();
    room(50);
    disk.fault = ({ kind }) => {
      if (kind === 'truncate') throw errno('EIO');
    };
    const before = run.committed;
    run.enqueue('no');
    run.settle();
    expect(POISON_CODES[run.shared.control[Word.POISON]]).toBe('EIO');
    expect(run.committed).toBe(before);
    expect(textsIn(disk.clone())).toEqual(['before']);
  });

  it.each(['no file', 'no header'])(
    'with no room for a new segment (%s) refuses and leaves no segment behind',
    (what) => {
      const disk = new MemoryStorage();
      const run = new Run(disk, { segmentBytes: 500 });
      run.enqueue('before');
      run.settle();
      let isFull = true;
      disk.fault = ({ kind, name }) => {
        if (!isFull || name !== segmentName(2)) return undefined;
        if (kind === 'create' && what === 'no file') throw errno('ENOSPC');
        return kind === 'write' ? 10 : undefined;
      };
      run.enqueue('x'.repeat(300));
      const { length } = disk.operations;
      run.settle();
      // The name may have become durable by itself: it must be gone for good before the old segment grows.
      const kinds = since(disk, length).map((line) => line.split(' ')[0]);
      expect(kinds).toEqual(what === 'no file' ? ['create'] : ['create', 'write', 'remove', 'syncDirectory']);
      expect(run.shared.control[Word.DISK_FULL]).toBe(1);
      expect(disk.crash().has(`${DIR}/${segmentName(2)}`)).toBe(false);
      // What still fits in the old one goes there.
      run.enqueue('small');
      run.settle();
      expect(run.shared.control[Word.DISK_FULL]).toBe(0);
      isFull = false;
      run.enqueue('y'.repeat(300));
      run.settle();
      expect(textsIn(disk.crash())).toEqual(['before', 'small', 'y'.repeat(300)]);
      expect(disk.has(`${DIR}/${segmentName(2)}`)).toBe(true);
    },
  );
});
