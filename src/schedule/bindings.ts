/**
 * The bindings as the log tells them: which patterns lead to which queues, and where the log says so. Scheduler thread
 * only. What is written again by compaction is a copy, and counts only where nothing else is known (`COPIED`).
 */
import { Topics } from './topics.js';

export interface Binding {
  readonly queue: number;
  readonly pattern: string;
  /** Where the log holds it. */
  position: number;
}

export class Bindings {
  readonly #topics = new Topics();
  readonly #all = new Map<string, Binding>();
  /** Unbound during the replay: a copy behind that is of an earlier time. */
  readonly #unbound = new Set<string>();

  match(topic: string): number[] {
    return this.#topics.match(topic);
  }

  all(): Iterable<Binding> {
    return this.#all.values();
  }

  bind(pattern: string, queue: number, position: number, isCopy: boolean, replaying: boolean): void {
    const name = `${queue}:${pattern}`;
    const known = this.#all.get(name);
    if (known !== undefined) {
      known.position = position;
      return;
    }
    if (isCopy && (!replaying || this.#unbound.has(name))) return;
    this.#unbound.delete(name);
    this.#all.set(name, { queue, pattern, position });
    this.#topics.bind(pattern, queue);
  }

  unbind(pattern: string, queue: number, replaying: boolean): void {
    const name = `${queue}:${pattern}`;
    if (replaying) this.#unbound.add(name);
    if (this.#all.delete(name)) this.#topics.unbind(pattern, queue);
  }

  /** The replay is over. */
  serve(): void {
    this.#unbound.clear();
  }
}
