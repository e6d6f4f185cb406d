/** millrace: an embedded, durable, in-process job queue. The public names, and nothing else. */
export {
  attach,
  type Broker,
  type BrokerEvents,
  type BrokerHandle,
  type BrokerStats,
  type CloseOptions,
  type CompactionReport,
  type JobEvent,
  open,
} from './client/broker.js';
export type { DeadLetters, DeadListOptions, DeadSelection } from './client/dead-letters.js';
export type { Job, ResultOptions } from './client/job.js';
export type { FailOptions, Lease } from './client/lease.js';
export type { Counts, JobInfo, Queue } from './client/queue.js';
export { ERROR_CODES, type ErrorCode, MillraceError } from './errors.js';
export { type BoundHandler, defineQueue, handle, type QueueDefinition } from './fleet/handle.js';
export { Dead, type Handler, Retry, type RunningJob, type Worker, type WorkerStats } from './fleet/worker.js';
export type {
  Backoff,
  BrokerOptions,
  ClaimOptions,
  Codec,
  Durability,
  EnqueueOptions,
  ProcessOptions,
  QueueOptions,
  StandardSchema,
} from './options.js';
