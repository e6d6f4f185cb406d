/**
 * Lives of one directory: each writes, is stopped at some disk operation, and is followed by the next on whatever a
 * power cut left. What was acked must be there, in order, in whole reservations, and nothing that was refused.
 */
import { expect, it } from 'vitest';
import { Cell, Word } from '../../native-free/layout.js';
import { Level } from '../../native-free/record.js';
import { type MemoryStorage as Disk, MemoryStorage, type Sector } from './memory-storage.js';
import { DIR, Run, textsIn } from './run.js';

/** A small generator with a seed (mulberry32). */
function randomFrom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

interface Reservation {
  readonly texts: string[];
  readonly level: number;
  readonly end: number;
  refused: boolean;
}

/** Writes until the disk stops or the script ends; returns what was submitted, in order, and the run. */
function live(
  disk: Disk,
  random: () => number,
  name: string,
  stopAt: number,
  asideBytes: number,
): { reservations: Reservation[]; run?: Run } {
  const reservations: Reservation[] = [];
  disk.stopAt(stopAt);
  let run: Run;
  try {
    run = new Run(disk, { segmentBytes: 1500, ringSlots: 256, batchBytesMax: 1024, asideBytes });
  } catch {
    return { reservations };
  }
  const pick = (count: number) => Math.floor(random() * count);
  let used = 0;
  for (let turn = 0; turn < 12; turn++) {
    for (let i = pick(5); i > 0 && run.ring(3).used() < 100; i--) {
      const texts = Array.from({ length: 1 + pick(4) }, () => `${name}.${turn}.${i}.${used++}`.padEnd(pick(90), '-'));
      const level = [Level.FSYNC, Level.FSYNC, Level.OS, Level.MEMORY][pick(4)];
      run.enqueue(texts, level);
      reservations.push({ texts, level, end: run.shared.control[Word.SUBMIT_TAIL], refused: false });
    }
    run.nowMs += pick(600);
    if (pick(8) === 0) disk.capacity = used * 10;
    else disk.capacity = Infinity;
    for (let steps = pick(6); steps > 0; steps--) run.writer.step();
    const { control, cells } = run.shared;
    for (let n = 0; n < control[Word.REFUSALS]; n++) {
      const [from, to] = [cells[Cell.REFUSED + 2 * (n % 64)], cells[Cell.REFUSED + 2 * (n % 64) + 1]];
      for (const reservation of reservations) {
        const end = run.shared.absolute(reservation.end);
        if (end > from && end <= to && reservation.level !== Level.MEMORY) reservation.refused = true;
      }
    }
    if (control[Word.POISON] === 0) run.release();
  }
  disk.capacity = Infinity;
  if (pick(3) === 0) run.close();
  return { reservations, run };
}

const CRASHES: readonly [string, (disk: Disk, random: () => number) => Disk][] = [
  ['only what is durable', (disk) => disk.crash()],
  ['the process died', (disk) => disk.restarted()],
  ['sectors at random', (disk, random) => disk.crash(choices(random), random() < 0.5 ? 'live' : 'durable')],
];

function choices(random: () => number): () => Sector {
  const kinds: Sector[] = ['durable', 'live', 'zero', 'ones'];
  return () => kinds[Math.floor(random() * 4)];
}

function check(
  before: string[],
  reservations: Reservation[],
  committed: number | undefined,
  survived: string[],
  processDied: boolean,
): void {
  expect(survived.slice(0, before.length)).toEqual(before);
  let at = before.length;
  let ended = false;
  for (const { texts, level, end, refused } of reservations) {
    if (level === Level.MEMORY || refused) continue;
    const acked = committed !== undefined && ((committed - end) | 0) >= 0 && (level === Level.FSYNC || processDied);
    const found = survived.slice(at, at + texts.length);
    if (!ended && found.length > 0) {
      expect(found).toEqual(texts);
      at += texts.length;
    } else {
      ended = true;
      expect(acked, `lost ${texts[0]}`).toBe(false);
    }
  }
  expect(survived.length).toBe(at);
}

const CASES = [0, 500].flatMap((aside) => CRASHES.map(([how, crash]) => [how, aside, crash] as const));

it.each(CASES)(
  'keeps what was acked when the power is cut at any operation of a run: %s, %i bytes set aside',
  (how, aside, crash) => {
    for (let n = 1; n < 400; n++) {
      const random = randomFrom(7);
      const disk = new MemoryStorage();
      const { reservations, run } = live(disk, random, 'a', n, aside);
      const finished = run !== undefined && run.shared.control[Word.POISON] === 0;
      const after = crash(disk, randomFrom(n));
      check([], reservations, run?.committed, textsIn(after), how === 'the process died');
      if (finished) {
        expect(n).toBeGreaterThan(40);
        return;
      }
    }
    expect.fail('the run never got to its end');
  },
);

it.each(Array.from({ length: 60 }, (_, seed) => seed + 1))(
  'keeps what was acked through eight lives, seed %i',
  (seed) => {
    const random = randomFrom(seed);
    let disk: Disk = new MemoryStorage();
    let survived: string[] = [];
    for (let life = 0; life < 8; life++) {
      const { reservations, run } = live(
        disk,
        random,
        `life ${life}`,
        1 + Math.floor(random() * 90),
        seed % 2 === 0 ? 0 : 500,
      );
      const [how, crash] = CRASHES[Math.floor(random() * CRASHES.length)];
      disk = crash(disk, random);
      // Asked of a copy, so that the next life recovers by itself, and may be stopped in that.
      const now = textsIn(disk.clone());
      check(survived, reservations, run?.committed, now, how === 'the process died');
      // What an os batch left may still go with the next power cut unless a recovery has finished.
      survived = now;
      disk.ensureDirectory(DIR);
      textsIn(disk);
    }
  },
);
