/**
 * A queue's dead letters: jobs whose attempts or crash budget is used up, or that a handler gave up for good.
 */
import { load } from '../../native-free/atomics.js';
import { QueueWord } from '../../native-free/layout.js';
import { MillraceError } from '../errors.js';
import { whole } from '../options.js';
import { type DeadFilter, Question } from '../schedule/questions.js';
import { type JobInfo, readFrames } from './queue.js';
import type { QueueCore } from './queue-core.js';

export interface DeadListOptions {
  /** Most jobs, 1 to 1,000. Default 100. */
  readonly limit?: number;
  /** The id of the last job of the page before. */
  readonly after?: number;
  readonly reason?: string;
}

/** Which dead jobs are meant; all of them when nothing is said. */
export interface DeadSelection {
  readonly ids?: readonly number[];
  readonly reason?: string;
  readonly limit?: number;
  /** Counts what would be done, and does nothing. */
  readonly dryRun?: boolean;
}

export class DeadLetters<Payload = unknown> {
  readonly #core: QueueCore;

  constructor(core: QueueCore) {
    this.#core = core;
  }

  get size(): number {
    this.#core.port.catchUp(1);
    return load(this.#core.port.shared.queues, this.#core.block + QueueWord.DEAD);
  }

  /** A page of dead jobs, the longest dead first. */
  async list(options: DeadListOptions = {}): Promise<JobInfo<Payload>[]> {
    const limit = whole('list dead letters', 'limit', options.limit, 1, 1000, 100);
    const answer = await this.#ask(Question.DEAD_LIST, 'list dead letters', { ...options, limit });
    if (answer.bytes === undefined) return [];
    return readFrames<Payload>(answer.bytes, (bytes) => this.#core.coding.decode(bytes) as Payload);
  }

  /** Dead jobs become ready again, with all their attempts. Resolves with how many, when that is durable. */
  async redrive(selection: DeadSelection = {}): Promise<number> {
    return (await this.#ask(Question.DEAD_REDRIVE, 'redrive dead letters', checked('redrive', selection))).status;
  }

  /** Dead jobs are removed for good. Resolves with how many, when that is durable. */
  async purge(selection: DeadSelection = {}): Promise<number> {
    return (await this.#ask(Question.DEAD_PURGE, 'purge dead letters', checked('purge', selection))).status;
  }

  #ask(verb: number, attempted: string, filter: DeadFilter) {
    this.#core.port.check(attempted);
    return this.#core.port.ask(verb, 0, this.#core.id, filter);
  }
}

function checked(verb: string, selection: DeadSelection): DeadFilter {
  const { ids, reason, limit, dryRun } = selection;
  if (ids !== undefined && !(Array.isArray(ids) && ids.every((id) => Number.isSafeInteger(id)))) {
    throw new MillraceError(
      'ERR_MILLRACE_OPTION_INVALID',
      `cannot ${verb} dead letters: ids is not an array of job ids`,
    );
  }
  if (limit !== undefined) whole(`${verb} dead letters`, 'limit', limit, 1, Number.MAX_SAFE_INTEGER, 1);
  return { ids, reason, limit, dryRun };
}
