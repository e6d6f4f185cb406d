/**
 * One life of a broker, all of it on one thread and driven by hand: the real log writer, the real scheduler and real
 * ports over one shared memory, put together as `open`, `writer-thread` and `scheduler-thread` do it.
 *
 * 1. An agent runs as `runAgent` runs it, one call of `step` at a time: it falls asleep when two steps in a row found
 *    nothing, and a sleeping one may step only when somebody woke it or its own time has come. So a wake-up that is
 *    lost shows as work that nobody does.
 * 2. A port sleeps in the same way: it attends only when its word says that it was woken.
 * 3. After each call the promises that can go on go on: the caller awaits `settled`.
 */
import { type Agent, wake } from '../../native-free/agent.js';
import { Arena } from '../../native-free/arena.js';
import { load, store } from '../../native-free/atomics.js';
import {
  BrokerState,
  Cell,
  GROUPS_MAX,
  GroupWord,
  NAME_BUCKETS,
  OWNERS,
  OwnerWord,
  QueueWord,
  READY_ENTRY_SHIFT,
  READY_SLOTS,
  REPLY_SLOTS,
  ReplyWord,
  reservationSlotsMax,
  SEGMENTS_KEPT,
  Shared,
  type SharedBuffers,
  Word,
} from '../../native-free/layout.js';
import { nameOf } from '../../native-free/names.js';
import { Attribute, Level, SLOT_BYTES } from '../../native-free/record.js';
import { initialiseRing } from '../../native-free/ring.js';
import { markThreadDead, Port, type Sleep } from '../../src/client/port.js';
import { Queue } from '../../src/client/queue.js';
import { QueueCore } from '../../src/client/queue-core.js';
import type { ManualClock } from '../../src/clock.js';
import { type Recovery, recover } from '../../src/log/recovery.js';
import type { Storage } from '../../src/log/storage.js';
import { LogWriter } from '../../src/log/writer.js';
import type { QueueOptions } from '../../src/options.js';
import { Jobs } from '../../src/schedule/jobs.js';
import { Outcomes } from '../../src/schedule/outcomes.js';
import { Replies } from '../../src/schedule/replies.js';
import { Scheduler } from '../../src/schedule/scheduler.js';
import { ROW_STATES, type RowState } from '../../src/schedule/transitions.js';

export const DIR = '/data';

export interface LifeSettings {
  readonly ringSlots: number;
  readonly segmentBytes: number;
  readonly asideBytes: number;
  readonly batchRecordsMax: number;
  readonly lingerMs: number;
  readonly memoryBytes: number;
  readonly jobsMax: number;
}

const ROWS = 1536;
const ARENA_BYTES = 4 << 20;
const OWNERS_USED = 16;
const QUEUES_USED = 4;
const NAMES_BYTES = 4096;

/** Resolves when every promise that can go on has gone on: nothing here waits for anything else. */
export function settled(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/** A job as the scheduler has it. */
export interface RowView {
  readonly row: number;
  readonly id: number;
  readonly queue: string;
  readonly state: RowState;
  readonly text: string;
  readonly attempts: number;
  readonly crashes: number;
  readonly runAt: number;
  readonly key: string;
}

/** An agent as `runAgent` drives it, one step at a time. */
export class Driven {
  /** When it would wake by itself, monotonic. */
  dueMs = Number.POSITIVE_INFINITY;
  #state: 'awake' | 'drowsy' | 'asleep' = 'awake';

  constructor(
    readonly agent: Agent,
    readonly words: Int32Array,
    readonly word: number,
    readonly nowMs: () => number,
  ) {}

  get runnable(): boolean {
    if (this.agent.finished) return false;
    return this.#state !== 'asleep' || load(this.words, this.word) !== 1 || this.nowMs() >= this.dueMs;
  }

  step(): number {
    if (this.#state === 'asleep') {
      store(this.words, this.word, 0);
      this.#state = 'awake';
    }
    const work = this.agent.step();
    if (work > 0 || this.agent.finished) {
      if (this.#state === 'drowsy') store(this.words, this.word, 0);
      this.#state = 'awake';
    } else if (this.#state === 'awake') {
      store(this.words, this.word, 1);
      this.#state = 'drowsy';
    } else {
      this.#state = 'asleep';
      this.dueMs = this.nowMs() + this.agent.idleForMs();
    }
    return work;
  }
}

export class Life {
  readonly shared: Shared;
  readonly jobs: Jobs;
  readonly recovery: Recovery;
  readonly writer: Driven;
  readonly scheduler: Driven;
  readonly log: LogWriter;
  readonly clients: Client[] = [];
  #threads = 0;

  /** Recovers what is on the disk and starts a run. Throws as `open` rejects. */
  constructor(
    readonly disk: Storage,
    readonly clock: ManualClock,
    readonly settings: LifeSettings,
    readonly random: () => number,
  ) {
    disk.ensureDirectory(DIR);
    const { ringSlots, segmentBytes, memoryBytes } = settings;
    const buffers = allocate(ringSlots);
    const shared = new Shared(buffers);
    this.shared = shared;
    initialiseRing(shared.submitPlace);
    shared.control[Word.COMMITTED] = ringSlots;
    shared.cells[Cell.MONOTONIC_ZERO_MS] = clock.monotonicMs();
    const nowMs = (): number => clock.monotonicMs();

    const arena = new Arena(buffers.arena, 64, buffers.arena.byteLength);
    const replies = new Replies(shared, arena);
    const jobs = new Jobs(
      shared,
      arena,
      new Outcomes(replies),
      { storage: disk, dir: DIR, memoryBytes },
      wall(clock),
      0,
    );
    this.jobs = jobs;
    const apply = (...record: Parameters<Jobs['apply']>): void => jobs.apply(...record);
    this.recovery = recover(disk, DIR, apply, {
      random,
      segment: ({ number, base }) => {
        shared.segmentBases[number % SEGMENTS_KEPT] = base;
        shared.cells[Cell.SEGMENT_NEWEST] = number;
      },
    });
    const { segments, records, epoch, idHigh } = this.recovery;
    shared.cells[Cell.SEGMENT_FIRST] = segments[0]?.number ?? 1;
    shared.cells[Cell.LOG_START] = segments[0]?.base ?? 0;
    jobs.serve();
    shared.cells[Cell.RECOVERED] = records;
    const place = { storage: disk, dir: DIR, segmentBytes };
    const scheduler = new Scheduler(shared, jobs, replies, clock, place, random);
    this.scheduler = new Driven(scheduler, shared.control, Word.SCHEDULER_ASLEEP, nowMs);

    const idBase = Math.max(1, idHigh) - ringSlots;
    shared.cells[Cell.ID_BASE] = idBase;
    shared.control[Word.EPOCH] = epoch + 1;
    this.log = new LogWriter({
      shared,
      storage: disk,
      dir: DIR,
      recovery: this.recovery,
      idBase,
      epoch: epoch + 1,
      ...settings,
      now: nowMs,
      wallMs: clock.wallMs(),
    });
    this.log.start();
    this.writer = new Driven(this.log, shared.control, Word.WRITER_ASLEEP, nowMs);
    store(shared.control, Word.STATE, BrokerState.SERVING);
  }

  get isPoisoned(): boolean {
    return load(this.shared.control, Word.POISON) !== 0;
  }

  /** The ring position up to which everything is committed, or applied, as ids count. */
  get committedId(): number {
    return this.#idAt(load(this.shared.control, Word.COMMITTED));
  }

  get appliedId(): number {
    return this.#idAt(load(this.shared.control, Word.SUBMIT_HEAD));
  }

  #idAt(position: number): number {
    return this.shared.cells[Cell.ID_BASE]! + this.shared.absolute(position);
  }

  /** A client thread comes up. */
  attach(name: string): Client {
    const client = new Client(this, name);
    // As `takeOwner` writes it, but each client counts as a thread of its own.
    client.thread = 1000 + this.#threads++;
    store(this.shared.owners, client.block + OwnerWord.THREAD, client.thread + 1);
    this.clients.push(client);
    return client;
  }

  /** The thread of a client exits, and the opener hears of it. */
  kill(client: Client, code: number): void {
    this.#gone(client);
    markThreadDead(this.shared, client.thread, code);
  }

  /** A client lets go of the broker by itself. */
  leave(client: Client): void {
    this.#gone(client);
    client.port.close();
  }

  #gone(client: Client): void {
    client.isAlive = false;
    client.sleeper = undefined;
    this.clients.splice(this.clients.indexOf(client), 1);
  }

  /** As `Broker.close` does it; steps both agents until they are finished. */
  close(): void {
    const { control } = this.shared;
    store(control, Word.STATE, BrokerState.CLOSING);
    wake(control, Word.WRITER_ASLEEP);
    wake(control, Word.SCHEDULER_ASLEEP);
    this.#until(() => this.scheduler.agent.finished);
    store(control, Word.STATE, BrokerState.CLOSED);
    wake(control, Word.WRITER_ASLEEP);
    this.#until(() => this.writer.agent.finished);
  }

  #until(done: () => boolean): void {
    for (let steps = 0; !done(); steps++) {
      if (steps > 10_000) throw new Error('the broker does not come to its end');
      if (this.writer.runnable) this.writer.step();
      if (this.scheduler.runnable) this.scheduler.step();
      if (!done() && !this.writer.runnable && !this.scheduler.runnable) this.clock.advance(1);
    }
  }

  /** Every job there is, as the scheduler has it. */
  rows(): RowView[] {
    const { shared, jobs } = this;
    const rows: RowView[] = [];
    for (let row = 1; row < jobs.table.high; row++) {
      const state = ROW_STATES[jobs.table.state(row)]!;
      if (state === 'free') continue;
      rows.push({
        row,
        id: shared.id[row]!,
        queue: nameOf(shared, shared.queue[row]!),
        state,
        text: Buffer.from(jobs.payload(row)).toString(),
        attempts: jobs.table.attempts(row),
        crashes: jobs.table.crashes(row),
        runAt: shared.runAt[row]!,
        key: jobs.attributeText(row, Attribute.KEY),
      });
    }
    return rows;
  }
}

/** A client thread: a port, its queues, and what the port sleeps on. */
export class Client {
  readonly port: Port;
  readonly block: number;
  thread = 0;
  isAlive = true;
  sleeper: { readonly words: Int32Array; readonly index: number; readonly woken: () => void } | undefined;
  readonly #queues = new Map<string, Queue<unknown, unknown>>();
  readonly cores = new Map<string, QueueCore>();

  constructor(
    readonly life: Life,
    readonly name: string,
  ) {
    const sleep: Sleep = (words, index, woken) => {
      this.sleeper = { words, index, woken };
    };
    const { jobsMax, memoryBytes } = life.settings;
    const limits = { jobsMax, memoryBytes: Math.max(memoryBytes, 1 << 20), payloadBytesMax: 4096 };
    this.port = new Port(life.shared, life.clock, limits, life.random, sleep);
    this.block = this.port.owner * OwnerWord.WORDS;
  }

  get runnable(): boolean {
    return this.sleeper !== undefined && load(this.sleeper.words, this.sleeper.index) !== 1;
  }

  step(): void {
    const { woken } = this.sleeper!;
    this.sleeper = undefined;
    woken();
  }

  queue(name: string, options?: QueueOptions<never>): Queue<unknown, unknown> {
    let queue = this.#queues.get(name);
    if (queue === undefined) {
      const core = new QueueCore(this.port, name, options, Level.FSYNC);
      if (options !== undefined) core.declare(true);
      queue = new Queue<unknown, unknown>(core, undefined, () => {
        throw new Error('no workers here');
      });
      this.cores.set(name, core);
      this.#queues.set(name, queue);
    }
    return queue;
  }
}

function wall(clock: ManualClock): number {
  return Math.floor(clock.wallMs());
}

/** The buffers of the life before serve the next one, emptied: thousands of lives follow each other. */
const used = new Map<number, SharedBuffers>();

/** As `allocateShared` makes them, with room for few queues, groups and owners. */
function allocate(ringSlots: number): SharedBuffers {
  const before = used.get(ringSlots);
  if (before !== undefined) {
    // Blocks of an arena are used again as they are: its memory need not be empty.
    const { sizes: _, arena: __, ...rest } = before;
    for (const buffer of Object.values(rest)) new Float64Array(buffer).fill(0);
    return before;
  }
  const sizes = { ringSlots, rows: ROWS, arenaBytes: ARENA_BYTES };
  const groupBytes = READY_SLOTS << (READY_ENTRY_SHIFT + 2);
  const buffers = {
    sizes,
    control: new SharedArrayBuffer(Word.WORDS * 4 + Cell.CELLS * 8 + OWNERS * OwnerWord.WORDS * 4),
    stamps: new SharedArrayBuffer(ringSlots * 8),
    slots: new SharedArrayBuffer((ringSlots + reservationSlotsMax(sizes)) * SLOT_BYTES),
    table: new SharedArrayBuffer(ROWS * 72),
    queues: new SharedArrayBuffer(QUEUES_USED * QueueWord.WORDS * 4),
    names: new SharedArrayBuffer(NAME_BUCKETS * 4 + NAMES_BYTES),
    groups: new SharedArrayBuffer(GROUPS_MAX * GroupWord.WORDS * 4 + QUEUES_USED * groupBytes),
    replies: new SharedArrayBuffer(OWNERS_USED * REPLY_SLOTS * ReplyWord.WORDS * 4),
    arena: new SharedArrayBuffer(ARENA_BYTES),
    places: new SharedArrayBuffer((2 * ringSlots + SEGMENTS_KEPT) * 8),
  };
  used.set(ringSlots, buffers);
  return buffers;
}
