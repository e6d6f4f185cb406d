/**
 * Lives of one directory, for tests of power cuts: each writes by a script from a seed until its disk stops, and what it
 * was told is held against what a recovery finds. Shared by `power-cut.test` and `crash-states.test`.
 */
import { Cell, Word } from '../../native-free/layout.js';
import { Level } from '../../native-free/record.js';
import type { MemoryStorage as Disk, Sector } from './memory-storage.js';
import { Run } from './run.js';

/** A small generator with a seed (mulberry32). */
export function randomFrom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

export interface Reservation {
  readonly texts: string[];
  readonly level: number;
  readonly end: number;
  refused: boolean;
}

/** Writes until the disk stops or the script ends; returns what was submitted, in order, and the run. */
export function live(
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

const SECTORS: readonly Sector[] = ['durable', 'live', 'zero', 'ones', 'garbage'];

/** For each sector that was not flushed: what was there, what was written, zeros, ones, or anything. */
export function anySectors(random: () => number): () => Sector {
  return () => SECTORS[Math.floor(random() * SECTORS.length)]!;
}

/**
 * What is wrong with what survived: `before` was there when this life began, `committed` is how far it was told.
 * undefined: every job that was acked is there, in order, whole, and nothing that was refused or never asked for.
 */
export function problemOf(
  before: readonly string[],
  reservations: readonly Reservation[],
  committed: number | undefined,
  survived: readonly string[],
  processDied: boolean,
): string | undefined {
  for (let i = 0; i < before.length; i++) if (survived[i] !== before[i]) return `lost or altered ${before[i]}`;
  let at = before.length;
  let ended = false;
  for (const { texts, level, end, refused } of reservations) {
    if (level === Level.MEMORY || refused) continue;
    const acked = committed !== undefined && ((committed - end) | 0) >= 0 && (level === Level.FSYNC || processDied);
    if (!ended && at < survived.length) {
      for (const text of texts) if (survived[at++] !== text) return `altered ${text}`;
    } else {
      ended = true;
      if (acked) return `lost ${texts[0]}`;
    }
  }
  return survived.length > at ? `phantom ${survived[at]}` : undefined;
}
