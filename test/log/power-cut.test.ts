/**
 * Lives of one directory: each writes, is stopped at some disk operation, and is followed by the next on whatever a
 * power cut left. What was acked must be there, in order, in whole reservations, and nothing that was refused.
 */
import { expect, it } from 'vitest';
import { Word } from '../../native-free/layout.js';
import { anySectors, live, problemOf, randomFrom } from './lives.js';
import { type MemoryStorage as Disk, MemoryStorage } from './memory-storage.js';
import { DIR, textsIn } from './run.js';

const CRASHES: readonly [string, (disk: Disk, random: () => number) => Disk][] = [
  ['only what is durable', (disk) => disk.crash()],
  ['the process died', (disk) => disk.restarted()],
  ['sectors at random', (disk, random) => disk.crash(anySectors(random), random() < 0.5 ? 'live' : 'durable')],
];

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
      expect(problemOf([], reservations, run?.committed, textsIn(after), how === 'the process died')).toBeUndefined();
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
      expect(problemOf(survived, reservations, run?.committed, now, how === 'the process died')).toBeUndefined();
      // What an os batch left may still go with the next power cut unless a recovery has finished.
      survived = now;
      disk.ensureDirectory(DIR);
      textsIn(disk);
    }
  },
);
