/**
 * The words in which the interleaving tests speak: what virtual threads do, what can happen to them, what went wrong.
 */
export const Kind = {
  LOAD: 0,
  STORE: 1,
  EXCHANGE: 2,
  ADD: 3,
  OR: 4,
  AND: 5,
  NOTIFY: 6,
  WAIT: 7,
  /** Plain accesses. */
  READ: 8,
  WRITE: 9,
} as const;
export const KIND_NAMES = ['load', 'store', 'exchange', 'add', 'or', 'and', 'notify', 'wait', 'read', 'write'] as const;

export const Status = {
  RUNNING: 0,
  /** Was refused, or turns in a loop, and nothing it has read has changed. */
  BLOCKED: 1,
  /** In `Atomics.wait`. */
  PARKED: 2,
  DEAD: 3,
  FINISHED: 4,
} as const;

/** What an operation that has returned means for its thread. */
export const Next = { CONTINUE: 0, RETRY: 1, FINISH: 2 } as const;
export type Next = (typeof Next)[keyof typeof Next];

/** What one virtual thread does. The machine calls `operate` many times for one operation, and `settle` once. */
export interface Program {
  readonly name: string;
  /** May be blocked or parked for ever at the end. */
  readonly daemon: boolean;
  readonly killable: boolean;
  readonly reserves: boolean;
  /** From one operation to the next (V2): single pushes do, everybody else looks afresh. */
  readonly remembersHead: boolean;
  /** The word whose load begins each round of the operation's loop (V5), -1 for none. */
  readonly loopAt: number;
  operate(): number;
  settle(outcome: number): Next;
  /** Whether a refusal would be right at this moment: a refused operation must have seen it once. */
  witness?(): boolean;
}

/** Follows every change of memory, keeps its own words in the machine's state, and throws a `Violation`. */
export interface Oracle {
  written(thread: number, kind: number, address: number, before: number, after: number): void;
  killed(thread: number): void;
  atEnd(): void;
}

export interface Access {
  readonly thread: number;
  readonly kind: number;
  readonly address: number;
  readonly value: number;
  readonly result: number;
}

export class Violation extends Error {
  override readonly name = 'Violation';
}
