/**
 * A thread's port into the shared memory: its owner number, its way into the submit ring, and everything it waits
 * for. One per thread and broker, used by queues, leases and workers of that thread.
 *
 * C1  At most one `Atomics.waitAsync` is outstanding; it wakes for everything. Nothing here ever blocks.
 *     While a few enqueues wait for their flush, the thread looks by itself and is not to be woken (`poller.ts`).
 * C2  What is waited for is stated in WANTS before the act that may end the wait (A1 in agent.ts).
 * C3  While something is pending that the program awaits, a ref'd timer keeps the process open; interest alone
 *     (signals of leases, listeners) does not.
 * C4  Records leave this thread in order: the outbox first, then enqueues; an enqueue that finds no room waits behind
 *     those that found none before it.
 * C5  Promises that are settled together are usually followed by enqueues together: the log writer is woken once for
 *     them, behind the last, so that they share a flush. It is woken at once for any other.
 * C6  When the event loop runs empty with records on their way, the process waits for them: an ack is not awaited.
 * C7  A simulation has many ports on one thread and gives each a `Sleep`: then nothing here depends on real time, and
 *     the port has no part in the life of its process.
 */
import process from 'node:process';
import { leaveGroup, wake, wakeAfterDeath } from '../../native-free/agent.js';
import { ARENA_UNIT_BYTES } from '../../native-free/arena.js';
import { add, and, compareExchange, load, or, store } from '../../native-free/atomics.js';
import { Encoder } from '../../native-free/encoder.js';
import {
  BrokerState,
  Cell,
  GroupWord,
  OWNERS,
  Owner,
  OwnerState,
  OwnerWord,
  REFUSALS_KEPT,
  REPLY_SLOTS,
  ReplyWord,
  type Shared,
  Wants,
  Word,
} from '../../native-free/layout.js';
import { Outbox } from '../../native-free/outbox.js';
import { Level, RecordType } from '../../native-free/record.js';
import { Ring } from '../../native-free/ring.js';
import type { Clock } from '../clock.js';
import { MillraceError } from '../errors.js';
import type { ClaimMarks } from '../log/marks.js';
import { POISON_CODES } from '../log/writer.js';
import { Outcome, Reply } from '../schedule/questions.js';
import { systemThread, threadId } from '../thread.js';
import { Poller } from './poller.js';

/** The answer to a question: its status, and its bytes where there are any (private memory). */
export interface Answer {
  readonly status: number;
  readonly bytes: Uint8Array | undefined;
  readonly id: number;
}

interface Asking {
  resolve(answer: Answer): void;
  reject(error: Error): void;
}

/** Somebody who waits for room in the ring: called in order, true = served. */
export interface RoomWaiter {
  readonly slots: number;
  readonly jobs: number;
  attempt(): boolean;
  reject(error: Error): void;
}

/** Somebody who waits for ready jobs of a group: called when there may be some. */
export interface ReadyWaiter {
  readonly group: number;
  /** True: done waiting. */
  attempt(): boolean;
  /** Whether the wait holds the process open. */
  readonly holds: boolean;
  reject(error: Error): void;
}

/** Calls `woken` some time after `words[index]` has stopped being 1. */
export type Sleep = (words: Int32Array, index: number, woken: () => void) => void;

/** The log writer is woken at the latest for so many enqueues. */
const BURST = 256;
/** With more enqueues than this on their way, a wake-up is shared by so many that it costs nothing. */
const POLLED_MAX = 64;

export interface PortLimits {
  readonly jobsMax: number;
  readonly memoryBytes: number;
  readonly payloadBytesMax: number;
}

/** The requests of one port are far from those of the one that had its number before. */
const REQUESTS = 2 ** 20;
const GENERATIONS = 2 ** 11 - 1;

/** Longest time that claims and handlers follow each other without a turn of the event loop. */
const TURN_MS = 8;

/** Those of this thread that are open. */
let ports: Set<Port> | undefined;

export class Port {
  readonly shared: Shared;
  readonly clock: Clock;
  readonly owner: number;
  readonly ring: Ring;
  readonly outbox: Outbox;
  readonly encoder = new Encoder();
  readonly zeroMs: number;
  readonly epoch: number;
  readonly limits: PortLimits;
  readonly random: () => number;
  /** Runs of this thread's handlers, for recovery after a crash; undefined where there is no directory to write to. */
  marks: ClaimMarks | undefined;
  /** Of the last successful `trySubmitJobs`: the id of its first slot, and the position behind its last. */
  firstId = 0;
  end = 0;
  /** `new Promise(port.executor)` leaves its resolve function in `port.resolve`: one closure less a job. */
  resolve!: (outcome: unknown) => void;
  readonly executor = (resolve: (outcome: unknown) => void): void => {
    this.resolve = resolve;
  };
  /** A fleet thread's look at its orders, whenever it is awake; `stirred` says that there are new ones. */
  orders: { follow(): void; stirred(): boolean } | undefined;
  /** Called for events this thread listens to: name index, queue id, row, job id, bytes. */
  onEvent: ((event: number, queue: number, row: number, id: number, bytes: Uint8Array | undefined) => void) | undefined;
  /** True: this thread's broker is closing, nothing new is taken. */
  closing = false;
  /** Called once when the log is poisoned. */
  onPoison: ((error: MillraceError) => void) | undefined;
  readonly #block: number;
  /** C7: undefined outside of simulations. */
  readonly #sleep: Sleep | undefined;
  #positions = new Int32Array(1024);
  #settlers: (((outcome: unknown) => void) | undefined)[] = new Array(1024);
  #values: unknown[] = new Array(1024);
  #first = 0;
  #count = 0;
  /** Waits for positions that are not in order with the queue above: `Job.durable`. */
  #late: { position: number; resolve: (outcome: unknown) => void }[] = [];
  readonly #asking = new Map<number, Asking>();
  readonly #watching = new Map<number, ((status: number, bytes: Uint8Array | undefined) => void)[]>();
  readonly #rooms: RoomWaiter[] = [];
  readonly #readies = new Set<ReadyWaiter>();
  readonly #lost = new Map<number, { word: number; lost: () => void }>();
  #nextRequest: number;
  #waiting = false;
  #flushing = false;
  #bursting = false;
  /** Enqueues of a burst that the log writer has not been woken for. */
  #unwoken = 0;
  #attending = false;
  #events = 0;
  #refusalsSeen = 0;
  #retained = 0;
  #holding = false;
  #holder: NodeJS.Timeout | undefined;
  #poison: MillraceError | undefined;
  #closed = false;
  #turnedMs = 0;

  constructor(
    shared: Shared,
    clock: Clock,
    limits: PortLimits,
    random: () => number = Math.random,
    sleep: Sleep | undefined = undefined,
  ) {
    this.shared = shared;
    this.#sleep = sleep;
    this.clock = clock;
    this.limits = limits;
    this.random = random;
    this.owner = takeOwner(shared);
    this.#block = this.owner * OwnerWord.WORDS;
    const generation = add(shared.owners, this.#block + OwnerWord.GENERATION, 1);
    this.#nextRequest = 1 + (generation % GENERATIONS) * REQUESTS;
    this.ring = new Ring(shared.submitPlace, this.owner);
    this.outbox = new Outbox(shared, this.ring);
    this.zeroMs = shared.cells[Cell.MONOTONIC_ZERO_MS]!;
    this.epoch = shared.control[Word.EPOCH]!;
    this.#refusalsSeen = load(shared.control, Word.REFUSALS);
    if (sleep !== undefined) return;
    if (ports === undefined) {
      ports = new Set();
      process.on('beforeExit', () => {
        for (const port of ports!) port.lastCall();
      });
      // A thread that exits in the middle: its records are still put into the ring, for the log writer to take.
      process.on('exit', () => {
        for (const port of ports!) port.outbox.trySubmit();
      });
    }
    ports.add(this);
  }

  /** Throws when nothing can be asked of the broker any more. */
  check(attempted: string): void {
    const control = this.shared.control;
    if (this.#closed || this.closing || load(control, Word.STATE) !== BrokerState.SERVING) {
      throw new MillraceError('ERR_MILLRACE_CLOSED', `cannot ${attempted}: the broker is closed`);
    }
    if (load(control, Word.POISON) !== 0) throw this.poisonError();
  }

  /** A lease may still be settled while the broker closes; not after. */
  checkSettle(attempted: string): void {
    const control = this.shared.control;
    if (this.#closed || load(control, Word.STATE) > BrokerState.CLOSING) {
      throw new MillraceError('ERR_MILLRACE_CLOSED', `cannot ${attempted}: the broker is closed`);
    }
    if (load(control, Word.POISON) !== 0) throw this.poisonError();
  }

  /** The sticky error that everything fails with after the log's first failed write or flush. */
  poisonError(): MillraceError {
    const errno = POISON_CODES[load(this.shared.control, Word.POISON)] ?? 'UNKNOWN';
    this.#poison ??= new MillraceError(
      'ERR_MILLRACE_IO',
      `cannot go on: writing the log failed with ${errno}, nothing more is written to it`,
      { errno },
    );
    return this.#poison;
  }

  /** Whether this thread may have gone on for long without a turn of its event loop. */
  isTurnDue(): boolean {
    return this.#sleep === undefined && performance.now() - this.#turnedMs > TURN_MS;
  }

  async turn(): Promise<void> {
    await new Promise<void>((resolve) => setImmediate(resolve));
    this.#turnedMs = performance.now();
  }

  wallMs(): number {
    return Math.floor(this.clock.wallMs());
  }

  /** Milliseconds since the broker's zero, wrapping: the scale of lease deadlines. */
  monotonicMs(): number {
    return Math.floor(this.clock.monotonicMs() - this.zeroMs) | 0;
  }

  /** Must be called before the records that will be waited for are published (C2). */
  wantDurable(): void {
    if (this.#count === 0 && this.#late.length === 0)
      or(this.shared.owners, this.#block + OwnerWord.WANTS, Wants.DURABLE);
  }

  /** Calls `settle(value)` when everything below `position` is durable, or settle(a rejected promise). In order. */
  awaitDurable(position: number, settle: (outcome: unknown) => void, value: unknown): void {
    const size = this.#positions.length;
    if (this.#count === size) this.#grow();
    const at = (this.#first + this.#count++) & (this.#positions.length - 1);
    this.#positions[at] = position;
    this.#settlers[at] = settle;
    this.#values[at] = value;
    if (!this.#waiting || this.#count === 1) this.#arm();
  }

  /**
   * Moves the `jobs` records in `encoder` into the ring. False: no room now, and nothing changed.
   * On success `firstId` and `end` say where they are.
   */
  trySubmitJobs(jobs: number): boolean {
    const { shared, encoder, ring } = this;
    const { control, cells } = shared;
    if (this.outbox.bytes > 0 && !this.outbox.trySubmit()) return false;
    if (cells[Cell.ARENA_BYTES]! > this.limits.memoryBytes) return false;
    const before = add(control, Word.JOBS_RESERVED, jobs);
    if (before + jobs > this.limits.jobsMax || !ring.tryReserve(encoder.slots)) {
      add(control, Word.JOBS_RESERVED, -jobs);
      return false;
    }
    const position = ring.position;
    this.firstId = cells[Cell.ID_BASE]! + shared.absolute(position);
    this.end = (position + encoder.slots) | 0;
    encoder.moveInto(shared.slots, shared.slotOffset(position), 0, encoder.bytes, this.firstId);
    ring.publish(position);
    if (!this.#bursting || ++this.#unwoken === BURST) this.#wakeWriter();
    return true;
  }

  /** Whether `trySubmitJobs` may succeed now. */
  #admits(slots: number, jobs: number): boolean {
    if (this.ring.used() + slots > this.ring.capacity) return false;
    if (jobs === 0) return true;
    const { control, cells } = this.shared;
    return (
      load(control, Word.JOBS_RESERVED) + jobs <= this.limits.jobsMax &&
      cells[Cell.ARENA_BYTES]! <= this.limits.memoryBytes
    );
  }

  /**
   * Waits, without sleeping and for at most `maxMs`, until the scheduler has applied and offered what is committed:
   * so that a synchronous look finds what this thread has already been told of.
   */
  catchUp(maxMs: number, enough: () => boolean = () => true): void {
    const { control } = this.shared;
    const committed = load(control, Word.COMMITTED);
    const behind = (): boolean => ((load(control, Word.SUBMIT_HEAD) - committed) | 0) < 0 || !enough();
    if (!behind()) return;
    wake(control, Word.SCHEDULER_ASLEEP);
    if (this.#sleep !== undefined) return;
    const until = performance.now() + maxMs;
    while (behind() && performance.now() < until);
  }

  /** The same for a position that was submitted a while ago. */
  durable(position: number): Promise<void> {
    return new Promise((resolve) => {
      this.wantDurable();
      this.#late.push({ position, resolve: resolve as (outcome: unknown) => void });
      this.attend();
    });
  }

  /** Asks the scheduler, in order behind everything submitted so far. */
  ask(verb: number, id: number, queue: number, question?: object): Promise<Answer> {
    const request = this.request();
    return new Promise((resolve, reject) => {
      this.expect(request, { resolve, reject });
      const at = this.outbox.append(RecordType.ASK, Level.MEMORY, id, queue, request, this.owner, verb);
      if (question !== undefined) this.outbox.payloadText(at, JSON.stringify(question));
      this.outbox.finish(at);
      this.flush();
    });
  }

  /** A question without an answer: `row` stands where the request would. */
  tell(verb: number, id: number, queue: number, row: number): void {
    const at = this.outbox.append(RecordType.ASK, Level.MEMORY, id, queue, row, this.owner, verb);
    this.outbox.finish(at);
    this.flushSoon();
  }

  request(): number {
    const request = this.#nextRequest;
    this.#nextRequest = request === 0x7fffffff ? 1 : request + 1;
    return request;
  }

  expect(request: number, asking: Asking): void {
    this.#asking.set(request, asking);
    this.#armSoon();
  }

  forget(request: number): void {
    this.#asking.delete(request);
  }

  /** Calls back once when the job ends. The scheduler must have been told to watch. */
  watch(id: number, ended: (status: number, bytes: Uint8Array | undefined) => void): void {
    const list = this.#watching.get(id);
    if (list === undefined) this.#watching.set(id, [ended]);
    else list.push(ended);
    this.#armSoon();
  }

  unwatch(id: number, ended: (status: number, bytes: Uint8Array | undefined) => void): void {
    const list = this.#watching.get(id)?.filter((one) => one !== ended) ?? [];
    if (list.length === 0) this.#watching.delete(id);
    else this.#watching.set(id, list);
    this.#hold();
  }

  /** Jobs being run on this thread hold the process open. */
  retain(by: number): void {
    this.#retained += by;
    this.#hold();
  }

  awaitRoom(waiter: RoomWaiter): void {
    this.#rooms.push(waiter);
    this.attend();
  }

  get crowded(): boolean {
    return this.#rooms.length > 0;
  }

  awaitReady(waiter: ReadyWaiter): void {
    this.#readies.add(waiter);
    this.#hungry(waiter.group);
    this.#armSoon();
  }

  cancelReady(waiter: ReadyWaiter): void {
    this.#leave(waiter);
    this.#hold();
  }

  /** A4 in agent.ts. */
  #leave(waiter: ReadyWaiter): void {
    if (!this.#readies.delete(waiter)) return;
    for (const other of this.#readies) if (other.group === waiter.group) return;
    leaveGroup(this.shared, waiter.group, this.owner);
  }

  /** `lost` is called when the scheduler ends the lease on `row` that has this word. */
  onLost(row: number, word: number, lost: () => void): void {
    const before = this.#lost.get(row);
    this.#lost.set(row, { word, lost });
    // An earlier lease on the row is over, or this one would not be; the scheduler's word of it is still on its way.
    if (before !== undefined && before.word !== word) before.lost();
    this.#armSoon();
  }

  offLost(row: number, word: number): void {
    if (this.#lost.get(row)?.word === word) this.#lost.delete(row);
  }

  /** Sets which events this thread hears of (`eventBit`s). */
  listen(bits: number): void {
    const { owners, control } = this.shared;
    if (bits !== 0 && this.#events === 0) add(control, Word.LISTENERS, 1);
    if (bits === 0 && this.#events !== 0) add(control, Word.LISTENERS, -1);
    and(owners, this.#block + OwnerWord.WANTS, 0xff);
    or(owners, this.#block + OwnerWord.WANTS, bits);
    this.#events = bits;
    this.#armSoon();
  }

  /** Submits the outbox at the end of the current task, once however often it is asked for. */
  flushSoon(): void {
    if (this.#flushing) return;
    this.#flushing = true;
    queueMicrotask(this.#flushNow);
  }

  /** Submits the outbox; what does not fit goes as soon as there is room. */
  flush(): boolean {
    this.#flushing = false;
    if (this.outbox.trySubmit()) return true;
    this.#armSoon();
    return false;
  }

  /** Looks at everything that may have happened, then waits for more if something is still pending. */
  attend(): void {
    if (this.#attending) return;
    this.#attending = true;
    try {
      this.#settleDurable();
      this.#readReplies();
      if (this.outbox.bytes > 0) this.outbox.trySubmit();
      while (this.#rooms.length > 0 && this.outbox.bytes === 0 && this.#rooms[0]!.attempt()) this.#rooms.shift();
      for (const waiter of this.#readies) if (waiter.attempt()) this.#leave(waiter);
      this.orders?.follow();
      this.#checkEnd();
    } finally {
      this.#attending = false;
    }
    this.#arm();
  }

  /** Whether the broker is over for this thread: nothing is held any more. */
  get over(): boolean {
    return this.#closed || load(this.shared.control, Word.STATE) === BrokerState.CLOSED;
  }

  /** The event loop is about to end by itself: what was submitted, an ack that nobody awaits, is not left behind (C6). */
  lastCall(): void {
    const { control } = this.shared;
    if (this.closing || load(control, Word.STATE) !== BrokerState.SERVING || load(control, Word.POISON) !== 0) return;
    if (this.outbox.bytes > 0 || this.ring.tail() !== load(control, Word.COMMITTED)) void this.drained();
  }

  /** This thread is done with the broker. What it still held goes back to ready. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    ports?.delete(this);
    this.listen(0);
    this.#rejectAll(new MillraceError('ERR_MILLRACE_CLOSED', 'the broker was closed while this was pending'));
    clearInterval(this.#holder);
    this.marks?.close();
    store(this.shared.owners, this.#block + OwnerWord.LEFT, 1);
    markDead(this.shared, this.owner);
  }

  /** Resolves when everything this thread submitted is durable, or has failed. */
  async drained(): Promise<void> {
    while (!this.flush()) await new Promise<void>((resolve) => setImmediate(resolve));
    const position = this.ring.tail();
    await this.durable(position).catch(() => {});
  }

  #wakeWriter(): void {
    this.#unwoken = 0;
    wake(this.shared.control, Word.WRITER_ASLEEP);
  }

  readonly #endBurst = (): void => {
    this.#bursting = false;
    if (this.#unwoken > 0) this.#wakeWriter();
  };

  readonly #flushNow = (): void => {
    if (this.#flushing && !this.#closed) this.flush();
  };

  readonly #attendNow = (): void => {
    this.#waiting = false;
    this.attend();
  };

  readonly #attendSoon = (): void => {
    this.#armQueued = false;
    if (!this.#closed) this.attend();
  };
  #armQueued = false;

  readonly #poller = new Poller(() => {
    if (this.#closed) return;
    if (this.#hasWork()) this.attend();
    else this.#arm();
  });

  /** Arms after the current task, so that a burst of calls looks for work once. */
  #armSoon(): void {
    this.#hold();
    if (this.#armQueued || this.#attending) return;
    this.#armQueued = true;
    queueMicrotask(this.#attendSoon);
  }

  #arm(): void {
    this.#hold();
    if (this.#closed || this.#attending) return;
    const { owners } = this.shared;
    const wants = this.#wants();
    if (wants === 0) return;
    if (this.#polls()) {
      store(owners, this.#block + OwnerWord.ASLEEP, 0);
      return;
    }
    store(owners, this.#block + OwnerWord.WANTS, wants | this.#events);
    store(owners, this.#block + OwnerWord.ASLEEP, 1);
    if (this.#hasWork()) {
      store(owners, this.#block + OwnerWord.ASLEEP, 0);
      this.#armSoon();
      return;
    }
    // One that is still outstanding, from an earlier reason or before a poll, serves as well.
    if (this.#waiting) return;
    if (this.#sleep !== undefined) {
      this.#waiting = true;
      this.#sleep(owners, this.#block + OwnerWord.ASLEEP, this.#attendNow);
      return;
    }
    const waited = Atomics.waitAsync(owners, this.#block + OwnerWord.ASLEEP, 1);
    this.#waiting = true;
    if (waited.async) waited.value.then(this.#attendNow);
    else queueMicrotask(this.#attendNow);
  }

  #polls(): boolean {
    if (this.#sleep !== undefined || this.#count === 0 || this.#count > POLLED_MAX) return false;
    return this.#poller.again(this.#positions[this.#first]!);
  }

  #wants(): number {
    let wants = 0;
    if (this.#count > 0 || this.#late.length > 0) wants |= Wants.DURABLE;
    if (this.#rooms.length > 0 || this.outbox.bytes > 0) wants |= Wants.ROOM;
    if (this.#readies.size > 0) wants |= Wants.READY;
    if (
      this.#asking.size > 0 ||
      this.#watching.size > 0 ||
      this.#lost.size > 0 ||
      this.#events !== 0 ||
      this.orders !== undefined
    ) {
      wants |= Wants.REPLY;
    }
    return wants;
  }

  /** Looked at between storing ASLEEP and waiting (A1). */
  #hasWork(): boolean {
    const { control, owners, groups } = this.shared;
    const committed = load(control, Word.COMMITTED);
    if (this.#count > 0 && ((this.#positions[this.#first]! - committed) | 0) <= 0) return true;
    for (const late of this.#late) if (((late.position - committed) | 0) <= 0) return true;
    if (load(owners, this.#block + OwnerWord.REPLY_TAIL) !== owners[this.#block + OwnerWord.REPLY_HEAD]) return true;
    if (load(control, Word.POISON) !== 0 && this.#pending()) return true;
    if (this.orders?.stirred() === true) return true;
    if (load(control, Word.STATE) === BrokerState.CLOSED && this.#pending()) return true;
    if (this.outbox.bytes > 0) {
      if (this.#admits(this.outbox.firstSlots(), 0)) return true;
    } else if (this.#rooms.length > 0 && this.#admits(this.#rooms[0]!.slots, this.#rooms[0]!.jobs)) {
      return true;
    }
    for (const waiter of this.#readies) {
      this.#hungry(waiter.group);
      const block = waiter.group * GroupWord.WORDS;
      if (load(groups, block + GroupWord.HEAD) !== load(groups, block + GroupWord.TAIL)) return true;
    }
    return false;
  }

  /** Whether anything waits that the end of the broker would have to reject. */
  #pending(): boolean {
    return (
      this.#count > 0 ||
      this.#late.length > 0 ||
      this.#asking.size > 0 ||
      this.#watching.size > 0 ||
      this.#rooms.length > 0 ||
      this.#readies.size > 0 ||
      this.#lost.size > 0 ||
      this.outbox.bytes > 0
    );
  }

  #hungry(group: number): void {
    const word = group * GroupWord.WORDS + GroupWord.HUNGRY + (this.owner >>> 5);
    or(this.shared.groups, word, 1 << (this.owner & 31));
  }

  #hold(): void {
    if (this.#sleep !== undefined) return;
    let holding =
      this.#retained > 0 ||
      this.#count > 0 ||
      this.#late.length > 0 ||
      this.#asking.size > 0 ||
      this.#watching.size > 0 ||
      this.#rooms.length > 0 ||
      this.outbox.bytes > 0;
    if (!holding) for (const waiter of this.#readies) if (waiter.holds) holding = true;
    if (holding === this.#holding) return;
    this.#holding = holding;
    if (this.#holder === undefined) this.#holder = setInterval(() => {}, 0x3fffffff);
    if (holding) this.#holder.ref();
    else this.#holder.unref();
  }

  #settleDurable(): void {
    if (this.#count === 0 && this.#late.length === 0) return;
    const { control } = this.shared;
    const committed = load(control, Word.COMMITTED);
    const refusals = load(control, Word.REFUSALS) === this.#refusalsSeen ? undefined : this.#refusals();
    const mask = this.#positions.length - 1;
    let settled = 0;
    while (this.#count > 0) {
      const at = this.#first;
      const position = this.#positions[at]!;
      if (((position - committed) | 0) > 0) break;
      const settle = this.#settlers[at]!;
      const value = this.#values[at];
      this.#settlers[at] = undefined;
      this.#values[at] = undefined;
      this.#first = (at + 1) & mask;
      this.#count--;
      if (refusals?.(position) === true) settle(Promise.reject(noSpace()));
      else settle(value);
      settled++;
    }
    if (settled > 1 && !this.#bursting) {
      // Runs behind the continuations of all those promises, each of which may enqueue again (C5).
      this.#bursting = true;
      queueMicrotask(this.#endBurst);
    }
    if (this.#late.length > 0) {
      this.#late = this.#late.filter(({ position, resolve }) => {
        if (((position - committed) | 0) > 0) return true;
        resolve(refusals?.(position) === true ? Promise.reject(noSpace()) : undefined);
        return false;
      });
    }
    if (refusals !== undefined && this.#count === 0 && this.#late.length === 0) {
      this.#refusalsSeen = load(control, Word.REFUSALS);
    }
  }

  /** Tells whether the record that ends at a position was refused for want of disk space. */
  #refusals(): (position: number) => boolean {
    const { cells, control } = this.shared;
    const count = load(control, Word.REFUSALS);
    const ranges: [number, number][] = [];
    for (let i = Math.max(0, count - REFUSALS_KEPT); i < count; i++) {
      const at = Cell.REFUSED + 2 * (i % REFUSALS_KEPT);
      ranges.push([cells[at]!, cells[at + 1]!]);
    }
    return (position) => {
      const end = this.shared.absolute(position);
      return ranges.some(([from, to]) => from < end && end <= to);
    };
  }

  #readReplies(): void {
    // The owner number, and its replies, may be another's by now.
    if (this.#closed) return;
    const { owners, replies, replyCells, arena } = this.shared;
    const tail = load(owners, this.#block + OwnerWord.REPLY_TAIL);
    let head = owners[this.#block + OwnerWord.REPLY_HEAD]!;
    while (head !== tail && !this.#closed) {
      const at = (this.owner * REPLY_SLOTS + (head & (REPLY_SLOTS - 1))) * ReplyWord.WORDS;
      const ref = replies[at + ReplyWord.REF]!;
      const from = ref * ARENA_UNIT_BYTES;
      const bytes = ref === 0 ? undefined : arena.u8.slice(from, from + replies[at + ReplyWord.BYTES]!);
      const status = replies[at + ReplyWord.STATUS]!;
      const request = replies[at + ReplyWord.REQUEST]!;
      const row = replies[at + ReplyWord.ROW]!;
      const id = replyCells[(at + ReplyWord.ID) >>> 1]!;
      const kind = replies[at + ReplyWord.KIND]!;
      head = (head + 1) | 0;
      store(owners, this.#block + OwnerWord.REPLY_HEAD, head);
      switch (kind) {
        case Reply.OUTCOME: {
          const watchers = this.#watching.get(id);
          this.#watching.delete(id);
          if (watchers !== undefined) for (const ended of watchers) ended(status, bytes ?? emptyResult(status));
          break;
        }
        case Reply.LOST: {
          const lease = this.#lost.get(row);
          if (lease?.word !== status) break;
          this.#lost.delete(row);
          lease.lost();
          break;
        }
        case Reply.EVENT:
          this.onEvent?.(status, request, row, id, bytes);
          break;
        default: {
          const asking = this.#asking.get(request);
          this.#asking.delete(request);
          asking?.resolve({ status, bytes, id });
        }
      }
    }
  }

  #checkEnd(): void {
    const { control } = this.shared;
    if (load(control, Word.POISON) !== 0) {
      const first = this.#poison === undefined;
      const cause = this.poisonError();
      const unknown = `cannot tell whether the job was accepted: ${cause.message}`;
      this.#rejectDurable(() => new MillraceError('ERR_MILLRACE_OUTCOME_UNKNOWN', unknown, {}, cause));
      this.#rejectAll(cause);
      if (first) this.onPoison?.(cause);
      return;
    }
    if (load(control, Word.STATE) === BrokerState.CLOSED && !this.#closed) {
      this.#rejectAll(new MillraceError('ERR_MILLRACE_CLOSED', 'the broker was closed while this was pending'));
    }
  }

  #rejectDurable(error: () => Error): void {
    const mask = this.#positions.length - 1;
    while (this.#count > 0) {
      const settle = this.#settlers[this.#first]!;
      this.#settlers[this.#first] = undefined;
      this.#values[this.#first] = undefined;
      this.#first = (this.#first + 1) & mask;
      this.#count--;
      settle(Promise.reject(error()));
    }
    const late = this.#late;
    this.#late = [];
    for (const { resolve } of late) resolve(Promise.reject(error()));
  }

  #rejectAll(error: Error): void {
    this.#rejectDurable(() => error);
    const asking = [...this.#asking.values()];
    this.#asking.clear();
    for (const { reject } of asking) reject(error);
    const watching = [...this.#watching.values()];
    this.#watching.clear();
    for (const list of watching) for (const ended of list) ended(Outcome.UNKNOWN, errorBytes(error));
    for (const room of this.#rooms.splice(0)) room.reject(error);
    const readies = [...this.#readies];
    this.#readies.clear();
    for (const ready of readies) ready.reject(error);
    const lost = [...this.#lost.values()];
    this.#lost.clear();
    for (const lease of lost) lease.lost();
    this.outbox.clear();
    this.#hold();
  }

  #grow(): void {
    const size = this.#positions.length;
    const positions = new Int32Array(2 * size);
    const settlers: (((outcome: unknown) => void) | undefined)[] = new Array(2 * size);
    const values: unknown[] = new Array(2 * size);
    for (let i = 0; i < this.#count; i++) {
      const at = (this.#first + i) & (size - 1);
      positions[i] = this.#positions[at]!;
      settlers[i] = this.#settlers[at];
      values[i] = this.#values[at];
    }
    this.#positions = positions;
    this.#settlers = settlers;
    this.#values = values;
    this.#first = 0;
  }
}

function emptyResult(status: number): Uint8Array | undefined {
  return status === Outcome.DONE_WITH_RESULT ? new Uint8Array(0) : undefined;
}

function errorBytes(error: Error): Uint8Array {
  return Buffer.from(error.message);
}

function noSpace(): MillraceError {
  return new MillraceError('ERR_MILLRACE_NO_SPACE', 'cannot enqueue: the disk is full, the job was not accepted');
}

/**
 * Takes a free owner number for the calling thread. The THREAD word is taken by CAS and tells whose the number is from
 * then on, so that a thread that dies in the middle of this is found by its exit.
 */
function takeOwner(shared: Shared): number {
  const { owners, control } = shared;
  for (let owner: number = Owner.FIRST; owner < OWNERS; owner++) {
    const block = owner * OwnerWord.WORDS;
    if (compareExchange(owners, block + OwnerWord.THREAD, 0, threadId + 1) !== 0) continue;
    store(owners, block + OwnerWord.ASLEEP, 0);
    store(owners, block + OwnerWord.WANTS, 0);
    store(owners, block + OwnerWord.SYSTEM_THREAD, systemThread());
    for (;;) {
      const seen = load(control, Word.OWNERS_SEEN);
      if (seen >= owner || compareExchange(control, Word.OWNERS_SEEN, seen, owner) === seen) break;
    }
    store(owners, block + OwnerWord.STATE, OwnerState.ALIVE);
    return owner;
  }
  throw new MillraceError(
    'ERR_MILLRACE_FULL',
    `cannot attach: ${OWNERS - Owner.FIRST} threads use this broker already`,
  );
}

/** Says that an owner's thread is gone. The log writer repairs its slots, then the scheduler releases its leases. */
export function markDead(shared: Shared, owner: number): void {
  const { owners, control } = shared;
  const block = owner * OwnerWord.WORDS;
  const found = compareExchange(owners, block + OwnerWord.STATE, OwnerState.ALIVE, OwnerState.DEAD);
  // It died before it could do anything: the number is free again.
  if (found === OwnerState.FREE) store(owners, block + OwnerWord.THREAD, 0);
  if (found !== OwnerState.ALIVE) return;
  add(control, Word.DEATHS, 1);
  wakeAfterDeath(shared);
}

/** Marks the owners of a thread that has exited. */
export function markThreadDead(shared: Shared, thread: number, code: number): void {
  for (let owner: number = Owner.FIRST; owner < OWNERS; owner++) {
    const block = owner * OwnerWord.WORDS;
    if (load(shared.owners, block + OwnerWord.THREAD) !== thread + 1) continue;
    store(shared.owners, block + OwnerWord.EXIT, code + 1);
    markDead(shared, owner);
  }
}
