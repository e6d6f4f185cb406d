/**
 * Which directory holds a run's jobs, and when it goes away again. Main thread.
 *
 * named      the user's --dir: stays, whatever happens.
 * beside     no --dir, but a results file FILE: FILE.millrace, so that the same command goes on after a kill. It goes
 *            when the run is over: then everything it knows is in FILE.
 * temporary  neither: nobody can come back to it. It goes with the process.
 */
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export interface Place {
  readonly dir: string;
  /** Whether somebody may come back to it. */
  readonly keeps: boolean;
  /** Nothing has been done in it. */
  unused(): void;
  /** The run is over: nothing is left to come back for. */
  finished(): void;
}

export function placeOf(dir: string | undefined, out: string | undefined): Place {
  if (dir !== undefined) return { dir, keeps: true, unused: () => {}, finished: () => {} };
  if (out !== undefined) {
    const beside = `${out}.millrace`;
    const fresh = !existsSync(beside);
    const gone = (): void => remove(beside);
    return { dir: beside, keeps: true, unused: () => fresh && gone(), finished: gone };
  }
  return temporaryPlace(false);
}

/** `keeps`: as if somebody could come back to it, for a run that is to show what that takes. */
export function temporaryPlace(keeps: boolean): Place {
  const dir = mkdtempSync(join(tmpdir(), 'millrace-'));
  const gone = (): void => remove(dir);
  process.once('exit', gone);
  return { dir, keeps, unused: gone, finished: gone };
}

function remove(dir: string): void {
  rmSync(dir, { recursive: true, force: true });
}
