/**
 * The scheduler agent: follows the log writer's watermark, applies each record to the jobs, keeps every group's ready
 * ring filled up to its credit, fires timers, ends leases whose time or thread is over, and answers questions.
 * One worker thread (`scheduler-thread`), or stepped by a simulation. Sole writer of table, order and wheels.
 *
 * S1  A record is applied only below the watermark: nothing is handed out before it is as durable as it asked to be.
 * S2  It never waits for room in the submit ring: its own records stay in `#outbox`, in order, and it goes on.
 * S3  A row is armed in `leases` before it enters a ready ring. When its timer fires, the lease word says what to do;
 *     a lease whose deadline moved is armed again, so extending costs its holder one store.
 * S4  What a dead thread held is released only after everything it submitted has been applied (OwnerWord.DRAINED).
 * S5  A ready ring is in order, and all of it precedes the order: a row that goes before one that is in the ring makes
 *     the scheduler take the ring back and offer anew.
 */
import { type Agent, feed, leaveGroup, wakeOwners } from '../../native-free/agent.js';
import { assert } from '../../native-free/assert.js';
import { compareExchange, load, store } from '../../native-free/atomics.js';
import { backoffMs } from '../../native-free/backoff.js';
import {
  BrokerState,
  Cell,
  GroupWord,
  LeaseState,
  Owner,
  OwnerState,
  OwnerWord,
  QueueFlag,
  QueueWord,
  READY_SLOTS,
  type Shared,
  Terms,
  Wants,
  Word,
} from '../../native-free/layout.js';
import { Outbox } from '../../native-free/outbox.js';
import * as record from '../../native-free/record.js';
import { Level, limitsWord, REASONS, type Reason, RecordType } from '../../native-free/record.js';
import { initialiseRing, Ring } from '../../native-free/ring.js';
import type { Clock } from '../clock.js';
import { errnoOf } from '../log/storage.js';
import { POISON_CODES } from '../log/writer.js';
import { Answers } from './answers.js';
import { Compactor, type LogPlace } from './compactor.js';
import { EVENT_EXPIRED, type Jobs, type Listener, type QueueState } from './jobs.js';
import { leaseState, leftMs, nextOffer, withState } from './lease.js';
import { EVENT_OVERRUN, eventBit, Reply } from './questions.js';
import type { Replies } from './replies.js';
import { Event, State } from './transitions.js';

const RESERVATIONS_A_STEP = 256;
const OFFERS_A_STEP = 1024;
const REFUSED_AGAIN_MS = 50;
/** How often a lease without a deadline comes up. */
const BOUND_LOOK_MS = 3_600_000;
/** How often a parked scheduler looks at the wall clock while delayed jobs wait for it. */
const WALL_LOOK_MS = 1000;

/** A group of consumers: one ready ring, filled from one queue. */
interface Group {
  readonly queue: QueueState;
  readonly ring: Ring;
  readonly block: number;
  active: boolean;
  /** The place in the order of the last job that was offered. */
  lastPriority: number;
  lastRunAt: number;
  lastId: number;
}

export class Scheduler implements Agent, Listener {
  finished = false;
  readonly #shared: Shared;
  readonly #jobs: Jobs;
  readonly #replies: Replies;
  readonly #clock: Clock;
  readonly #random: () => number;
  readonly #ring: Ring;
  readonly #outbox: Outbox;
  readonly #answers: Answers;
  readonly #groups: Group[] = [];
  #active: Group[] = [];
  readonly #adopted: QueueState[] = [];
  readonly #offers = new Int32Array(2 * OFFERS_A_STEP);
  readonly #recalled = new Int32Array(2 * READY_SLOTS);
  readonly #zeroMs: number;
  readonly #compactor: Compactor;
  #cursor: number;
  /** Where the batch at the cursor ends, and where in the log the next record of it lies. */
  #batchEnd: number;
  #position = 0;
  #monotonicMs = 0;
  #wallMs = 0;
  #deathsSeen = 0;
  #listening = 0;
  #refusedUntilMs = 0;
  /** Records that the disk was too full for: are some in the outbox, and up to where in the ring are the others. */
  #hasRefused = false;
  #refusedTo = 0;
  readonly #onLease = (row: number): void => this.#leaseTimer(row);
  readonly #onExpiry = (row: number): void => this.#expire(row);
  readonly #onDelay = (row: number): void => this.#jobs.due(row);

  constructor(
    shared: Shared,
    jobs: Jobs,
    replies: Replies,
    clock: Clock,
    log: LogPlace,
    random: () => number = Math.random,
  ) {
    this.#shared = shared;
    this.#jobs = jobs;
    this.#replies = replies;
    this.#clock = clock;
    this.#random = random;
    this.#ring = new Ring(shared.submitPlace, Owner.SCHEDULER);
    this.#outbox = new Outbox(shared, this.#ring);
    this.#cursor = this.#ring.head();
    this.#batchEnd = this.#cursor;
    this.#refusedTo = this.#cursor;
    this.#compactor = new Compactor(shared, jobs, this.#outbox, log, {
      reply: (owner, request, status) => replies.send(owner, Reply.ANSWER, request, status, 0, 0),
      recall: (queue) => this.#recall(this.#groups[queue.group]!),
    });
    this.#zeroMs = shared.cells[Cell.MONOTONIC_ZERO_MS]!;
    this.#answers = new Answers(shared, jobs, replies, this.#outbox, {
      takeOut: (row) => this.#tryTakeOut(row),
      rearm: (row) => this.#rearm(row),
      nowMs: () => this.#wallMs,
      compact: (owner, request) => this.#compactor.ask(owner, request),
    });
    jobs.listener = this;
    this.#readClocks();
    // Taken out before anything is offered: none of them runs again before the charge is durable.
    for (const row of log.crashed ?? []) this.#charge(row, 'crash', 'the process ended while the job ran');
  }

  step(): number {
    try {
      return this.#work();
    } catch (error) {
      // The log cannot be read back (G2 in pager.ts); anything else is a breach, and ends this thread.
      const code = POISON_CODES.indexOf(errnoOf(error) as (typeof POISON_CODES)[number]);
      if (code < 0) throw error;
      compareExchange(this.#shared.control, Word.POISON, 0, code);
      wakeOwners(this.#shared, Wants.DURABLE | Wants.ROOM | Wants.READY | Wants.REPLY);
      return 1;
    }
  }

  #work(): number {
    this.#readClocks();
    let work = this.#follow();
    work += this.#jobs.leases.advance(this.#monotonicMs, this.#onLease);
    work += this.#jobs.delays.advance(this.#wallMs, this.#onDelay);
    work += this.#jobs.expiries.advance(this.#wallMs, this.#onExpiry);
    work += this.#answers.retry();
    work += this.#deaths();
    // What compaction has copied must be in the ring before its job can be handed out (X2 in compactor.ts).
    if (!this.#compactor.holdsRows) work += this.#fill();
    work += this.#jobs.pager.relieve();
    work += this.#submit();
    if (this.#outbox.bytes === 0) work += this.#compactor.step(this.#monotonicMs);
    work += this.#replies.flush();
    if (work > 0) {
      this.#jobs.settle();
      // Last, so that whoever sees the head at the watermark also sees what was offered.
      this.#ring.releaseTo(this.#cursor);
      wakeOwners(this.#shared, Wants.ROOM);
    } else {
      this.#mayFinish();
    }
    return work;
  }

  idleForMs(): number {
    const { leases, delays, expiries } = this.#jobs;
    let ms = leases.nextAtMs() - this.#monotonicMs;
    if (delays.size > 0 || expiries.waiting) {
      ms = Math.min(ms, delays.nextAtMs() - this.#wallMs, expiries.nextAtMs() - this.#wallMs, WALL_LOOK_MS);
    }
    if (this.#replies.waiting || this.#answers.waiting) ms = Math.min(ms, 1);
    ms = Math.min(ms, this.#compactor.idleForMs(this.#monotonicMs));
    if (this.#outbox.bytes > 0) ms = Math.min(ms, Math.max(1, this.#refusedUntilMs - this.#monotonicMs));
    return Math.max(0, ms);
  }

  ready(queue: QueueState): void {
    if (queue.group < 0) return;
    const group = this.#groups[queue.group]!;
    if (group.active) return;
    group.active = true;
    this.#active.push(group);
  }

  /** What is in the ready ring of a paused queue goes back into the order; entries left there are taken out. */
  paused(queue: QueueState): void {
    const { lease } = this.#shared;
    const jobs = this.#jobs;
    for (let row = 1; row < jobs.table.high; row++) {
      if (jobs.table.state(row) !== State.OFFERED || jobs.queueOf(row) !== queue) continue;
      if (leaseState(load(lease, row)) !== LeaseState.READY) continue;
      if (jobs.table.tryEndLease(row, LeaseState.READY)) jobs.withdraw(row);
    }
    if (queue.group >= 0) this.#recall(this.#groups[queue.group]!);
  }

  event(name: number, queue: QueueState, id: number, bytes: Uint8Array | undefined): void {
    if (this.#listening === 0 || this.#jobs.replaying) return;
    this.#toListeners(name, queue.id, 0, id, bytes);
  }

  #toListeners(name: number, request: number, row: number, id: number, bytes: Uint8Array | undefined): void {
    const { owners, control } = this.#shared;
    const bit = eventBit(name);
    const seen = load(control, Word.OWNERS_SEEN);
    for (let owner: number = Owner.FIRST; owner <= seen; owner++) {
      if ((load(owners, owner * OwnerWord.WORDS + OwnerWord.WANTS) & bit) === 0) continue;
      this.#replies.send(owner, Reply.EVENT, request, name, row, id, bytes);
    }
  }

  duplicate(id: number, queue: number, level: number): void {
    this.#outbox.appendShort(RecordType.CANCEL, level, id, queue, 0, this.#wallMs);
  }

  verdict(owner: number, request: number, id: number, duplicate: boolean): void {
    this.#replies.send(owner, Reply.VERDICT, request, duplicate ? 1 : 0, 0, id);
  }

  #readClocks(): void {
    this.#monotonicMs = Math.floor(this.#clock.monotonicMs() - this.#zeroMs);
    const wallMs = Math.floor(this.#clock.wallMs());
    const jobs = this.#jobs;
    if (wallMs < jobs.delays.nowMs) jobs.rewind(wallMs);
    this.#wallMs = wallMs;
    jobs.wallMs = wallMs;
  }

  /** Applies what has been committed since the last step and frees its slots (S1). */
  #follow(): number {
    const shared = this.#shared;
    const committed = load(shared.control, Word.COMMITTED);
    if (this.#cursor === committed) return 0;
    const { places } = shared;
    const slotMask = shared.sizes.ringSlots - 1;
    this.#listening = load(shared.control, Word.LISTENERS);
    const memory = shared.slots;
    const jobs = this.#jobs;
    let work = 0;
    while (this.#cursor !== committed && work < RESERVATIONS_A_STEP) {
      if (this.#cursor === this.#batchEnd) {
        const place = 2 * (this.#cursor & slotMask);
        this.#position = places[place]!;
        this.#batchEnd = (this.#cursor + places[place + 1]!) | 0;
      }
      const count = this.#ring.countAt(this.#cursor);
      let at = shared.slotOffset(this.#cursor);
      const end = at + count * record.SLOT_BYTES;
      while (at < end) {
        const type = record.typeOf(memory, at);
        if (type === RecordType.VOID) break;
        const bytes = record.paddedBytes(record.bytesOf(memory, at));
        const level = record.levelOf(memory, at);
        if (level === Level.REFUSED) this.#refused(at, type);
        else if (type === RecordType.ASK) {
          // Whoever hears the answer may look at the counters next.
          jobs.settle();
          this.#answers.answer(memory, at);
        } else if (level === Level.MEMORY) jobs.apply(memory, at, 0);
        else {
          jobs.apply(memory, at, this.#position);
          if (type === RecordType.HEAD) this.#compactor.headCommitted();
          this.#position += bytes;
        }
        at += bytes;
      }
      this.#ring.release(this.#cursor, count);
      this.#cursor = (this.#cursor + count) | 0;
      work++;
    }
    return work;
  }

  /** The disk was full for this record. An enqueue is over, its producer is told; anything else is tried again. */
  #refused(at: number, type: number): void {
    const memory = this.#shared.slots;
    if (type === RecordType.IMAGE || type === RecordType.HEAD) {
      this.#compactor.refused();
      return;
    }
    if (type === RecordType.ENQUEUE) {
      Atomics.sub(this.#shared.control, Word.JOBS_RESERVED, 1);
      return;
    }
    const bytes = record.paddedBytes(record.bytesOf(memory, at));
    const copy = memory.u8.slice(at, at + bytes);
    this.#outbox.appendCopy(copy, Level.FSYNC);
    this.#hasRefused = true;
    this.#refusedUntilMs = this.#monotonicMs + REFUSED_AGAIN_MS;
  }

  /** Offers rows in order until each ready ring holds its credit (S3). */
  #fill(): number {
    if (load(this.#shared.control, Word.POISON) !== 0) return 0;
    if (load(this.#shared.control, Word.GROUPS) !== this.#groups.length) this.#adoptGroups();
    if (this.#active.length === 0) return this.#announceGroups();
    let work = 0;
    const still: Group[] = [];
    for (const group of this.#active) {
      work += this.#offer(group);
      if (group.queue.order.size > 0) still.push(group);
      else group.active = false;
    }
    this.#active = still;
    return work + this.#announceGroups();
  }

  #adoptGroups(): void {
    const shared = this.#shared;
    const count = load(shared.control, Word.GROUPS);
    for (let index = this.#groups.length; index < count; index++) {
      const block = index * GroupWord.WORDS;
      const id = load(shared.groups, block + GroupWord.QUEUE);
      const queue = this.#jobs.queues[id];
      // The queue's own record may still be on its way.
      if (queue === undefined) return;
      const place = shared.readyPlace(index);
      initialiseRing(place);
      const ring = new Ring(place, Owner.SCHEDULER);
      const group = { queue, ring, block, active: false, lastPriority: 0, lastRunAt: 0, lastId: 0 };
      this.#groups.push(group);
      queue.group = index;
      this.ready(queue);
      this.#adopted.push(queue);
    }
  }

  /** Tells whoever waits for it that a new group has been filled for the first time. */
  #announceGroups(): number {
    const count = this.#adopted.length;
    for (const queue of this.#adopted) store(this.#shared.queues, queue.block + QueueWord.GROUP, queue.group + 1);
    this.#adopted.length = 0;
    return count;
  }

  #offer(group: Group): number {
    const shared = this.#shared;
    const { queue, ring, block } = group;
    if (ring.used() > 0 && this.#isOvertaken(group)) this.#recall(group);
    const paused = (shared.queues[queue.block + QueueWord.FLAGS]! & QueueFlag.PAUSED) !== 0;
    const credit = Math.min(load(shared.groups, block + GroupWord.CREDIT), READY_SLOTS);
    const room = paused ? 0 : Math.min(credit - ring.used(), queue.order.size, OFFERS_A_STEP);
    const { lease } = shared;
    const armAt = this.#monotonicMs + queue.armMs;
    const { pager } = this.#jobs;
    let count = 0;
    for (; count < room; count++) {
      if (pager.out > 0 && !pager.tryBringIn(queue.order.peek(), count > 0 || ring.used() > 0)) break;
      const row = queue.order.pop();
      if (this.#jobs.checkpoints.has(row)) record.markCheckpointed(shared.arena, this.#jobs.bodyOffset(row));
      const word = nextOffer(lease[row]!);
      shared.holder[row] = 0;
      store(lease, row, word);
      this.#jobs.table.move(row, Event.OFFER);
      this.#jobs.leases.insert(row, armAt);
      this.#offers[2 * count] = row;
      this.#offers[2 * count + 1] = word;
    }
    if (count > 0) {
      assert(ring.tryPushMany(this.#offers, count), 'a ready ring holds no more than its credit');
      const last = this.#offers[2 * count - 2]!;
      group.lastPriority = shared.priority[last]!;
      group.lastRunAt = shared.runAt[last]!;
      group.lastId = shared.id[last]!;
      feed(shared, queue.group, count);
    }
    shared.groups[block + GroupWord.BACKLOG] = queue.order.size;
    this.#jobs.settleOldest(queue);
    return count;
  }

  /** Whether a job has become ready that goes before one that is in the ring (S5). */
  #isOvertaken(group: Group): boolean {
    const { priority, runAt, id } = this.#shared;
    const { lastPriority, lastRunAt, lastId } = group;
    const row = group.queue.order.peek();
    if (row === 0) return false;
    if (priority[row]! !== lastPriority) return priority[row]! < lastPriority;
    return runAt[row]! !== lastRunAt ? runAt[row]! < lastRunAt : id[row]! < lastId;
  }

  /**
   * Takes back what the ring holds: what nobody has claimed goes into the order again. All of it by one exchange: a
   * consumer that came in between would get what stands behind the part that was taken back.
   */
  #recall(group: Group): void {
    const { lease } = this.#shared;
    const taken = this.#recalled;
    const count = group.ring.tryTakeMany(taken, READY_SLOTS);
    for (let i = 0; i < count; i++) {
      const row = taken[2 * i]!;
      const word = taken[2 * i + 1]!;
      // Anything else: the entry is stale.
      if (compareExchange(lease, row, word, withState(word, LeaseState.IDLE)) === word) this.#jobs.withdraw(row);
    }
  }

  #leaseTimer(row: number): void {
    const shared = this.#shared;
    const word = load(shared.lease, row);
    switch (leaseState(word)) {
      case LeaseState.READY:
        this.#jobs.leases.insert(row, this.#monotonicMs + this.#jobs.queueOf(row).armMs);
        return;
      case LeaseState.CLAIMING:
        this.#jobs.leases.insert(row, this.#monotonicMs + 1);
        return;
      case LeaseState.LEASED: {
        // It lasts as long as its holder's thread, and is released when that exits.
        const bound = shared.terms[row] === Terms.BOUND;
        const left = bound ? BOUND_LOOK_MS : leftMs(load(shared.deadline, row), this.#monotonicMs);
        if (left > 0) {
          this.#jobs.leases.insert(row, this.#monotonicMs + left);
          return;
        }
        // L4: from here the holder's extend waits for the verdict, so look once more at what it may just have stored.
        const expiring = withState(word, LeaseState.EXPIRING);
        if (compareExchange(shared.lease, row, word, expiring) !== word) return;
        const more = leftMs(load(shared.deadline, row), this.#monotonicMs);
        if (more > 0) {
          store(shared.lease, row, word);
          this.#jobs.leases.insert(row, this.#monotonicMs + more);
          return;
        }
        store(shared.lease, row, withState(word, LeaseState.IDLE));
        this.#lost(row, word);
        shared.cells[Cell.EXPIRED]!++;
        this.event(EVENT_EXPIRED, this.#jobs.queueOf(row), shared.id[row]!, undefined);
        if (shared.terms[row] === Terms.TIMEOUT) this.#charge(row, 'timeout', 'the run took longer than its timeout');
        else this.#charge(row, 'lease', 'the lease expired before the job was acked, failed or extended');
        return;
      }
      default:
        // SETTLED: its record is on the way. If its thread dies first, #release finds it.
        return;
    }
  }

  /** The job should have started by now. One that a consumer is about to have has started. */
  #expire(row: number): void {
    const { table } = this.#jobs;
    const state = table.state(row);
    const isOffered = state === State.OFFERED && leaseState(load(this.#shared.lease, row)) === LeaseState.READY;
    if ((state !== State.READY && state !== State.DELAYED && !isOffered) || this.#tryTakeOut(row) !== true) return;
    const [attempts, crashes] = [table.attempts(row), table.crashes(row)];
    const at = this.#append(RecordType.DEAD, row, this.#wallMs, attempts, crashes, 'expired');
    this.#outbox.payloadText(at, JSON.stringify({ name: 'Error', message: 'the job did not start in time' }));
    this.#outbox.finish(at);
  }

  /** The lease is over at the scheduler's hand: counted, and its holder told. */
  #lost(row: number, word: number): void {
    const queue = this.#jobs.queueOf(row);
    Atomics.sub(this.#shared.queues, queue.block + QueueWord.LEASED, 1);
    const holder = this.#shared.holder[row]!;
    if (holder === 0) return;
    this.#replies.send(holder, Reply.LOST, 0, word, row, this.#shared.id[row]!);
    if (this.#shared.terms[row] === Terms.VISIBILITY) return;
    // A fleet has to see to the thread that may still be at it.
    this.#toListeners(EVENT_OVERRUN, holder, row, word, undefined);
  }

  /** Ends an attempt of an offered row whose lease is over: a RETRY with backoff, or a DEAD record. */
  #charge(row: number, reason: Reason, message: string): void {
    const jobs = this.#jobs;
    const offset = jobs.bodyOffset(row);
    const arena = this.#shared.arena;
    const crashed = reason === 'crash';
    const attempts = Math.min(0xffff, jobs.table.attempts(row) + (crashed ? 0 : 1));
    const crashes = Math.min(0xff, jobs.table.crashes(row) + (crashed ? 1 : 0));
    const dead = crashed ? crashes >= record.crashesOf(arena, offset) : attempts >= record.attemptsOf(arena, offset);
    const { config } = jobs.queueOf(row);
    const error = { name: 'Error', message };
    jobs.takeOut(row);
    const at = dead
      ? this.#append(RecordType.DEAD, row, this.#wallMs, attempts, crashes, reason === 'lease' ? 'attempts' : reason)
      : this.#append(
          RecordType.RETRY,
          row,
          this.#wallMs + (crashed ? 0 : backoffMs(config, attempts, this.#random)),
          attempts,
          crashes,
          reason,
        );
    this.#outbox.payloadText(at, JSON.stringify(error));
    this.#outbox.finish(at);
  }

  #append(type: number, row: number, timeMs: number, attempts: number, crashes: number, reason: Reason): number {
    const { id, queue, arena } = this.#shared;
    const level = record.jobLevelOf(arena, this.#jobs.bodyOffset(row));
    const limits = limitsWord(attempts, crashes, REASONS.indexOf(reason));
    return this.#outbox.append(type, level, id[row]!, queue[row]!, row, timeMs, limits);
  }

  /** Takes a live row out for a cancellation. False: a consumer is between two words, try again; null: too late. */
  #tryTakeOut(row: number): boolean | null {
    const jobs = this.#jobs;
    const state = jobs.table.state(row);
    if (state === State.OFFERED) {
      const word = load(this.#shared.lease, row);
      const from = leaseState(word);
      if (from === LeaseState.CLAIMING) return false;
      if (from === LeaseState.SETTLED || from === LeaseState.IDLE) return null;
      if (!jobs.table.tryEndLease(row, from)) return false;
      if (from === LeaseState.LEASED) this.#lost(row, word);
    } else if (state !== State.DELAYED && state !== State.READY) {
      return null;
    }
    jobs.takeOut(row);
    return true;
  }

  #rearm(row: number): void {
    const jobs = this.#jobs;
    if (row <= 0 || row >= jobs.table.high || jobs.table.state(row) !== State.OFFERED) return;
    const queue = jobs.queueOf(row);
    const left = Math.max(0, leftMs(load(this.#shared.deadline, row), this.#monotonicMs));
    queue.armMs = Math.max(1, Math.min(queue.armMs, left));
    jobs.leases.cancel(row);
    jobs.leases.insert(row, this.#monotonicMs + left);
  }

  /** Releases what dead threads held, once all they submitted has been applied (S4). */
  #deaths(): number {
    const { control, owners } = this.#shared;
    const deaths = load(control, Word.DEATHS);
    if (deaths === this.#deathsSeen) return 0;
    // What a dead thread submitted may be among what the disk had no room for (S4).
    if (this.#hasRefused || ((this.#cursor - this.#refusedTo) | 0) < 0) return 0;
    let work = 0;
    let open = false;
    const seen = load(control, Word.OWNERS_SEEN);
    for (let owner = Owner.FIRST; owner <= seen; owner++) {
      const block = owner * OwnerWord.WORDS;
      const state = load(owners, block + OwnerWord.STATE);
      if (state === OwnerState.DEAD) open = true;
      if (state !== OwnerState.DRAINED) continue;
      if (((this.#cursor - load(owners, block + OwnerWord.DRAINED)) | 0) < 0) {
        open = true;
        continue;
      }
      this.#release(owner);
      work++;
    }
    if (!open) this.#deathsSeen = deaths;
    return work;
  }

  #release(owner: number): void {
    const shared = this.#shared;
    const jobs = this.#jobs;
    const block = owner * OwnerWord.WORDS;
    const claiming = load(shared.owners, block + OwnerWord.CLAIMING) - 1;
    const left = load(shared.owners, block + OwnerWord.LEFT) === 1;
    const exit = load(shared.owners, block + OwnerWord.EXIT);
    for (let row = 1; row < jobs.table.high; row++) {
      if (jobs.table.state(row) !== State.OFFERED) continue;
      const word = load(shared.lease, row);
      switch (leaseState(word)) {
        case LeaseState.READY:
          // It may have taken this row's entry out of the ring. A new offer makes any entry left behind stale.
          if (jobs.table.tryEndLease(row, LeaseState.READY)) jobs.withdraw(row);
          break;
        case LeaseState.CLAIMING:
          if (row === claiming && jobs.table.tryEndLease(row, LeaseState.CLAIMING)) jobs.withdraw(row);
          break;
        case LeaseState.LEASED:
          if (shared.holder[row] !== owner) break;
          if (!jobs.table.tryEndLease(row, LeaseState.LEASED)) break;
          Atomics.sub(shared.queues, jobs.queueOf(row).block + QueueWord.LEASED, 1);
          if (left) jobs.withdraw(row);
          else
            this.#charge(row, 'crash', `the thread that ran the job exited${exit > 0 ? ` with code ${exit - 1}` : ''}`);
          break;
        case LeaseState.SETTLED:
          // Settled, and the record never came: as if it had not been settled.
          if (shared.holder[row] !== owner || !jobs.table.tryEndLease(row, LeaseState.SETTLED)) break;
          Atomics.sub(shared.queues, jobs.queueOf(row).block + QueueWord.SETTLING, 1);
          jobs.withdraw(row);
          break;
        default:
          break;
      }
    }
    this.#replies.drop(owner);
    // Those that have not been adopted yet, too: a wake-up that a dead owner gets is one that somebody else misses.
    const groups = load(shared.control, Word.GROUPS);
    for (let group = 0; group < groups; group++) leaveGroup(shared, group, owner);
    store(shared.owners, block + OwnerWord.CLAIMING, 0);
    store(shared.owners, block + OwnerWord.LEFT, 0);
    store(shared.owners, block + OwnerWord.EXIT, 0);
    store(shared.owners, block + OwnerWord.WANTS, 0);
    store(shared.owners, block + OwnerWord.STATE, OwnerState.FREE);
    store(shared.owners, block + OwnerWord.THREAD, 0);
  }

  /** Moves the outbox into the submit ring, as much as fits (S2). */
  #submit(): number {
    if (this.#outbox.bytes === 0 || this.#refusedUntilMs > this.#monotonicMs) return 0;
    const before = this.#outbox.waitingBytes;
    if (this.#outbox.trySubmit() && this.#hasRefused) {
      this.#hasRefused = false;
      this.#refusedTo = this.#ring.tail();
    }
    return before - this.#outbox.waitingBytes;
  }

  #mayFinish(): void {
    const { control } = this.#shared;
    const state = load(control, Word.STATE);
    if (state === BrokerState.CLOSED) this.finished = true;
    if (state !== BrokerState.CLOSING || this.#outbox.bytes > 0) return;
    if (this.#cursor === load(control, Word.COMMITTED) && this.#cursor === this.#ring.tail()) this.finished = true;
    else if (load(control, Word.POISON) !== 0) this.finished = true;
  }
}
