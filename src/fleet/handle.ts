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

export interface BoundHandler<Payload = never, Result = unknown> {
  readonly definition: QueueDefinition<Payload, Result>;
  readonly handler: Handler<Payload, Result>;
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
): BoundHandler<Payload, Result> {
  return { definition, handler };
}
