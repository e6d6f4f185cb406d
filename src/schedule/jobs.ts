/**
 * All jobs of the broker and what the log's records do to them: `apply` is the one function that replay and the
 * running broker share, so a restart ends in the same state by construction. Scheduler thread only.
 *
 * J1  Only applied records change what a job is (attempts, runAt, dead, done); what the scheduler decides itself it
 *     writes as a record and applies when that comes back committed.
 * J2  `apply` reads no clock and no chance: times are in the record, made by whoever wrote it.
 * J3  LIVE counts rows that are delayed, ready, offered or leaving; a row is in exactly one list: delays (delayed,
 *     done), order (ready), leases (offered), the dead list (dead), none (leaving).
 * J4  A log whose head was dropped replays to the same jobs. So an ENQUEUE that was a duplicate is cancelled by a
 *     record of its own: the job that held the key may be gone from the log before it.
 */
import { ARENA_UNIT_BYTES, type Arena } from '../../native-free/arena.js';
import { assert } from '../../native-free/assert.js';
import { add } from '../../native-free/atomics.js';
import { IdMap } from '../../native-free/id-map.js';
import { Cell, LeaseState, QueueFlag, QueueWord, SEGMENTS_KEPT, type Shared, Word } from '../../native-free/layout.js';
import { queueNamed } from '../../native-free/names.js';
import * as record from '../../native-free/record.js';
import {
  At,
  Attribute,
  BODY,
  COPIED,
  ImageAt,
  ImageState,
  type Memory,
  REASONS,
  type Reason,
  RecordType,
} from '../../native-free/record.js';
import { TimingWheel } from '../../native-free/wheel.js';
import { LogReader, type SegmentPlace } from '../log/reader.js';
import type { Storage } from '../log/storage.js';
import { Bindings } from './bindings.js';
import { DoneTally } from './done-tally.js';
import { Expiries } from './expiries.js';
import { JobTable } from './job-table.js';
import { withState } from './lease.js';
import type { Outcomes } from './outcomes.js';
import { Pager } from './pager.js';
import { EVENTS, type EventName, Outcome, type QueueRecord, type StoredError } from './questions.js';
import { shareSettings } from './queue-settings.js';
import { ReadyOrder } from './ready-order.js';
import { Event, State } from './transitions.js';

const ERRORS_KEPT = 5;
const DEAD_NEXT_KEPT = 16_384;
const NONE = new Uint8Array(0);
const text = new TextDecoder();
const utf8 = new TextEncoder();

/** Where the log lies, and how many bytes of jobs are to be in memory at most. */
export interface BackingLog {
  readonly storage: Storage;
  readonly dir: string;
  readonly memoryBytes: number;
}

/** A queue as the scheduler knows it. */
export class QueueState {
  readonly id: number;
  readonly order: ReadyOrder;
  /** Word index of the queue's shared block, and cell index of the same. */
  readonly block: number;
  config: QueueRecord;
  /** The timer set for a fresh offer, in milliseconds: the shortest visibility anybody asked for. */
  armMs: number;
  group = -1;
  /** Where the log holds the queue's latest declaration. */
  position = 0;
  /** Where the log holds the last word on jobs that were done before its head (`done-tally`). */
  claimed = 0;
  /** Whether a PAUSE or RESUME was applied that is not a copy. */
  pauseKnown = false;
  /** Replay met the queue's jobs before its declaration, which a compaction wrote again further on: see `#undeclared`. */
  declared = true;
  /** Rows that were done before the declaration said how long they are kept; their runAt is when. */
  readonly early: number[] = [];
  readonly tally = new DoneTally();
  /** First and last dead row, 0 = none. */
  deadFirst = 0;
  deadLast = 0;

  constructor(id: number, shared: Shared, config: QueueRecord) {
    this.id = id;
    this.block = id * QueueWord.WORDS;
    this.order = new ReadyOrder(shared);
    this.config = config;
    this.armMs = config.visibility;
  }
}

/** What a job that just ended or changed means for somebody outside: filled by `Scheduler`. */
export interface Listener {
  /** The queue has a ready row more. */
  ready(queue: QueueState): void;
  /** Nothing of the queue may be claimed any more. */
  paused(queue: QueueState): void;
  event(name: number, queue: QueueState, id: number, bytes: Uint8Array | undefined): void;
  verdict(owner: number, request: number, id: number, duplicate: boolean): void;
  /** A job that was not accepted because another holds its key: the log has to say so too (J4). */
  duplicate(id: number, queue: number, level: number): void;
}

export class Jobs {
  readonly shared: Shared;
  readonly table: JobTable;
  readonly arena: Arena;
  readonly pager: Pager;
  readonly ids: IdMap;
  readonly queues: (QueueState | undefined)[] = [];
  /** Monotonic: leases. */
  readonly leases: TimingWheel;
  /** Wall clock: delayed rows, and done rows until they are forgotten. */
  readonly delays: TimingWheel;
  readonly errors = new Map<number, StoredError[]>();
  readonly reasons = new Map<number, Reason>();
  readonly results = new Map<number, Uint8Array>();
  /** What running jobs last said of how far they are, by row. */
  readonly checkpoints = new Map<number, Uint8Array>();
  readonly bindings = new Bindings();
  readonly expiries: Expiries;
  listener: Listener | undefined;
  /** True while the log is replayed: nobody waits, and owners named in records are of an earlier run. */
  replaying = true;
  wallMs = 0;
  /** Bytes of the log that are some job's latest image, about. */
  liveBytes = 0;
  readonly #outcomes: Outcomes;
  readonly #keys = new Map<string, number>();
  /** Of the jobs that left a dead list last, the id that stood behind them, 0 = none: for pages that go on there. */
  readonly #deadNext = new Map<number, number>();
  /** Of jobs that the replay has not met: it may begin behind their ENQUEUE, and meet their IMAGE later. */
  readonly #orphans = new Map<number, { readonly counts: number; readonly bytes: Uint8Array }>();
  #reservedBack = 0;
  #done = 0;
  /** Where the last position that was asked for lay. */
  #segment = 1;

  constructor(shared: Shared, arena: Arena, outcomes: Outcomes, log: BackingLog, wallMs: number, monotonicMs: number) {
    this.shared = shared;
    this.arena = arena;
    this.#outcomes = outcomes;
    this.table = new JobTable(shared);
    const reader = new LogReader(log.storage, log.dir, (position) => this.#placeOf(position));
    this.pager = new Pager(shared, arena, this.table, reader, log.memoryBytes);
    this.ids = new IdMap(shared.id);
    this.leases = new TimingWheel({ when: shared.timer, next: shared.next, prev: shared.prev }, monotonicMs);
    this.delays = new TimingWheel({ when: shared.runAt, next: shared.next, prev: shared.prev }, wallMs);
    this.expiries = new Expiries(shared.sizes.rows);
    this.wallMs = wallMs;
  }

  /** Applies one committed record. `memory` is a ring, or a piece of the log; `position` is 0 for one that is not in it. */
  apply(memory: Memory, offset: number, position: number): void {
    switch (record.typeOf(memory, offset)) {
      case RecordType.ENQUEUE:
        return this.#enqueue(memory, offset, position);
      case RecordType.ACK:
        return this.#ack(memory, offset);
      case RecordType.ACK_MANY:
        return this.#ackMany(memory, offset);
      case RecordType.RETRY:
        return this.#retry(memory, offset);
      case RecordType.DEAD:
        return this.#bury(memory, offset);
      case RecordType.CANCEL:
        return this.#cancel(memory, offset);
      case RecordType.REDRIVE:
        return this.#redrive(memory, offset);
      case RecordType.PURGE:
        return this.#purge(memory, offset);
      case RecordType.QUEUE:
        return this.#declare(memory, offset, position);
      case RecordType.PAUSE:
        return this.#pause(record.queueOf(memory, offset), true, record.rowOf(memory, offset) === COPIED);
      case RecordType.RESUME:
        return this.#pause(record.queueOf(memory, offset), false, false);
      case RecordType.CHECKPOINT:
        return this.#checkpoint(memory, offset);
      case RecordType.BIND:
      case RecordType.UNBIND:
        return this.#bind(memory, offset, position);
      case RecordType.IMAGE:
        return this.#image(memory, offset, position);
      case RecordType.EPOCH:
      case RecordType.HEAD:
        return;
      default:
        assert(false, 'a record type that recovery let through is applied');
    }
  }

  /** Publishes the counters that are kept here while a batch is applied. */
  settle(): void {
    if (this.#reservedBack !== 0) {
      if (!this.replaying) add(this.shared.control, Word.JOBS_RESERVED, -this.#reservedBack);
      this.#reservedBack = 0;
    }
    const cells = this.shared.cells;
    cells[Cell.DONE] = this.#done;
    cells[Cell.ARENA_BYTES] = this.arena.usedBytes;
    cells[Cell.LIVE] = this.ids.size;
  }

  /** Ends the replay: jobs are counted as reserved, and delayed rows that are due become ready. */
  serve(): void {
    this.settle();
    this.replaying = false;
    this.bindings.serve();
    this.#orphans.clear();
    const { cells, queueCells } = this.shared;
    for (const queue of this.queues) {
      if (queue === undefined) continue;
      queue.tally.settle(cells[Cell.SEGMENT_FIRST]!);
      queueCells[(queue.block + QueueWord.DONE) >>> 1] = queue.tally.total();
    }
    this.shared.control[Word.JOBS_RESERVED] = this.ids.size;
  }

  /** Where a record over the row's body would start: for `record.*Of` readers of `TIME` and behind. */
  bodyOffset(row: number): number {
    return this.shared.ref[row]! * ARENA_UNIT_BYTES - BODY;
  }

  /** The row of a live, dead or kept job, or 0. `hint` is tried first. */
  find(id: number, hint = 0): number {
    if (hint > 0 && hint < this.table.high && this.shared.id[hint] === id && this.table.state(hint) !== State.FREE) {
      return hint;
    }
    return Math.max(0, this.ids.find(id));
  }

  queueOf(row: number): QueueState {
    return this.queues[this.shared.queue[row]!]!;
  }

  attributeText(row: number, attribute: number): string {
    const offset = this.bodyOffset(row);
    const at = record.attributeAt(this.shared.arena, offset, attribute);
    if (at < 0) return '';
    const u8 = this.shared.arena.u8;
    return text.decode(u8.slice(at + 2, at + 2 + (u8[at]! | (u8[at + 1]! << 8))));
  }

  /** A delayed row's time has come, or a kept one's retention is over. */
  due(row: number): void {
    if (this.shared.runAt[row]! > this.wallMs) {
      this.delays.insert(row, this.shared.runAt[row]!);
      return;
    }
    if (this.table.state(row) === State.DONE) {
      this.table.move(row, Event.FORGET);
      this.#release(row);
      return;
    }
    const queue = this.queueOf(row);
    this.table.move(row, Event.DUE);
    this.#delayed(queue, -1);
    this.#ready(row, queue);
  }

  /** The wall clock went back: every row that waits for it is sorted in anew. */
  rewind(wallMs: number): void {
    this.expiries.rewind(wallMs);
    this.delays.reset(wallMs);
    for (let row = 1; row < this.table.high; row++) {
      const state = this.table.state(row);
      if (state === State.DELAYED || state === State.DONE) this.delays.insert(row, this.shared.runAt[row]!);
    }
  }

  /** Takes a row out of whatever holds it, ahead of the record that will say why. An offered row's lease must be over. */
  takeOut(row: number): void {
    const queue = this.queueOf(row);
    this.#unlist(row, queue);
    this.table.move(row, Event.TAKE_OUT);
    add(this.shared.queues, queue.block + QueueWord.SETTLING, 1);
  }

  /** An offered row that nobody leased goes back into the order, at its place. */
  withdraw(row: number): void {
    const queue = this.queueOf(row);
    this.leases.cancel(row);
    this.table.move(row, Event.WITHDRAW);
    this.#ready(row, queue);
  }

  /** `owner` is told when the row's job ends. */
  watch(row: number, owner: number): void {
    this.#outcomes.watch(row, owner);
  }

  /** Tells `owner` how a job that is gone ended, if that is still known. */
  tell(owner: number, id: number): void {
    this.#outcomes.tell(owner, id);
  }

  /** Rows of a queue's dead list after the row of `after` (0 = from the first), oldest death first. */
  nextDead(queue: QueueState, row: number): number {
    return row === 0 ? queue.deadFirst : this.shared.next[row]!;
  }

  /** The row behind the job of `id` in a queue's dead list, 0 = none: also when that job has left the list. */
  deadAfter(queue: QueueState, id: number): number {
    for (let after = id; after !== 0; ) {
      const row = this.find(after);
      const isDead = row !== 0 && this.table.state(row) === State.DEAD && this.shared.queue[row] === queue.id;
      if (isDead) return after === id ? this.shared.next[row]! : row;
      const next = this.#deadNext.get(after);
      // Not one of the last to leave: nobody knows where it stood.
      if (next === undefined) return queue.deadFirst;
      after = next;
    }
    return 0;
  }

  /** A job's payload bytes, copied out. Throws as `LogReader.read`. */
  payload(row: number): Uint8Array {
    const { memory, offset, bytes } = this.pager.body(row);
    const end = offset + BODY + bytes;
    return memory.u8.slice(end - record.sizeOf(memory, offset), end);
  }

  #enqueue(memory: Memory, offset: number, position: number): void {
    const { shared } = this;
    const id = record.idOf(memory, offset);
    const queue = this.queues[record.queueOf(memory, offset)] ?? this.#undeclared(record.queueOf(memory, offset));
    const attributes = record.attributesOf(memory, offset);
    let owner = 0;
    let request = 0;
    if ((attributes & Attribute.WATCH) !== 0 && !this.replaying) {
      const at = record.attributeAt(memory, offset, Attribute.WATCH);
      owner = memory.i32[at >>> 2]!;
      request = memory.i32[(at >>> 2) + 1]!;
    }
    let key = '';
    if ((attributes & Attribute.KEY) !== 0) {
      key = this.#keyOf(memory, offset, queue.id);
      const holder = this.#holderOf(key, record.timeOf(memory, offset));
      if (request !== 0) {
        this.listener?.verdict(owner, request, holder === undefined ? id : shared.id[holder]!, holder !== undefined);
      }
      if (holder !== undefined) {
        this.#reservedBack++;
        if (!this.replaying) this.listener?.duplicate(id, queue.id, record.jobLevelOf(memory, offset));
        return;
      }
    }
    const row = this.#insert(memory, offset, record.bytesOf(memory, offset) - BODY, queue, position);
    if (key !== '') this.#keys.set(key, row);
    if (owner !== 0 && request === 0) this.#outcomes.watch(row, owner);
    shared.queues[queue.block + QueueWord.LIVE]!++;
    shared.cells[Cell.ENQUEUED]!++;
    const runAt = record.runAtOf(memory, offset);
    shared.runAt[row] = runAt;
    if (this.#waits(memory, offset, runAt)) {
      this.table.move(row, Event.ENQUEUE_LATER);
      this.#delayed(queue, 1);
      this.delays.insert(row, runAt);
    } else {
      this.table.move(row, Event.ENQUEUE);
      this.#ready(row, queue);
    }
  }

  /** A job that asked for no delay waits for no clock: one that was set back does not hold it. */
  #waits(memory: Memory, offset: number, runAt: number): boolean {
    if (runAt <= this.wallMs) return false;
    const asked = (record.attributesOf(memory, offset) & Attribute.RUN_AT) !== 0;
    return asked || runAt !== record.timeOf(memory, offset);
  }

  /**
   * Who held a key at a time: by the record's times, so that a replay under another wall clock decides as the run did.
   */
  #holderOf(key: string, atMs: number): number | undefined {
    const holder = this.#keys.get(key);
    if (holder === undefined || this.table.state(holder) !== State.DONE) return holder;
    return this.shared.runAt[holder]! > atMs ? holder : undefined;
  }

  /**
   * Jobs may stand before the record that declares their queue: in a log whose head was dropped, and in a batch behind
   * one that a full disk refused.
   */
  #undeclared(id: number): QueueState {
    const queue = new QueueState(id, this.shared, UNDECLARED);
    queue.declared = false;
    this.queues[id] = queue;
    return queue;
  }

  /** A new row for the job whose record is at `offset`; the caller puts it into a list. */
  #insert(memory: Memory, offset: number, bytes: number, queue: QueueState, position: number): number {
    const { shared } = this;
    const row = this.table.take();
    assert(row !== 0, 'the job table is full');
    this.pager.store(row, memory, offset, bytes, position);
    shared.id[row] = record.idOf(memory, offset);
    shared.queue[row] = queue.id;
    shared.priority[row] = memory.i32[(offset + At.ROW) >>> 2]!;
    shared.counts[row] = 0;
    shared.position[row] = position;
    this.ids.insert(row);
    const expiresAt = record.attributeAt(memory, offset, Attribute.EXPIRES_AT);
    if (expiresAt >= 0) this.expiries.insert(row, memory.f64[expiresAt >>> 3]!, this.wallMs);
    this.liveBytes += record.paddedBytes(bytes + BODY);
    return row;
  }

  /** A job as compaction wrote it. One that is known needs nothing but its new place; when replay meets it, it is in. */
  #image(memory: Memory, offset: number, position: number): void {
    const { shared } = this;
    const known = this.ids.find(record.idOf(memory, offset));
    if (known >= 0) {
      shared.position[known] = position;
      return;
    }
    if (!this.replaying) return;
    const queue = this.queues[record.queueOf(memory, offset)] ?? this.#undeclared(record.queueOf(memory, offset));
    const tail = record.imageTail(memory, offset);
    const row = this.#insert(memory, offset, record.bodyEnd(memory, offset) - offset - BODY, queue, position);
    const counts = memory.i32[(tail + ImageAt.COUNTS) >>> 2]!;
    const errorsAt = tail + ImageAt.TEXTS;
    const errorBytes = memory.i32[(tail + ImageAt.ERRORS) >>> 2]!;
    const resultBytes = memory.i32[(tail + ImageAt.RESULT) >>> 2]!;
    const resultAt = errorsAt + errorBytes;
    const runAt = memory.f64[(tail + ImageAt.RUN_AT) >>> 3]!;
    this.table.count(row, counts & 0xffff, (counts >>> 16) & 0xff);
    if (counts << 8 !== 0) this.expiries.cancel(row);
    if (errorBytes > 0) {
      const json = text.decode(memory.u8.slice(errorsAt, errorsAt + errorBytes));
      this.errors.set(row, JSON.parse(json) as StoredError[]);
    }
    const state = counts >>> 24;
    const holdsKey = state === ImageState.LIVE || (state === ImageState.DONE && this.#keyRetention(row) > 0);
    if (holdsKey && (record.attributesOf(memory, offset) & Attribute.KEY) !== 0) {
      this.#keys.set(this.#keyOf(memory, offset, queue.id), row);
    }
    shared.runAt[row] = runAt;
    switch (state) {
      case ImageState.DEAD:
        this.table.move(row, Event.ENQUEUE);
        this.table.move(row, Event.BURY);
        this.reasons.set(row, REASONS[memory.i32[(tail + ImageAt.REASON) >>> 2]!] ?? 'none');
        this.#addDead(row, queue);
        if (resultBytes > 0) this.#setCheckpoint(row, memory.u8.slice(resultAt, resultAt + resultBytes));
        return;
      case ImageState.DONE:
        this.table.move(row, Event.ENQUEUE);
        this.table.move(row, Event.FINISH_KEPT);
        if (resultBytes >= 0) this.results.set(row, memory.u8.slice(resultAt, resultAt + resultBytes));
        this.delays.insert(row, runAt);
        return;
      default: {
        shared.queues[queue.block + QueueWord.LIVE]!++;
        // A checkpoint that stands before the image may be later than it, and is never earlier.
        const orphan = this.#orphans.get(shared.id[row]!);
        if (orphan?.counts === this.#countsOf(row)) this.#setCheckpoint(row, orphan.bytes);
        else if (resultBytes > 0) this.#setCheckpoint(row, memory.u8.slice(resultAt, resultAt + resultBytes));
        if (this.#waits(memory, offset, runAt)) {
          this.table.move(row, Event.ENQUEUE_LATER);
          this.#delayed(queue, 1);
          this.delays.insert(row, runAt);
        } else {
          this.table.move(row, Event.ENQUEUE);
          this.#ready(row, queue);
        }
      }
    }
  }

  /** A run's word of how far it is: only of the run that the job is in, by its counts. */
  #checkpoint(memory: Memory, offset: number): void {
    const id = record.idOf(memory, offset);
    const at = offset + At.ATTRIBUTES;
    const bytes = memory.u8.slice(at, at + record.sizeOf(memory, offset));
    const counts = record.attemptsOf(memory, offset) | (record.crashesOf(memory, offset) << 16);
    const row = this.find(id, record.rowOf(memory, offset));
    if (row === 0) {
      if (this.replaying) this.#orphans.set(id, { counts, bytes });
    } else if (this.isLive(row) && this.#countsOf(row) === counts) {
      this.#setCheckpoint(row, bytes);
    }
  }

  #countsOf(row: number): number {
    return this.table.attempts(row) | (this.table.crashes(row) << 16);
  }

  #setCheckpoint(row: number, bytes: Uint8Array): void {
    this.liveBytes += bytes.length - (this.checkpoints.get(row)?.length ?? 0);
    if (bytes.length === 0) this.checkpoints.delete(row);
    else this.checkpoints.set(row, bytes);
  }

  #addDead(row: number, queue: QueueState): void {
    const { next, prev } = this.shared;
    prev[row] = queue.deadLast;
    next[row] = 0;
    if (queue.deadLast === 0) queue.deadFirst = row;
    else next[queue.deadLast] = row;
    queue.deadLast = row;
    this.shared.queues[queue.block + QueueWord.DEAD]!++;
  }

  #ack(memory: Memory, offset: number): void {
    const size = record.bytesOf(memory, offset) - At.ATTRIBUTES;
    const at = offset + At.ATTRIBUTES;
    const result = size >= 0 ? memory.u8.slice(at, at + size) : undefined;
    this.#finish(record.idOf(memory, offset), record.rowOf(memory, offset), record.timeOf(memory, offset), result);
  }

  #ackMany(memory: Memory, offset: number): void {
    const time = record.timeOf(memory, offset);
    const end = offset + record.bytesOf(memory, offset);
    for (let at = offset + record.HEADER_BYTES; at < end; at += 16) {
      this.#finish(memory.f64[at >>> 3]!, memory.i32[(at + 8) >>> 2]!, time, undefined);
    }
  }

  #finish(id: number, hint: number, timeMs: number, result: Uint8Array | undefined): void {
    const row = this.find(id, hint);
    if (row === 0 || !this.isLive(row)) return;
    const queue = this.queueOf(row);
    this.#left(row, queue);
    if (this.checkpoints.size > 0) this.#setCheckpoint(row, NONE);
    this.#done++;
    queue.tally.add(this.#segmentOf(this.shared.position[row]!));
    this.shared.queueCells[(queue.block + QueueWord.DONE) >>> 1]!++;
    this.listener?.event(EVENT_COMPLETED, queue, id, result);
    const status = result === undefined ? Outcome.DONE : Outcome.DONE_WITH_RESULT;
    this.#outcomes.end(row, id, status, result);
    if (!queue.declared) {
      this.table.move(row, Event.FINISH_KEPT);
      if (result !== undefined) this.results.set(row, result);
      this.shared.runAt[row] = timeMs;
      queue.early.push(row);
      return;
    }
    const keyKept = this.#keyRetention(row);
    const keep = Math.max(queue.config.resultRetention, keyKept);
    if (keep > 0 && timeMs + keep > this.wallMs) {
      if (keyKept <= 0) this.#releaseKey(row);
      this.table.move(row, Event.FINISH_KEPT);
      if (result !== undefined) this.results.set(row, result);
      this.shared.runAt[row] = timeMs + keep;
      this.delays.insert(row, timeMs + keep);
      return;
    }
    this.table.move(row, Event.FINISH);
    if (!this.replaying) this.#outcomes.remember(id, status, result);
    this.#release(row);
  }

  #retry(memory: Memory, offset: number): void {
    const row = this.find(record.idOf(memory, offset), record.rowOf(memory, offset));
    if (row === 0 || !this.isLive(row)) return;
    const queue = this.queueOf(row);
    this.#left(row, queue);
    const runAt = record.timeOf(memory, offset);
    this.expiries.cancel(row);
    this.table.count(row, record.attemptsOf(memory, offset), record.crashesOf(memory, offset));
    const error = this.#failure(row, memory, offset);
    if (!this.replaying) {
      this.shared.cells[Cell.RETRIED]!++;
      if (error !== undefined) this.listener?.event(EVENT_FAILED, queue, this.shared.id[row]!, error);
    }
    this.#again(row, queue, runAt);
  }

  #bury(memory: Memory, offset: number): void {
    const row = this.find(record.idOf(memory, offset), record.rowOf(memory, offset));
    if (row === 0 || !this.isLive(row)) return;
    const queue = this.queueOf(row);
    const id = this.shared.id[row]!;
    this.#left(row, queue);
    this.table.count(row, record.attemptsOf(memory, offset), record.crashesOf(memory, offset));
    this.table.move(row, Event.BURY);
    const reason = record.reasonOf(memory, offset);
    this.reasons.set(row, reason);
    this.#failure(row, memory, offset);
    this.#releaseKey(row);
    this.#deadNext.delete(id);
    this.#addDead(row, queue);
    this.shared.cells[Cell.DEAD]!++;
    if (this.replaying) return;
    const errors = this.errors.get(row);
    const told = utf8.encode(JSON.stringify({ reason, error: errors?.[errors.length - 1] }));
    this.listener?.event(EVENT_DEAD, queue, id, told);
    this.#outcomes.end(row, id, Outcome.DEAD, told);
  }

  #cancel(memory: Memory, offset: number): void {
    const row = this.find(record.idOf(memory, offset), record.rowOf(memory, offset));
    if (row === 0 || !this.isLive(row)) return;
    this.#left(row, this.queueOf(row));
    this.#removed(row, Outcome.CANCELLED);
    this.shared.cells[Cell.CANCELLED]!++;
  }

  #redrive(memory: Memory, offset: number): void {
    const row = this.find(record.idOf(memory, offset), record.rowOf(memory, offset));
    if (row === 0 || this.table.state(row) !== State.DEAD) return;
    const queue = this.queueOf(row);
    this.#undead(row, queue);
    this.table.count(row, 0, 0);
    this.shared.queues[queue.block + QueueWord.LIVE]!++;
    this.#again(row, queue, Math.min(record.timeOf(memory, offset), this.wallMs));
  }

  #purge(memory: Memory, offset: number): void {
    const row = this.find(record.idOf(memory, offset), record.rowOf(memory, offset));
    if (row === 0 || this.table.state(row) !== State.DEAD) return;
    this.#undead(row, this.queueOf(row));
    this.#removed(row, Outcome.REMOVED);
  }

  #declare(memory: Memory, offset: number, position: number): void {
    const id = record.queueOf(memory, offset);
    const at = offset + At.ATTRIBUTES;
    const config = JSON.parse(text.decode(memory.u8.slice(at, at + record.sizeOf(memory, offset)))) as QueueRecord;
    const queue = this.queues[id];
    // A copy that compaction made says nothing new of a queue that is known: later words may stand before it.
    const isStale = config.head !== undefined && queue?.declared === true;
    if (this.replaying && queue?.declared !== true) {
      assert(queueNamed(this.shared, config.name, id) === id, 'two queues of one name in the log');
    }
    if (queue === undefined) {
      this.queues[id] = new QueueState(id, this.shared, config);
    } else if (!queue.declared) {
      queue.declared = true;
      queue.config = config;
      queue.armMs = config.visibility;
      for (const row of queue.early.splice(0)) {
        const keyKept = this.#keyRetention(row);
        if (keyKept <= 0) this.#releaseKey(row);
        this.shared.runAt[row]! += Math.max(config.resultRetention, keyKept);
        this.delays.insert(row, this.shared.runAt[row]!);
      }
    } else if (!isStale) {
      queue.config = config;
      queue.armMs = Math.min(queue.armMs, config.visibility);
    }
    const state = this.queues[id]!;
    state.position = position;
    if (config.done !== undefined) state.claimed = position;
    this.shared.queues[state.block + QueueWord.FLAGS]! |= QueueFlag.DECLARED;
    // In a run the settings are shared by whoever gives them, before the record is written.
    if (this.replaying && !isStale) {
      const { visibility, resultRetention, priority = 0 } = config;
      const shared = { ...config, priority, visibilityMs: visibility, resultRetentionMs: resultRetention };
      shareSettings(this.shared, state.block, { ...shared, codec: 'json' });
    }
    if (this.replaying && config.done !== undefined) state.tally.claim(config.done, config.head ?? 1);
  }

  #pause(id: number, paused: boolean, isCopy: boolean): void {
    const queue = this.queues[id];
    if (queue === undefined || (isCopy && (!this.replaying || queue.pauseKnown))) return;
    if (!isCopy) queue.pauseKnown = true;
    if (paused) this.shared.queues[queue.block + QueueWord.FLAGS]! |= QueueFlag.PAUSED;
    else this.shared.queues[queue.block + QueueWord.FLAGS]! &= ~QueueFlag.PAUSED;
    if (paused) this.listener?.paused(queue);
    else this.listener?.ready(queue);
  }

  #bind(memory: Memory, offset: number, position: number): void {
    const queue = record.queueOf(memory, offset);
    const at = offset + At.ATTRIBUTES;
    const pattern = text.decode(memory.u8.slice(at, at + record.sizeOf(memory, offset)));
    if (record.typeOf(memory, offset) === RecordType.UNBIND) this.bindings.unbind(pattern, queue, this.replaying);
    else this.bindings.bind(pattern, queue, position, record.rowOf(memory, offset) === COPIED, this.replaying);
    add(this.shared.control, Word.BINDINGS, 1);
  }

  /** The segment that holds a position; 0 for what is not in the log. */
  #segmentOf(position: number): number {
    const { segmentBases, cells } = this.shared;
    const newest = cells[Cell.SEGMENT_NEWEST]!;
    let segment = Math.min(this.#segment, newest);
    if (position === 0) return 0;
    while (segment < newest && segmentBases[(segment + 1) % SEGMENTS_KEPT]! <= position) segment++;
    while (segmentBases[segment % SEGMENTS_KEPT]! > position) segment--;
    this.#segment = segment;
    return segment;
  }

  #placeOf(position: number): SegmentPlace {
    const { segmentBases, cells } = this.shared;
    const number = this.#segmentOf(position);
    const isNewest = number === cells[Cell.SEGMENT_NEWEST]!;
    const end = isNewest ? cells[Cell.POSITION]! : segmentBases[(number + 1) % SEGMENTS_KEPT]!;
    return { number, base: segmentBases[number % SEGMENTS_KEPT]!, end };
  }

  /** Whether the row's job has not ended. */
  isLive(row: number): boolean {
    const state = this.table.state(row);
    return state !== State.DEAD && state !== State.DONE && state !== State.FREE;
  }

  /** A live row leaves the lists it is in; its lease word becomes idle. */
  #left(row: number, queue: QueueState): void {
    const state = this.table.state(row);
    if (state === State.OFFERED || state === State.LEAVING) {
      add(this.shared.queues, queue.block + QueueWord.SETTLING, -1);
    }
    if (state !== State.LEAVING) this.#unlist(row, queue);
    const lease = this.shared.lease;
    Atomics.store(lease, row, withState(lease[row]!, LeaseState.IDLE));
    if (--this.shared.queues[queue.block + QueueWord.LIVE]! === 0) {
      // Every settling record has been applied: whatever threads that died in between left in these is over.
      this.shared.queues[queue.block + QueueWord.LEASED] = 0;
      this.shared.queues[queue.block + QueueWord.SETTLING] = 0;
    }
  }

  #unlist(row: number, queue: QueueState): void {
    switch (this.table.state(row)) {
      case State.DELAYED:
        this.delays.cancel(row);
        this.#delayed(queue, -1);
        break;
      case State.READY:
        queue.order.remove(row);
        this.settleOldest(queue);
        break;
      case State.OFFERED:
        this.leases.cancel(row);
        break;
      default:
        assert(false, 'a row that is in no list is taken out of one');
    }
  }

  #again(row: number, queue: QueueState, runAt: number): void {
    const live = this.shared.queues;
    // #left has taken it from LIVE; a redriven one was added by its caller.
    if (this.table.state(row) !== State.DEAD) live[queue.block + QueueWord.LIVE]!++;
    this.shared.runAt[row] = runAt;
    if (runAt > this.wallMs) {
      this.table.move(row, Event.RETRY_LATER);
      this.#delayed(queue, 1);
      this.delays.insert(row, runAt);
    } else {
      this.table.move(row, Event.RETRY);
      this.#ready(row, queue);
    }
  }

  #ready(row: number, queue: QueueState): void {
    queue.order.push(row);
    if (queue.order.peek() === row) this.settleOldest(queue);
    this.listener?.ready(queue);
  }

  /** Publishes since when the first row of the order has been ready. */
  settleOldest(queue: QueueState): void {
    const first = queue.order.peek();
    this.shared.queueCells[(queue.block + QueueWord.OLDEST_READY) >>> 1] = first === 0 ? 0 : this.shared.runAt[first]!;
  }

  #delayed(queue: QueueState, by: number): void {
    this.shared.queues[queue.block + QueueWord.DELAYED]! += by;
  }

  #undead(row: number, queue: QueueState): void {
    const { next, prev } = this.shared;
    const before = prev[row]!;
    const after = next[row]!;
    this.#deadNext.set(this.shared.id[row]!, after === 0 ? 0 : this.shared.id[after]!);
    if (this.#deadNext.size > DEAD_NEXT_KEPT) this.#deadNext.delete(this.#deadNext.keys().next().value!);
    if (before === 0) queue.deadFirst = after;
    else next[before] = after;
    if (after === 0) queue.deadLast = before;
    else prev[after] = before;
    next[row] = 0;
    prev[row] = 0;
    this.reasons.delete(row);
    this.shared.queues[queue.block + QueueWord.DEAD]!--;
  }

  #removed(row: number, outcome: number): void {
    const id = this.shared.id[row]!;
    this.table.move(row, Event.REMOVE);
    this.#outcomes.end(row, id, outcome, undefined);
    if (!this.replaying) this.#outcomes.remember(id, outcome, undefined);
    this.#release(row);
  }

  /** The row's job is gone for good. */
  #release(row: number): void {
    this.#releaseKey(row);
    if (this.errors.size > 0) this.errors.delete(row);
    if (this.results.size > 0) this.results.delete(row);
    if (this.checkpoints.size > 0) this.#setCheckpoint(row, NONE);
    this.liveBytes -= record.paddedBytes(this.pager.bytesOf(row) + BODY);
    this.pager.drop(row);
    this.expiries.cancel(row);
    this.ids.remove(row);
    this.table.give(row);
    this.#reservedBack++;
  }

  /** Keeps the error of a RETRY or DEAD; returns its bytes. */
  #failure(row: number, memory: Memory, offset: number): Uint8Array | undefined {
    const size = record.sizeOf(memory, offset);
    if (size === 0) return undefined;
    const bytes = memory.u8.slice(offset + At.ATTRIBUTES, offset + At.ATTRIBUTES + size);
    const errors = this.errors.get(row) ?? [];
    errors.push(JSON.parse(text.decode(bytes)) as StoredError);
    if (errors.length > ERRORS_KEPT) errors.shift();
    this.errors.set(row, errors);
    return bytes;
  }

  #keyOf(memory: Memory, offset: number, queue: number): string {
    const at = record.attributeAt(memory, offset, Attribute.KEY);
    const length = memory.u8[at]! | (memory.u8[at + 1]! << 8);
    return `${queue}:${text.decode(memory.u8.slice(at + 2, at + 2 + length))}`;
  }

  #keyRetention(row: number): number {
    const offset = this.bodyOffset(row);
    const at = record.attributeAt(this.shared.arena, offset, Attribute.KEY_RETENTION);
    return at < 0 ? 0 : this.shared.arena.f64[at / 8]!;
  }

  #releaseKey(row: number): void {
    if (this.#keys.size === 0) return;
    const offset = this.bodyOffset(row);
    if ((record.attributesOf(this.shared.arena, offset) & Attribute.KEY) === 0) return;
    const key = this.#keyOf(this.shared.arena, offset, this.shared.queue[row]!);
    if (this.#keys.get(key) === row) this.#keys.delete(key);
  }
}

/** What is assumed of a queue until its declaration comes. */
const UNDECLARED: QueueRecord = {
  name: '',
  attempts: 1,
  crashes: 1,
  base: 0,
  max: 0,
  jitter: 'none',
  visibility: 30_000,
  resultRetention: 0,
  level: 0,
};

export const EVENT_DEAD = EVENTS.indexOf('dead' satisfies EventName);
export const EVENT_FAILED = EVENTS.indexOf('failed' satisfies EventName);
export const EVENT_COMPLETED = EVENTS.indexOf('completed' satisfies EventName);
export const EVENT_EXPIRED = EVENTS.indexOf('expired' satisfies EventName);
