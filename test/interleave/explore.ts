/**
 * Explores what a `Machine` can do: depth first, every step of every thread and every kill, each situation once.
 *
 * X1  A situation is remembered by 64 bits of a hash of the whole state (hash compaction, after Wolper and Leroy): among
 *     ten million situations the odds of passing one over are one in 370,000.
 * X2  Nobody can go on, and not everybody has finished: stuck. Nothing here is a matter of patience.
 */
import type { Machine } from './machine.js';
import { Status, Violation } from './program.js';

export interface Explored {
  readonly states: number;
  readonly steps: number;
  /** Situations in which everybody had finished, died, or had nothing to do. */
  readonly ends: number;
  /** False: stopped at `statesMax`, or by a violation. */
  readonly complete: boolean;
  readonly violation: string | undefined;
  /** The accesses that lead to the violation. */
  readonly trace: readonly string[];
}

export interface Limits {
  readonly kills: number;
  readonly statesMax?: number;
}

/** A set of pairs of words, by open addressing. */
class PairSet {
  size = 0;
  #table = new Uint32Array(2 << 16);
  #mask = (1 << 16) - 1;

  /** False: it was there. */
  add(a: number, b: number): boolean {
    if (this.size * 4 > this.#mask * 3) this.#grow();
    if (!this.#insert(a, a === 0 && b === 0 ? 1 : b)) return false;
    this.size++;
    return true;
  }

  #insert(a: number, b: number): boolean {
    const table = this.#table;
    for (let at = (a ^ (b >>> 3)) & this.#mask; ; at = (at + 1) & this.#mask) {
      const x = table[2 * at]!;
      const y = table[2 * at + 1]!;
      if (x === a && y === b) return false;
      if (x !== 0 || y !== 0) continue;
      table[2 * at] = a;
      table[2 * at + 1] = b;
      return true;
    }
  }

  #grow(): void {
    const old = this.#table;
    this.#table = new Uint32Array(2 * old.length);
    this.#mask = old.length - 1;
    for (let at = 0; at < old.length; at += 2) {
      if (old[at] !== 0 || old[at + 1] !== 0) this.#insert(old[at]!, old[at + 1]!);
    }
  }
}

/** Choice c of n threads is a step of thread c, or from n on the death of thread c - n. */
export function mayChoose(machine: Machine, choice: number, killsLeft: number): boolean {
  const threads = machine.programs.length;
  if (choice < threads) return machine.status(choice) === Status.RUNNING;
  const status = machine.status(choice - threads);
  if (killsLeft === 0 || !machine.programs[choice - threads]!.killable) return false;
  return status !== Status.DEAD && status !== Status.FINISHED;
}

export function choose(machine: Machine, choice: number): void {
  const threads = machine.programs.length;
  if (choice < threads) machine.step(choice);
  else machine.kill(choice - threads);
  machine.watch();
}

export function canStep(machine: Machine): boolean {
  for (let thread = 0; thread < machine.programs.length; thread++) {
    if (machine.status(thread) === Status.RUNNING) return true;
  }
  return false;
}

export function checkEnd(machine: Machine): void {
  for (const [thread, program] of machine.programs.entries()) {
    const status = machine.status(thread);
    if (status === Status.FINISHED || status === Status.DEAD || program.daemon) continue;
    throw new Violation(`stuck: ${program.name} waits for ever`);
  }
  machine.oracle.atEnd();
}

/** Explores everything that can follow the machine's present state, and leaves it there. */
export function explore(machine: Machine, { kills, statesMax = Infinity }: Limits): Explored {
  const threads = machine.programs.length;
  const seen = new PairSet();
  const folded = new Uint32Array(2);
  const isNew = (killsLeft: number): boolean => {
    machine.fold(folded);
    return seen.add(folded[0]!, (folded[1]! + Math.imul(killsLeft + 1, 0x27d4eb2f)) >>> 0);
  };
  machine.watch();
  const first = machine.state.slice();
  const stack = [first.slice()];
  const next = [0];
  const killsLeft = [kills];
  let depth = 0;
  let steps = 0;
  let ends = 0;
  let violation: string | undefined;
  isNew(kills);
  try {
    while (depth >= 0 && seen.size < statesMax) {
      const choice = next[depth]!++;
      if (choice === 2 * threads) {
        depth--;
        continue;
      }
      machine.state.set(stack[depth]!);
      if (!mayChoose(machine, choice, killsLeft[depth]!)) continue;
      choose(machine, choice);
      steps++;
      const left = killsLeft[depth]! - (choice < threads ? 0 : 1);
      if (!isNew(left)) continue;
      if (!canStep(machine)) {
        checkEnd(machine);
        ends++;
      }
      depth++;
      next[depth] = 0;
      killsLeft[depth] = left;
      if (stack[depth] === undefined) stack[depth] = machine.state.slice();
      else stack[depth]!.set(machine.state);
    }
  } catch (error) {
    violation = error instanceof Error ? error.message : String(error);
  }
  machine.state.set(first);
  const path = violation === undefined ? [] : next.slice(0, depth + 1).map((choice) => choice - 1);
  const trace = traceOf(machine, path);
  return { states: seen.size, steps, ends, complete: depth < 0, violation, trace };
}

/** Goes the same way again and writes it down. */
function traceOf(machine: Machine, path: readonly number[]): string[] {
  const first = machine.state.slice();
  const threads = machine.programs.length;
  const lines: string[] = [];
  machine.observer = (access) => lines.push(machine.describe(access));
  try {
    for (const choice of path) {
      if (choice >= threads) lines.push(`${machine.programs[choice - threads]!.name}: killed`);
      choose(machine, choice);
    }
    if (!canStep(machine) && path.length > 0) checkEnd(machine);
  } catch (error) {
    lines.push(`=> ${error instanceof Error ? error.message : String(error)}`);
  }
  machine.observer = undefined;
  machine.state.set(first);
  return lines;
}
