/**
 * Contracts that several threads share: a queue's definition, and a handler bound to one.
 */
import { type QueueOptions, queueName } from '../options.js';
import type { Handler } from './worker.js';

export interface QueueDefinition<Payload = unknown, Result = unknown> {
  readonly name: string;
  readonly options: QueueOptions<Payload>;
  /** Types only: nothing is there at run time. */
  readonly types?: { readonly payload: Payload; readonly result: Result };
}

/** What `handle` makes: payload and result types have been checked against each other and are forgotten. */
export interface BoundHandler {
  readonly definition: QueueDefinition<never, unknown>;
  readonly handler: Handler<never, unknown>;
}

/** A queue's name, options and types, to be shared by the threads that use it. */
export function defineQueue<Payload = unknown, Result = unknown>(
  name: string,
  options: QueueOptions<Payload> = {},
): QueueDefinition<Payload, Result> {
  return { name: queueName(name), options };
}

/** Says which handler serves a queue, in a module that serves several. */
export function handle<Payload, Result>(
  definition: QueueDefinition<Payload, Result>,
  handler: Handler<Payload, Result>,
): BoundHandler {
  return { definition: definition as unknown as BoundHandler['definition'], handler };
}
