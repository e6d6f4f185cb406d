/** Claim marks: who was running when the process died, told from what a slot holds and from nothing that is torn. */
import { existsSync, readFileSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { ClaimMarks, clearMarks, type Marked, readMarks } from '../../src/log/marks.js';
import { DiskStorage } from '../../src/log/storage.js';
import { temporaryDirectory } from '../brokers.js';

const EPOCH = 7;
const SLOT_BYTES = 8192;
const ENTRIES_MAX = 510;
const disk = new DiskStorage();

function marksOf(dir: string, owner: number, epoch = EPOCH): ClaimMarks {
  const marks = new ClaimMarks(dir, owner, epoch);
  onTestFinished(() => marks.close());
  return marks;
}

function run(id: number, attempts = 0, crashes = 0): Marked {
  return { id, attempts, crashes };
}

function read(dir: string, epoch = EPOCH): Marked[] {
  const found: Marked[] = [];
  readMarks(disk, dir, epoch, (marked) => found.push(marked));
  return found;
}

it('are read as they were written last, of every owner, and of one epoch only', () => {
  const dir = temporaryDirectory();
  expect(read(dir)).toEqual([]);
  const [three, five] = [marksOf(dir, 3), marksOf(dir, 5)];
  const ended = run(2 ** 40, 65_535, 255);
  three.add(ended);
  three.add(run(12, 1, 2));
  three.write();
  five.add(run(13));
  five.write();
  expect(read(dir)).toEqual([ended, run(12, 1, 2), run(13)]);
  expect(read(dir, EPOCH + 1)).toEqual([]);
  three.delete(ended);
  three.write();
  expect(read(dir)).toEqual([run(12, 1, 2), run(13)]);
  expect(statSync(join(dir, 'marks')).mode & 0o777).toBe(0o600);
  clearMarks(disk, dir);
  clearMarks(disk, dir);
  expect([existsSync(join(dir, 'marks')), read(dir)]).toEqual([false, []]);
});

it('of a slot that is torn, damaged or cut charge nobody, and the other slots are read all the same', () => {
  const dir = temporaryDirectory();
  const path = join(dir, 'marks');
  const [one, two] = [marksOf(dir, 1), marksOf(dir, 2)];
  one.add(run(100, 1, 1));
  one.add(run(101));
  one.write();
  two.add(run(200));
  two.write();
  const bytes = readFileSync(path);
  const used = 16 + 2 * 16;
  for (let bit = 0; bit < used * 8; bit++) {
    const damaged = Buffer.from(bytes);
    damaged[SLOT_BYTES + (bit >> 3)]! ^= 1 << (bit & 7);
    writeFileSync(path, damaged);
    expect(read(dir), `bit ${bit}`).toEqual([run(200)]);
  }
  for (const end of [0, SLOT_BYTES - 1, SLOT_BYTES, SLOT_BYTES + 15, SLOT_BYTES + used - 1]) {
    writeFileSync(path, bytes);
    truncateSync(path, end);
    expect(read(dir), `cut at ${end}`).toEqual([]);
  }
});

it('are those of the latest runs when a thread runs more than a slot holds', () => {
  const dir = temporaryDirectory();
  const marks = marksOf(dir, 1);
  for (let id = 1; id <= ENTRIES_MAX + 3; id++) marks.add(run(id));
  marks.write();
  expect(read(dir).map(({ id }) => id)).toEqual(Array.from({ length: ENTRIES_MAX }, (_, i) => i + 4));
});

it('that cannot be written are left out, and nothing fails by them', () => {
  const marks = marksOf(join(temporaryDirectory(), 'missing'), 1);
  marks.add(run(1));
  marks.write();
  marks.write();
  marks.close();
});
