/**
 * How many jobs of a queue were ever done, exact also when the log's head has been dropped. Scheduler thread only.
 *
 * Replay can count a done job only while the log still holds its last image, so jobs are counted by the segment of that
 * image. When a compaction drops the segments below a head, their counts become `forgotten` and are written into the
 * queue's declaration, together with that head: a claim, good only if the HEAD record behind it made it into the log.
 */
export class DoneTally {
  #segment = 0;
  #count = 0;
  #forgotten = 0;
  #claims: { readonly count: number; readonly head: number }[] = [];
  readonly #others = new Map<number, number>();

  /** A job is done whose image lies in this segment. */
  add(segment: number): void {
    if (segment !== this.#segment) this.#turnTo(segment);
    this.#count++;
  }

  /** Jobs that replay would not know if the log began with `segment`. */
  below(segment: number): number {
    let count = this.#forgotten + (this.#segment < segment ? this.#count : 0);
    for (const [other, jobs] of this.#others) if (other < segment) count += jobs;
    return count;
  }

  get forgotten(): number {
    return this.#forgotten;
  }

  total(): number {
    return this.below(Number.POSITIVE_INFINITY);
  }

  /** The log begins with `segment` now. */
  forget(segment: number): void {
    const forgotten = this.below(segment);
    this.#turnTo(segment);
    for (const other of [...this.#others.keys()]) if (other < segment) this.#others.delete(other);
    this.#forgotten = forgotten;
  }

  /** A declaration in the log says that `count` jobs were done below `head`. */
  claim(count: number, head: number): void {
    this.#claims.push({ count, head });
  }

  /** The replay is over, and the log begins with `head`: what lay below is taken from the last claim that came true. */
  settle(head: number): void {
    this.forget(head);
    this.#forgotten = this.#claims.filter((claim) => claim.head <= head).at(-1)?.count ?? 0;
    this.#claims = [];
  }

  #turnTo(segment: number): void {
    if (this.#count > 0) this.#others.set(this.#segment, this.#count);
    this.#segment = segment;
    this.#count = this.#others.get(segment) ?? 0;
    this.#others.delete(segment);
  }
}
