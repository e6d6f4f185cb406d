/**
 * What may happen to a row of the job table, as data. `STATES.md` draws it; the scheduler looks up every move here.
 * A pair that is not listed is a breach of our own rules and stops the broker.
 *
 * The states are the scheduler's view. `offered` covers waiting in a ready ring, being leased and being settled:
 * there the lease word knows more (see `lease.ts`). `leaving` means the scheduler has ended the lease or taken the
 * row out, and waits for its own record to come back from the log.
 */
import { assert } from '../../native-free/assert.js';

export const ROW_STATES = ['free', 'delayed', 'ready', 'offered', 'leaving', 'dead', 'done'] as const;
export type RowState = (typeof ROW_STATES)[number];

export const ROW_EVENTS = [
  'enqueue',
  'enqueue-later',
  'due',
  'offer',
  'withdraw',
  'take-out',
  'finish',
  'finish-kept',
  'retry',
  'retry-later',
  'bury',
  'remove',
  'forget',
] as const;
export type RowEvent = (typeof ROW_EVENTS)[number];

/** [state, event, next state]. Settling records meet `ready` and `delayed` rows in replay, where nothing is offered. */
export const TRANSITIONS = [
  ['free', 'enqueue', 'ready'],
  ['free', 'enqueue-later', 'delayed'],

  ['delayed', 'due', 'ready'],
  ['delayed', 'take-out', 'leaving'],
  ['delayed', 'finish', 'free'],
  ['delayed', 'finish-kept', 'done'],
  ['delayed', 'retry', 'ready'],
  ['delayed', 'retry-later', 'delayed'],
  ['delayed', 'bury', 'dead'],
  ['delayed', 'remove', 'free'],

  ['ready', 'offer', 'offered'],
  ['ready', 'take-out', 'leaving'],
  ['ready', 'finish', 'free'],
  ['ready', 'finish-kept', 'done'],
  ['ready', 'retry', 'ready'],
  ['ready', 'retry-later', 'delayed'],
  ['ready', 'bury', 'dead'],
  ['ready', 'remove', 'free'],

  ['offered', 'withdraw', 'ready'],
  ['offered', 'take-out', 'leaving'],
  ['offered', 'finish', 'free'],
  ['offered', 'finish-kept', 'done'],
  ['offered', 'retry', 'ready'],
  ['offered', 'retry-later', 'delayed'],
  ['offered', 'bury', 'dead'],

  ['leaving', 'retry', 'ready'],
  ['leaving', 'retry-later', 'delayed'],
  ['leaving', 'bury', 'dead'],
  ['leaving', 'remove', 'free'],

  ['dead', 'retry', 'ready'],
  ['dead', 'retry-later', 'delayed'],
  ['dead', 'remove', 'free'],

  ['done', 'forget', 'free'],
] as const satisfies readonly (readonly [RowState, RowEvent, RowState])[];

const BREACH = 255;
const NEXT = new Uint8Array(ROW_STATES.length * ROW_EVENTS.length).fill(BREACH);
for (const [from, event, to] of TRANSITIONS) {
  NEXT[ROW_STATES.indexOf(from) * ROW_EVENTS.length + ROW_EVENTS.indexOf(event)] = ROW_STATES.indexOf(to);
}

/** Numbers for the table's state byte and for events, so that the hot path compares no strings. */
export const State = { FREE: 0, DELAYED: 1, READY: 2, OFFERED: 3, LEAVING: 4, DEAD: 5, DONE: 6 } as const;
export const Event = {
  ENQUEUE: 0,
  ENQUEUE_LATER: 1,
  DUE: 2,
  OFFER: 3,
  WITHDRAW: 4,
  TAKE_OUT: 5,
  FINISH: 6,
  FINISH_KEPT: 7,
  RETRY: 8,
  RETRY_LATER: 9,
  BURY: 10,
  REMOVE: 11,
  FORGET: 12,
} as const;

/** The state after `event`, by numbers. Throws when the table has no such row. */
export function nextState(state: number, event: number): number {
  const next = NEXT[state * ROW_EVENTS.length + event]!;
  if (next === BREACH) assert(false, `no transition from ${ROW_STATES[state]} by ${ROW_EVENTS[event]}`);
  return next;
}
