/**
 * A ledger for tests: what a program was told about its jobs, held against what the queue says in the end. Knows nothing
 * of millrace's insides, so a test can believe it.
 */

/** As much of a queue as a ledger asks. */
export interface AskedQueue {
  get(id: number): Promise<{ readonly state: string } | undefined>;
}

export interface LedgerReport {
  readonly accepted: number;
  readonly done: number;
  /** Accepted, never heard to be done, and unknown to the queue. */
  readonly lost: readonly number[];
  /** Heard to be done, and still to run. */
  readonly undone: readonly number[];
  /** Heard to be done more than once. */
  readonly doneTwice: readonly number[];
  /** Run with a token that was not above the one before. */
  readonly tokensFell: readonly number[];
  /** Runs beyond the first: at-least-once delivery allows them. */
  readonly rerun: readonly number[];
}

export class Ledger {
  readonly #accepted = new Set<number>();
  readonly #done = new Map<number, number>();
  readonly #tokens = new Map<number, number>();
  readonly #runs = new Map<number, number>();
  readonly #fell = new Set<number>();

  /** An enqueue resolved with this job. */
  accepted(job: { readonly id: number }): void {
    this.#accepted.add(job.id);
  }

  /** A run of this job began: a lease, or what a handler is given. */
  started({ id, token }: { readonly id: number; readonly token: number }): void {
    if (token <= (this.#tokens.get(id) ?? -1)) this.#fell.add(id);
    this.#tokens.set(id, token);
    this.#runs.set(id, (this.#runs.get(id) ?? 0) + 1);
  }

  /** `ackDurably` resolved with true for this job, or its result came. */
  done(job: { readonly id: number }): void {
    this.#done.set(job.id, (this.#done.get(job.id) ?? 0) + 1);
  }

  /** Asks the queue for every job. All lists are empty when nothing is wrong, but for `rerun`. */
  async report(queue: AskedQueue): Promise<LedgerReport> {
    const lost: number[] = [];
    const undone: number[] = [];
    for (const id of this.#accepted) {
      const state = (await queue.get(id))?.state;
      const isDone = this.#done.has(id);
      if (state === undefined && !isDone) lost.push(id);
      if (isDone && state !== undefined && state !== 'done') undone.push(id);
    }
    const several = (counts: Map<number, number>): number[] => [...counts].filter(([, n]) => n > 1).map(([id]) => id);
    return {
      accepted: this.#accepted.size,
      done: this.#done.size,
      lost,
      undone,
      doneTwice: several(this.#done),
      tokensFell: [...this.#fell],
      rerun: several(this.#runs),
    };
  }
}
