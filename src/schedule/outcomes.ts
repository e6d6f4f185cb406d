/**
 * How jobs ended, for whoever waits for it: watchers of live jobs, and a window of the latest ends for those who ask
 * a moment later. Results that must be kept longer live with their row (state `done`). Scheduler thread only.
 *
 * The window holds the last RECENT ends in memory and does not survive the process.
 */
import { Outcome, Reply } from './questions.js';
import type { Replies } from './replies.js';

const RECENT = 16_384;

export class Outcomes {
  readonly #replies: Replies;
  readonly #watchers = new Map<number, number[]>();
  readonly #ids = new Float64Array(RECENT);
  readonly #status = new Uint8Array(RECENT);
  readonly #bytes: (Uint8Array | undefined)[] = [];
  #next = 0;

  constructor(replies: Replies) {
    this.#replies = replies;
  }

  watch(row: number, owner: number): void {
    const owners = this.#watchers.get(row);
    if (owners === undefined) this.#watchers.set(row, [owner]);
    else owners.push(owner);
  }

  isWatched(row: number): boolean {
    return this.#watchers.size > 0 && this.#watchers.has(row);
  }

  /** Tells the watchers of `row` how its job ended. */
  end(row: number, id: number, status: number, bytes: Uint8Array | undefined): void {
    if (this.#watchers.size === 0) return;
    const owners = this.#watchers.get(row);
    if (owners === undefined) return;
    this.#watchers.delete(row);
    for (const owner of owners) this.#replies.send(owner, Reply.OUTCOME, 0, status, 0, id, bytes);
  }

  /** Remembers an end whose row goes away. */
  remember(id: number, status: number, bytes: Uint8Array | undefined): void {
    const at = this.#next;
    this.#ids[at] = id;
    this.#status[at] = status;
    this.#bytes[at] = bytes;
    this.#next = at + 1 === RECENT ? 0 : at + 1;
  }

  /** Answers a late watcher from the window. */
  tell(owner: number, id: number): void {
    for (let back = 1; back <= RECENT; back++) {
      const at = (this.#next - back + RECENT) % RECENT;
      if (this.#ids[at] !== id) continue;
      this.#replies.send(owner, Reply.OUTCOME, 0, this.#status[at]!, 0, id, this.#bytes[at]);
      return;
    }
    this.#replies.send(owner, Reply.OUTCOME, 0, Outcome.UNKNOWN, 0, id, undefined);
  }
}
