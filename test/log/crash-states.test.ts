/**
 * Crash states by the hundred thousand: lives of a directory stopped at every operation, each with many ways in which the
 * disk may have kept some of what was not flushed and lost the rest; recovered, checked, and in part crashed again in the
 * middle of that recovery. MILLRACE_CRASH_STATES says how many (default 200,000), MILLRACE_SEED where to begin.
 */
import { expect, it } from 'vitest';
import { Word } from '../../native-free/layout.js';
import { useChecksum } from '../../src/log/checksum.js';
import { anySectors, live, problemOf, randomFrom } from './lives.js';
import { DiskStopped, MemoryStorage } from './memory-storage.js';
import { textsIn } from './run.js';

const STATES = Number(process.env.MILLRACE_CRASH_STATES ?? 200_000);
const SEED = Number(process.env.MILLRACE_SEED ?? Math.floor(Math.random() * 2 ** 31));
const STATES_A_STOP = 40;
/** Every so many states the recovery itself is stopped somewhere, and the power cut again. */
const AGAIN_EVERY = 8;

it(`loses nothing that was acked in any of ${STATES} crash states (seed ${SEED})`, () => {
  useChecksum({ nativeFree: false });
  const wrong: string[] = [];
  const count = { states: 0, lives: 0, again: 0, acked: 0, lost: 0, refused: 0, againFailed: 0 };
  for (let seed = SEED; count.states < STATES; seed++) {
    // Some lives set room aside behind the log, some do not.
    const aside = seed % 3 === 0 ? 0 : 200 + (seed % 700);
    for (let stop = 1, finished = false; !finished && count.states < STATES; stop++) {
      const disk = new MemoryStorage();
      const { reservations, run } = live(disk, randomFrom(seed), 'a', stop, aside);
      finished = run !== undefined && run.shared.control[Word.POISON] === 0;
      count.lives++;
      for (let state = 0; state < STATES_A_STOP; state++) {
        const random = randomFrom(seed * 31 + stop * 1009 + state);
        const names = state === 0 ? 'durable' : () => (random() < 0.5 ? ('live' as const) : ('durable' as const));
        const crashed = disk.crash(anySectors(random), names);
        const where = `seed ${seed}, stopped at ${stop}, state ${state}`;
        count.states++;
        count.acked += reservations.length;
        const again = count.states % AGAIN_EVERY === 0 ? crashed.clone() : undefined;
        const problem = checked(crashed, reservations, run?.committed);
        if (problem !== undefined) {
          if (problem.startsWith('refused')) count.refused++;
          else count.lost++;
          wrong.push(`${where}: ${problem}`);
        }
        if (again === undefined) continue;
        count.again++;
        const second = crashedInRecovery(again, random);
        const then = checked(second, reservations, run?.committed);
        if (then === undefined) continue;
        count.againFailed++;
        wrong.push(`${where}, and again: ${then}`);
      }
    }
  }
  console.log(
    `crash states: seed ${SEED}, ${count.states} states of ${count.lives} stopped lives, ${count.acked} reservations ` +
      `looked at, acked lost ${count.lost}, false refusals ${count.refused}, second crashes ${count.again}, ` +
      `second-crash failures ${count.againFailed}`,
  );
  expect(wrong.slice(0, 5)).toEqual([]);
}, 3_600_000);

function checked(
  disk: MemoryStorage,
  reservations: Parameters<typeof problemOf>[1],
  committed: number | undefined,
): string | undefined {
  let survived: string[];
  try {
    survived = textsIn(disk);
  } catch (error) {
    return `refused: ${(error as Error).message}`;
  }
  return problemOf([], reservations, committed, survived, false);
}

/** The disk after a recovery that was stopped at some operation, and a power cut then. */
function crashedInRecovery(disk: MemoryStorage, random: () => number): MemoryStorage {
  disk.stopAt(1 + Math.floor(random() * 12));
  try {
    textsIn(disk);
  } catch (error) {
    if (!(error instanceof DiskStopped)) throw error;
  }
  disk.fault = undefined;
  return disk.crash(anySectors(random), () => (random() < 0.5 ? 'live' : 'durable'));
}
