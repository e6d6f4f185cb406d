/**
 * The memory map: every offset, width, writer and reader of the shared buffers, and nothing else knows them.
 * `native-free/MEMORY.md` draws it. Buffers are reserved large and touched lazily: an untouched page costs nothing.
 *
 * M1  A word that several threads write has a cache line (16 words) of its own or shares it with words of the same
 *     writers.
 * M2  Everything in the table but LEASE, DEADLINE and HOLDER is written by the scheduler alone.
 * M3  Float64 cells have one writer and are read for display, or were written before the reader could know of them.
 */

import { type Memory, memoryOver, SLOT_BYTES } from './record.js';
import { initialiseRing, type RingPlace } from './ring.js';

const LINE = 16;

/** Int32 word indexes of the control buffer. */
export const Word = {
  SUBMIT_TAIL: 0,
  /** The scheduler's position: slots below it are free again, their records applied. */
  SUBMIT_HEAD: LINE,
  /** The log writer's watermark: records below it are as durable as they asked to be. */
  COMMITTED: 2 * LINE,
  /** floor(absolute position of the log writer / 2^31), to make 53-bit positions of Int32 ones. */
  COMMITTED_HIGH: 2 * LINE + 1,
  WRITER_ASLEEP: 3 * LINE,
  SCHEDULER_ASLEEP: 4 * LINE,
  STATE: 5 * LINE,
  EPOCH: 5 * LINE + 1,
  OWNERS_SEEN: 5 * LINE + 2,
  /** An index into POISON_CODES, 0 = healthy. */
  POISON: 5 * LINE + 3,
  /** 1 while the disk is full: written by the log writer. */
  DISK_FULL: 5 * LINE + 4,
  /** Bumped when an owner's state becomes DEAD. */
  DEATHS: 5 * LINE + 5,
  /** 1: the scheduler asks the log writer to go on in a new segment. */
  ROLL: 5 * LINE + 6,
  JOBS_RESERVED: 6 * LINE,
  QUEUES: 7 * LINE,
  NAME_BYTES: 7 * LINE + 1,
  GROUPS: 8 * LINE,
  REFUSALS: 9 * LINE,
  /** Who listens for events: one bit per owner. */
  LISTENERS: 10 * LINE,
  /** Changes with every change of the bindings. */
  BINDINGS: 11 * LINE,
  /** Publishes that no binding matched. */
  UNROUTED: 11 * LINE + 1,
  WORDS: 16 * LINE,
} as const;

/** Float64 cells of the control buffer, behind the words. */
export const Cell = {
  ID_BASE: 0,
  MONOTONIC_ZERO_MS: 1,
  POSITION: 8,
  SYNCED: 9,
  BATCHES: 10,
  FLUSHES: 11,
  RECORDS: 12,
  BYTES: 13,
  ENQUEUED: 24,
  DONE: 25,
  RETRIED: 26,
  DEAD: 27,
  EXPIRED: 28,
  CANCELLED: 29,
  ARENA_BYTES: 30,
  LIVE: 31,
  RECOVERED: 32,
  /** Numbers of the oldest and the newest segment, and where the log begins. Written by the scheduler and the writer. */
  SEGMENT_FIRST: 33,
  SEGMENT_NEWEST: 34,
  LOG_START: 35,
  COMPACTIONS: 36,
  /** Refused ranges of ring positions: [from, to] pairs, the n-th at n modulo REFUSALS_KEPT. */
  REFUSED: 64,
  CELLS: 64 + 2 * 64,
} as const;
export const REFUSALS_KEPT = 64;
/** Bases of segments are kept at their number modulo this. */
export const SEGMENTS_KEPT = 65_536;

export const BrokerState = { STARTING: 0, SERVING: 1, CLOSING: 2, CLOSED: 3 } as const;

export const OWNERS = 256;
export const Owner = { WRITER: 1, SCHEDULER: 2, FIRST: 3 } as const;

/** Words of one owner's block: a thread that produces or consumes. */
export const OwnerWord = {
  STATE: 0,
  THREAD: 1,
  /** How many slots the owner is about to reserve (ring invariant I3). */
  INTENT: 2,
  /** Row + 1 that the owner is turning from READY into LEASED. */
  CLAIMING: 3,
  /** Submit ring position from which on the dead owner has nothing. Written by the log writer. */
  DRAINED: 4,
  /** The operating system's number of the thread, 0 = unknown. */
  SYSTEM_THREAD: 5,
  /** 1: the owner left by itself, so what it held goes back without a charge. */
  LEFT: 6,
  /** The exit code of the owner's thread + 1, 0 = unknown. */
  EXIT: 7,
  /** How often the number has been taken: an answer that comes late must not reach the next to have it. */
  GENERATION: 8,
  ASLEEP: LINE,
  WANTS: LINE + 1,
  REPLY_TAIL: 2 * LINE,
  REPLY_HEAD: 3 * LINE,
  WORDS: 4 * LINE,
} as const;
export const OwnerState = { FREE: 0, ALIVE: 1, DEAD: 2, DRAINED: 3 } as const;
export const Wants = { DURABLE: 1, ROOM: 2, READY: 4, REPLY: 8 } as const;

export const QUEUES_MAX = 131_072;
export const QueueWord = {
  LIVE: 0,
  DELAYED: 1,
  DEAD: 2,
  /** Group index + 1, 0 = nobody consumes. */
  GROUP: 3,
  NAME: 4,
  NAME_BYTES: 5,
  FLAGS: 6,
  /** Changed by consumers and the scheduler, together with the lease word. */
  LEASED: 8,
  /** Leases that have ended, or rows taken out, whose record has not been applied yet. */
  SETTLING: 9,
  DONE: 10,
  OLDEST_READY: 12,
  /** How often the settings behind it have been given; see src/schedule/queue-settings. */
  VERSION: LINE,
  LIMITS: LINE + 1,
  VISIBILITY: LINE + 2,
  PRIORITY: LINE + 3,
  BASE: LINE + 4,
  MAX: LINE + 6,
  RETENTION: LINE + 8,
  WORDS: 2 * LINE,
} as const;
export const QueueFlag = { DECLARED: 1, PAUSED: 2 } as const;
export const NAME_BYTES_MAX = 255;
const NAMES_BYTES = 16 << 20;
export const NAME_BUCKETS = 262_144;

export const GROUPS_MAX = 1024;
export const READY_SLOTS = 4096;
export const READY_ENTRY_SHIFT = 2;
export const GroupWord = {
  HEAD: 0,
  TAIL: LINE,
  /** How many entries the scheduler may keep in the ready ring. */
  CREDIT: 2 * LINE,
  /** Ready jobs that are not in the ring: written by the scheduler. */
  BACKLOG: 2 * LINE + 1,
  QUEUE: 2 * LINE + 2,
  /** One bit per owner that found the ring empty. */
  HUNGRY: 3 * LINE,
  WORDS: 4 * LINE,
} as const;

export const REPLY_SLOTS = 1024;
/** Words of one reply: [request, kind, ref, bytes, status, row, id as Float64]. */
export const ReplyWord = { REQUEST: 0, KIND: 1, REF: 2, BYTES: 3, STATUS: 4, ROW: 5, ID: 6, WORDS: 8 } as const;

/** Lease words: counter in the upper 29 bits, state below. */
export const LeaseState = { IDLE: 0, READY: 1, CLAIMING: 2, LEASED: 3, SETTLED: 4, EXPIRING: 5 } as const;
/** What the deadline of a lease means: a visibility timeout, nothing (held while its thread lives), or a run's limit. */
export const Terms = { VISIBILITY: 0, BOUND: 1, TIMEOUT: 2 } as const;
export const LEASE_STATE_MASK = 7;
export const LEASE_COUNTER_SHIFT = 3;
export const TOKEN_COUNTERS = 2 ** 29;

export interface Sizes {
  /** Slots of the submit ring, a power of two. */
  readonly ringSlots: number;
  /** Rows of the job table, row 0 unused. */
  readonly rows: number;
  readonly arenaBytes: number;
}

/** Everything another thread needs to see the same broker: structured-cloneable. */
export interface SharedBuffers {
  readonly sizes: Sizes;
  readonly control: SharedArrayBuffer;
  readonly stamps: SharedArrayBuffer;
  readonly slots: SharedArrayBuffer;
  readonly table: SharedArrayBuffer;
  readonly queues: SharedArrayBuffer;
  readonly names: SharedArrayBuffer;
  readonly groups: SharedArrayBuffer;
  readonly replies: SharedArrayBuffer;
  readonly arena: SharedArrayBuffer;
  /** Where batches lie in the log, by the ring slot they began at; then the segments' bases. */
  readonly places: SharedArrayBuffer;
}

const CONTROL_CELLS_AT = Word.WORDS * 4;
const OWNERS_AT = CONTROL_CELLS_AT + Cell.CELLS * 8;
const ROW_BYTES = 70;

/** The most slots one reservation may take; the slot memory is longer than the ring by as much (see MEMORY.md). */
export function reservationSlotsMax(sizes: Sizes): number {
  return sizes.ringSlots >>> 1;
}

export function allocateShared(sizes: Sizes): SharedBuffers {
  const buffers = {
    sizes,
    control: new SharedArrayBuffer(OWNERS_AT + OWNERS * OwnerWord.WORDS * 4),
    stamps: new SharedArrayBuffer(sizes.ringSlots * 8),
    slots: new SharedArrayBuffer((sizes.ringSlots + reservationSlotsMax(sizes)) * SLOT_BYTES),
    table: new SharedArrayBuffer(sizes.rows * ROW_BYTES + 64),
    queues: new SharedArrayBuffer(QUEUES_MAX * QueueWord.WORDS * 4),
    names: new SharedArrayBuffer(NAME_BUCKETS * 4 + NAMES_BYTES),
    groups: new SharedArrayBuffer(GROUPS_MAX * (GroupWord.WORDS * 4 + (READY_SLOTS << (READY_ENTRY_SHIFT + 2)))),
    replies: new SharedArrayBuffer(OWNERS * REPLY_SLOTS * ReplyWord.WORDS * 4),
    arena: new SharedArrayBuffer(sizes.arenaBytes),
    places: new SharedArrayBuffer((2 * sizes.ringSlots + SEGMENTS_KEPT) * 8),
  };
  const shared = new Shared(buffers);
  initialiseRing(shared.submitPlace);
  shared.control[Word.COMMITTED] = sizes.ringSlots;
  return buffers;
}

/** One thread's views of the shared buffers. */
export class Shared {
  readonly sizes: Sizes;
  readonly control: Int32Array;
  readonly cells: Float64Array;
  readonly owners: Int32Array;
  readonly slots: Memory;
  readonly arena: Memory;
  readonly queues: Int32Array;
  readonly queueCells: Float64Array;
  readonly nameBuckets: Int32Array;
  readonly nameBytes: Uint8Array;
  readonly groups: Int32Array;
  readonly replies: Int32Array;
  readonly replyCells: Float64Array;
  readonly submitPlace: RingPlace;
  /** Two cells a ring slot: where the records of the batch that begins there lie in the log, and its slots. */
  readonly places: Float64Array;
  readonly segmentBases: Float64Array;

  readonly id: Float64Array;
  readonly runAt: Float64Array;
  /** When the row's timer fires: wall clock for delayed rows, monotonic for leased ones. */
  readonly timer: Float64Array;
  /** Where the log holds the job's latest whole image; 0 = nowhere. */
  readonly position: Float64Array;
  readonly lease: Int32Array;
  /** Monotonic milliseconds since MONOTONIC_ZERO_MS, wrapping. */
  readonly deadline: Int32Array;
  readonly next: Int32Array;
  readonly prev: Int32Array;
  readonly priority: Int32Array;
  readonly queue: Int32Array;
  /** attempts u16, crashes u8, state u8. */
  readonly counts: Int32Array;
  /** The job's bytes in the arena, 0 = none. */
  readonly ref: Int32Array;
  readonly bytes: Int32Array;
  /** The owner that holds the lease. */
  readonly holder: Uint8Array;
  /** On what terms it is held: see `Terms`. Written with the deadline. */
  readonly terms: Uint8Array;

  constructor(buffers: SharedBuffers) {
    const { sizes } = buffers;
    this.sizes = sizes;
    this.control = new Int32Array(buffers.control, 0, Word.WORDS);
    this.cells = new Float64Array(buffers.control, CONTROL_CELLS_AT, Cell.CELLS);
    this.owners = new Int32Array(buffers.control, OWNERS_AT, OWNERS * OwnerWord.WORDS);
    this.slots = memoryOver(buffers.slots);
    this.arena = memoryOver(buffers.arena);
    this.queues = new Int32Array(buffers.queues);
    this.queueCells = new Float64Array(buffers.queues);
    this.nameBuckets = new Int32Array(buffers.names, 0, NAME_BUCKETS);
    this.nameBytes = new Uint8Array(buffers.names, NAME_BUCKETS * 4);
    this.groups = new Int32Array(buffers.groups);
    this.replies = new Int32Array(buffers.replies);
    this.replyCells = new Float64Array(buffers.replies);

    this.places = new Float64Array(buffers.places, 0, 2 * sizes.ringSlots);
    this.segmentBases = new Float64Array(buffers.places, 2 * sizes.ringSlots * 8, SEGMENTS_KEPT);

    const { rows } = sizes;
    const { table } = buffers;
    let at = 0;
    const f64 = (): Float64Array => {
      const column = new Float64Array(table, at, rows);
      at += rows * 8;
      return column;
    };
    const i32 = (): Int32Array => {
      const column = new Int32Array(table, at, rows);
      at += rows * 4;
      return column;
    };
    this.id = f64();
    this.runAt = f64();
    this.timer = f64();
    this.position = f64();
    this.lease = i32();
    this.deadline = i32();
    this.next = i32();
    this.prev = i32();
    this.priority = i32();
    this.queue = i32();
    this.counts = i32();
    this.ref = i32();
    this.bytes = i32();
    this.holder = new Uint8Array(table, at, rows);
    this.terms = new Uint8Array(table, at + rows, rows);

    this.submitPlace = {
      words: new Int32Array(buffers.stamps),
      entries: 0,
      entryShift: 1,
      capacity: sizes.ringSlots,
      cursors: this.control,
      tail: Word.SUBMIT_TAIL,
      head: Word.SUBMIT_HEAD,
      intents: this.owners,
      intentFirst: OwnerWord.INTENT,
      intentStride: OwnerWord.WORDS,
    };
  }

  /** Where the ready ring of a group lives. */
  readyPlace(group: number): RingPlace {
    const block = group * GroupWord.WORDS;
    return {
      words: this.groups,
      entries: GROUPS_MAX * GroupWord.WORDS + ((group * READY_SLOTS) << READY_ENTRY_SHIFT),
      entryShift: READY_ENTRY_SHIFT,
      capacity: READY_SLOTS,
      cursors: this.groups,
      tail: block + GroupWord.TAIL,
      head: block + GroupWord.HEAD,
      intents: this.owners,
      intentFirst: OwnerWord.INTENT,
      intentStride: OwnerWord.WORDS,
    };
  }

  /** Byte offset of a ring position in `slots`. A reservation that crosses the ring's end runs on behind it. */
  slotOffset(position: number): number {
    return (position & (this.sizes.ringSlots - 1)) * SLOT_BYTES;
  }

  /** The 53-bit position of an Int32 ring position that is within a ring's length of the log writer's. */
  absolute(position: number): number {
    const high = Atomics.load(this.control, Word.COMMITTED_HIGH);
    const centre = high * 2 ** 31 + 2 ** 30;
    return centre + ((position - (centre | 0)) | 0);
  }
}
