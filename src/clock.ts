/**
 * Time, the only door to it. Two clocks, never mixed: wall time orders delayed jobs and is shown to people,
 * monotonic time measures leases. Monotonic milliseconds have one zero for every thread of the process.
 */

export interface Clock {
  /** Milliseconds since 1970, may step. */
  wallMs(): number;
  /** Milliseconds since some moment in the past, the same in all threads, never steps. */
  monotonicMs(): number;
  /** What another thread needs to see the same time, when it is not the system's. */
  readonly shared?: SharedArrayBuffer;
  /** Calls `listener` whenever time is moved by hand. */
  onChange?(listener: () => void): void;
}

/** The system's clocks. `performance.now()` starts anew in each thread, so it is tied to the process-wide hrtime. */
export class SystemClock implements Clock {
  readonly #offsetMs: number;

  constructor() {
    const [seconds, nanoseconds] = process.hrtime();
    this.#offsetMs = seconds * 1000 + nanoseconds / 1e6 - performance.now();
  }

  wallMs(): number {
    return Date.now();
  }

  monotonicMs(): number {
    return performance.now() + this.#offsetMs;
  }
}

/** A clock that moves only when told. Every thread sees the same one; moving it wakes the broker. */
export class ManualClock implements Clock {
  readonly shared: SharedArrayBuffer;
  readonly #cells: Float64Array;
  readonly #listeners: (() => void)[] = [];

  constructor(start: number | SharedArrayBuffer = 1_700_000_000_000) {
    this.shared = typeof start === 'number' ? new SharedArrayBuffer(16) : start;
    this.#cells = new Float64Array(this.shared);
    if (typeof start === 'number') this.#cells[0] = start;
  }

  wallMs(): number {
    return this.#cells[0]!;
  }

  monotonicMs(): number {
    return this.#cells[1]!;
  }

  /** Time passes: both clocks move on. */
  advance(ms: number): void {
    this.#cells[0]! += ms;
    this.#cells[1]! += ms;
    this.#changed();
  }

  /** Somebody sets the wall clock: it steps by `ms`, the monotonic one does not. */
  step(ms: number): void {
    this.#cells[0]! += ms;
    this.#changed();
  }

  onChange(listener: () => void): void {
    this.#listeners.push(listener);
  }

  #changed(): void {
    for (const listener of this.#listeners) listener();
  }
}

export function clockOver(shared: SharedArrayBuffer | undefined): Clock {
  return shared === undefined ? new SystemClock() : new ManualClock(shared);
}
