/**
 * What client threads ask the scheduler, and what it tells them. A question is an ASK record in the submit ring, so
 * it is answered in order: after everything the asking thread submitted before. An answer is an entry in the asking
 * owner's reply ring, its bytes in an arena block that is freed when the owner has moved past the entry.
 */

/** In the record's LIMITS word. */
export const Question = {
  /** JobInfo of `id`. */
  GET: 1,
  /** Take the job out, whatever its state. */
  CANCEL: 2,
  /** Tell me when the job ends, or how it ended. */
  WATCH: 3,
  DEAD_LIST: 4,
  DEAD_REDRIVE: 5,
  DEAD_PURGE: 6,
  /** Answer when everything before this has been applied. */
  SYNC: 7,
  /** Look at the row's deadline again: it has become earlier than its timer. */
  REARM: 8,
  /** Row-by-row check of the job table. */
  AUDIT: 9,
  /** Rewrite the log so that it holds little more than what is alive. */
  COMPACT: 10,
  /** The ids of the queues that the topic in a RouteQuestion goes to: Int32s. */
  ROUTE: 11,
  /** The last checkpoint of `id`, as it was encoded. */
  CHECKPOINT: 12,
} as const;

/** Kinds of entries in a reply ring. */
export const Reply = {
  /** The answer to a question: STATUS, and bytes where there are any. */
  ANSWER: 1,
  /** A watched job ended: STATUS is an Outcome. */
  OUTCOME: 2,
  /** The lease on ROW with the word in STATUS is lost. */
  LOST: 3,
  /** An event for listeners: STATUS is an index into EVENTS. */
  EVENT: 4,
  /** What became of an enqueue with a key: STATUS 1 = duplicate of ID. */
  VERDICT: 5,
} as const;

export const Outcome = { DONE: 0, DONE_WITH_RESULT: 1, DEAD: 2, CANCELLED: 3, UNKNOWN: 4, REMOVED: 5 } as const;

export const EVENTS = ['dead', 'failed', 'completed', 'expired'] as const;
export type EventName = (typeof EVENTS)[number];
/** Not for users: a lease that a fleet thread held is over (request: the holder, ROW, the word in the id). */
export const EVENT_OVERRUN = EVENTS.length;
/** Bit of an event in an owner's WANTS word. */
export function eventBit(event: number): number {
  return 256 << event;
}

/** JSON of a QUEUE record: what the scheduler has to know of a queue. Times in milliseconds. */
export interface QueueRecord {
  readonly name: string;
  readonly attempts: number;
  readonly crashes: number;
  readonly base: number;
  readonly max: number;
  readonly jitter: 'full' | 'none';
  readonly visibility: number;
  readonly resultRetention: number;
  readonly level: number;
  readonly priority?: number;
  /** Written by a compaction: jobs done whose last image lies below the segment `head`. */
  readonly done?: number;
  readonly head?: number;
}

/** An error as it is stored and sent. */
export interface StoredError {
  readonly cause?: string;
  readonly name: string;
  readonly message: string;
  readonly code?: string;
  readonly stack?: string;
}

/** JSON in front of a job's payload bytes in GET and DEAD_LIST answers. */
export interface StoredInfo {
  readonly id: number;
  readonly queue: string;
  readonly state: 'delayed' | 'ready' | 'leased' | 'done' | 'dead';
  readonly attempt: number;
  readonly crashes: number;
  readonly priority: number;
  readonly tenant: string;
  readonly key: string;
  readonly enqueuedAt: number;
  readonly runAt: number;
  readonly errors: readonly StoredError[];
  readonly reason?: string;
}

/** JSON of a ROUTE question. */
export interface RouteQuestion {
  readonly topic: string;
}

/** JSON of DEAD_* questions. */
export interface DeadFilter {
  readonly ids?: readonly number[];
  readonly reason?: string;
  readonly limit?: number;
  readonly after?: number;
  readonly dryRun?: boolean;
}
