/**
 * Whether a thread that waits for a flush sleeps, or looks again at the next turn of its event loop. Being woken costs
 * two system calls and two switches of threads, a third of the way of a lone enqueue; looking costs the turns. So it
 * looks for a millisecond at most. Each wait in a row for which that was not enough doubles how many after it sleep at
 * once, so a slow disk costs next to no looks; and the event loop serves everybody else between two of them.
 */
const LOOK_MS = 1;
const SLEEPS_MAX = 64;

export class Poller {
  readonly #look: () => void;
  readonly #nowMs: () => number;
  #position = Number.NaN;
  #untilMs = 0;
  /** Waits that sleep before the next one that looks; and how many did after the last that looked in vain. */
  #sleeps = 0;
  #penalty = 0;
  #scheduled = false;

  /** `look` is called at the next turn after each `again` that said true. */
  constructor(look: () => void, nowMs: () => number = () => performance.now()) {
    this.#look = look;
    this.#nowMs = nowMs;
  }

  /** True: `look` will be called. False: sleep. `position` tells one wait from the next. */
  again(position: number): boolean {
    if (this.#scheduled) return true;
    const now = this.#nowMs();
    if (position !== this.#position) this.#begin(position, now);
    if (now >= this.#untilMs) {
      if (this.#untilMs > 0) {
        this.#penalty = Math.min(SLEEPS_MAX, 2 * this.#penalty + 1);
        this.#sleeps = this.#penalty;
        this.#untilMs = 0;
      }
      return false;
    }
    this.#scheduled = true;
    setImmediate(this.#looks);
    return true;
  }

  #begin(position: number, now: number): void {
    this.#position = position;
    // The last wait was over while it looked.
    if (this.#untilMs > 0) this.#penalty = 0;
    this.#untilMs = this.#sleeps > 0 ? 0 : now + LOOK_MS;
    if (this.#sleeps > 0) this.#sleeps--;
  }

  readonly #looks = (): void => {
    this.#scheduled = false;
    this.#look();
  };
}
