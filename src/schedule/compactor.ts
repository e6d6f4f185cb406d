/**
 * Keeps the log small, without a stop: what is still alive in the oldest segments is written again at the log's end as
 * IMAGE records, then a HEAD record says where the log begins now, and when that is durable the segments below go.
 * Scheduler thread only; a little work a step. There is no snapshot file, so a crash at any point leaves one log that
 * replays to the same jobs, from its old or its new beginning.
 *
 * X1  Segments go oldest first, so a record never outlives the ones before it that it answers to.
 * X2  An IMAGE says what a job is once everything before it in the log is applied. So nothing that ends the job may
 *     get into the log ahead of an IMAGE made before it: a row that only the scheduler can touch is copied, and not
 *     offered until its copy is in the ring, and taken back with all that is offered behind it; one that is leased is
 *     held (EXPIRING) until its copy is in the ring; one that is between two words, or has a record on its way, waits
 *     for a later round.
 * X3  The HEAD record is appended when a whole round has found no row below the boundary. The declarations of queues
 *     go just before it, with their counts of done jobs that replay will not know (`done-tally`).
 * X4  A full disk ends the attempt, which left nothing but a longer log. It is made again later.
 */

import { wake } from '../../native-free/agent.js';
import { compareExchange, load, store } from '../../native-free/atomics.js';
import { Cell, LeaseState, QueueFlag, QueueWord, SEGMENTS_KEPT, type Shared, Word } from '../../native-free/layout.js';
import type { Outbox } from '../../native-free/outbox.js';
import * as record from '../../native-free/record.js';
import { BODY, COPIED, ImageState, Level, limitsWord, REASONS, RecordType } from '../../native-free/record.js';
import { segmentName } from '../log/segment.js';
import type { Storage } from '../log/storage.js';
import { errnoOf } from '../log/storage.js';
import { POISON_CODES } from '../log/writer.js';
import type { Jobs, QueueState } from './jobs.js';
import { leaseState, withState } from './lease.js';
import type { QueueRecord } from './questions.js';
import { State } from './transitions.js';

const ROWS_A_STEP = 4096;
const IMAGE_BYTES_A_STEP = 256 * 1024;
const AGAIN_MS = 5000;
const NONE = new Uint8Array(0);
const utf8 = new TextEncoder();

/** Where the log lies. */
export interface LogPlace {
  readonly storage: Storage;
  readonly dir: string;
  readonly segmentBytes: number;
  /** Rows that were running when the process ended last. */
  readonly crashed?: readonly number[];
}

/** What the scheduler does for it. */
export interface CompactorHooks {
  reply(owner: number, request: number, status: number): void;
  /** Takes back what the queue's ready ring holds: with one row gone, those behind it would overtake it. */
  recall(queue: QueueState): void;
}

/** What the compactor is at. idle -> (rolling) -> copying -> heading -> idle. */
const Phase = { IDLE: 0, ROLLING: 1, COPYING: 2, HEADING: 3 } as const;

export class Compactor {
  readonly #shared: Shared;
  readonly #jobs: Jobs;
  readonly #outbox: Outbox;
  readonly #log: LogPlace;
  readonly #hooks: CompactorHooks;
  readonly #asked: { owner: number; request: number }[] = [];
  #serving: { owner: number; request: number }[] = [];
  #phase: number = Phase.IDLE;
  /** Everything below this segment is to go; everything alive below this position is to be copied. */
  #target = 0;
  #boundary = 0;
  #row = 1;
  /** Rows of this round below the boundary, and how many of them were copied. */
  #left = 0;
  #copied = 0;
  /** Nothing is done before everything below this ring position has been applied. */
  #mark = 0;
  #againAtMs = 0;

  constructor(shared: Shared, jobs: Jobs, outbox: Outbox, log: LogPlace, hooks: CompactorHooks) {
    this.#shared = shared;
    this.#jobs = jobs;
    this.#outbox = outbox;
    this.#log = log;
    this.#hooks = hooks;
  }

  /** Whether rows have been copied into the outbox and not yet into the ring (X2). */
  get holdsRows(): boolean {
    return this.#phase === Phase.COPYING && this.#outbox.bytes > 0;
  }

  /** Somebody wants all of the log compacted now. */
  ask(owner: number, request: number): void {
    this.#asked.push({ owner, request });
  }

  idleForMs(nowMs: number): number {
    if (this.#phase === Phase.COPYING) return this.#waits() ? Number.POSITIVE_INFINITY : 1;
    if (this.#phase === Phase.IDLE && this.#againAtMs > nowMs) return this.#againAtMs - nowMs;
    return Number.POSITIVE_INFINITY;
  }

  /** A little work. Called with an empty outbox. */
  step(nowMs: number): number {
    if (this.#waits()) return 0;
    switch (this.#phase) {
      case Phase.IDLE:
        return this.#start(nowMs);
      case Phase.ROLLING:
        if (load(this.#shared.control, Word.ROLL) === 1) return 0;
        this.#aim(this.#shared.cells[Cell.SEGMENT_NEWEST]!);
        return 1;
      case Phase.COPYING:
        return this.#copy();
      default:
        return 0;
    }
  }

  /** The HEAD record is durable and applied: what is below it goes. */
  headCommitted(): void {
    if (this.#phase !== Phase.HEADING || load(this.#shared.control, Word.POISON) !== 0) return;
    const { cells } = this.#shared;
    const { storage, dir } = this.#log;
    try {
      for (let segment = cells[Cell.SEGMENT_FIRST]!; segment < this.#target; segment++) {
        storage.remove(`${dir}/${segmentName(segment)}`);
      }
      storage.syncDirectory(dir);
    } catch (error) {
      const code = POISON_CODES.indexOf(errnoOf(error) as (typeof POISON_CODES)[number]);
      compareExchange(this.#shared.control, Word.POISON, 0, Math.max(1, code));
      return;
    }
    for (const queue of this.#jobs.queues) queue?.tally.forget(this.#target);
    cells[Cell.SEGMENT_FIRST] = this.#target;
    cells[Cell.LOG_START] = this.#boundary;
    cells[Cell.COMPACTIONS]!++;
    this.#end(1);
  }

  /** The disk was full for a record of ours (X4). */
  refused(): void {
    this.#againAtMs = Number.POSITIVE_INFINITY;
    this.#end(0);
  }

  #start(nowMs: number): number {
    const { cells, control } = this.#shared;
    if (this.#againAtMs === Number.POSITIVE_INFINITY) this.#againAtMs = nowMs + AGAIN_MS;
    if (this.#asked.length > 0) {
      this.#serving = this.#asked.splice(0);
      this.#phase = Phase.ROLLING;
      store(control, Word.ROLL, 1);
      wake(control, Word.WRITER_ASLEEP);
      return 1;
    }
    if (nowMs < this.#againAtMs) return 0;
    const first = cells[Cell.SEGMENT_FIRST]!;
    const newest = cells[Cell.SEGMENT_NEWEST]!;
    if (newest <= first) return 0;
    const bytes = cells[Cell.POSITION]! - cells[Cell.LOG_START]!;
    if (bytes - this.#jobs.liveBytes <= this.#jobs.liveBytes + 2 * this.#log.segmentBytes) return 0;
    // All at once when little is alive; else the older half, so that disk use falls before it has doubled again.
    this.#aim(this.#jobs.liveBytes < this.#log.segmentBytes ? newest : first + Math.ceil((newest - first) / 2));
    return 1;
  }

  #aim(target: number): void {
    const { cells, segmentBases } = this.#shared;
    if (target <= cells[Cell.SEGMENT_FIRST]!) return this.#end(1);
    this.#target = target;
    this.#boundary = segmentBases[target % SEGMENTS_KEPT]!;
    this.#phase = Phase.COPYING;
    this.#row = 1;
    this.#left = 0;
    this.#copied = 0;
    // What lies below the boundary is committed, but maybe not applied yet: a job without a row cannot be copied.
    this.#mark = load(this.#shared.control, Word.COMMITTED);
  }

  #waits(): boolean {
    if (this.#phase !== Phase.COPYING) return false;
    return ((load(this.#shared.control, Word.SUBMIT_HEAD) - this.#mark) | 0) < 0;
  }

  #end(status: number): void {
    this.#phase = Phase.IDLE;
    for (const { owner, request } of this.#serving) this.#hooks.reply(owner, request, status);
    this.#serving = [];
  }

  /** Declarations that lie below the boundary, pauses and bindings too. */
  #copyQueues(): void {
    const { queues } = this.#shared;
    const outbox = this.#outbox;
    for (const queue of this.#jobs.queues) {
      if (queue === undefined) continue;
      const done = queue.tally.below(this.#target);
      const isClaimed = done === 0 || (done === queue.tally.forgotten && queue.claimed >= this.#boundary);
      if (queue.position < this.#boundary || !isClaimed) {
        const at = outbox.append(RecordType.QUEUE, Level.FSYNC, 0, queue.id, 0, 0, 0);
        outbox.payloadText(at, JSON.stringify({ ...queue.config, done, head: this.#target } satisfies QueueRecord));
        outbox.finish(at);
      }
      if ((queues[queue.block + QueueWord.FLAGS]! & QueueFlag.PAUSED) !== 0) {
        outbox.appendShort(RecordType.PAUSE, Level.FSYNC, 0, queue.id, COPIED, 0);
      }
    }
    for (const { queue, pattern, position } of this.#jobs.bindings.all()) {
      if (position >= this.#boundary) continue;
      const at = outbox.append(RecordType.BIND, Level.FSYNC, 0, queue, COPIED, 0, 0);
      outbox.payloadText(at, pattern);
      outbox.finish(at);
    }
  }

  /** Copies the next rows below the boundary. A round that found none is the last (X3). */
  #copy(): number {
    const { position, control } = this.#shared;
    const { table } = this.#jobs;
    const end = Math.min(table.high, this.#row + ROWS_A_STEP);
    for (; this.#row < end && this.#outbox.bytes < IMAGE_BYTES_A_STEP; this.#row++) {
      const at = position[this.#row]!;
      if (at === 0 || at >= this.#boundary || table.state(this.#row) === State.FREE) continue;
      this.#left++;
      if (this.#tryCopy(this.#row)) this.#copied++;
    }
    this.#outbox.trySubmit();
    if (this.#row < table.high) return 1;
    if (this.#left === 0) {
      this.#phase = Phase.HEADING;
      this.#copyQueues();
      this.#outbox.appendShort(RecordType.HEAD, Level.FSYNC, this.#target, 0, 0, 0);
      this.#outbox.trySubmit();
      return 1;
    }
    // The next round looks at what this one left, when its copies have been applied and have their new places.
    const copied = this.#copied;
    this.#row = 1;
    this.#left = 0;
    this.#copied = 0;
    this.#mark = load(control, Word.SUBMIT_TAIL);
    return copied > 0 ? 1 : 0;
  }

  /** False: not now (X2). */
  #tryCopy(row: number): boolean {
    const { lease } = this.#shared;
    const jobs = this.#jobs;
    if (jobs.table.state(row) === State.OFFERED && leaseState(load(lease, row)) === LeaseState.READY) {
      this.#hooks.recall(jobs.queueOf(row));
    }
    switch (jobs.table.state(row)) {
      case State.DELAYED:
      case State.READY:
        this.#append(row, ImageState.LIVE);
        return true;
      case State.DEAD:
        this.#append(row, ImageState.DEAD);
        return true;
      case State.DONE:
        this.#append(row, ImageState.DONE);
        return true;
      case State.OFFERED:
        break;
      default:
        return false;
    }
    const word = load(lease, row);
    // Also READY still: a consumer has its entry in hand, and is about to look at the row.
    if (leaseState(word) !== LeaseState.LEASED || !this.#outbox.trySubmit()) return false;
    if (compareExchange(lease, row, word, withState(word, LeaseState.EXPIRING)) !== word) return false;
    this.#append(row, ImageState.LIVE);
    const submitted = this.#outbox.trySubmit();
    if (!submitted) this.#outbox.clear();
    store(lease, row, word);
    return submitted;
  }

  #append(row: number, state: number): void {
    const { id, queue, priority, runAt } = this.#shared;
    const jobs = this.#jobs;
    const { memory, offset, bytes } = jobs.pager.body(row);
    const errors = jobs.errors.get(row);
    this.#outbox.appendImage(
      id[row]!,
      queue[row]!,
      priority[row]!,
      record.jobLevelOf(memory, offset),
      memory,
      offset + BODY,
      bytes,
      runAt[row]!,
      limitsWord(jobs.table.attempts(row), jobs.table.crashes(row), state),
      REASONS.indexOf(jobs.reasons.get(row) ?? 'none'),
      errors === undefined ? NONE : utf8.encode(JSON.stringify(errors)),
      // Of a live job: its checkpoint.
      state === ImageState.DONE ? jobs.results.get(row) : jobs.checkpoints.get(row),
    );
  }
}
