/**
 * A queue's dead letters: jobs whose attempts or crash budget is used up, or that a handler gave up for good.
 */
import { load } from '../../native-free/atomics.js';
import { QueueWord, reservationSlotsMax } from '../../native-free/layout.js';
import { REASONS, SLOT_BYTES } from '../../native-free/record.js';
import { MillraceError } from '../errors.js';
import { choice, record, whole } from '../options.js';
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
    this.#core.port.check('count dead letters');
    this.#core.port.catchUp(1);
    return load(this.#core.port.shared.queues, this.#core.block + QueueWord.DEAD);
  }

  /** A page of dead jobs, the longest dead first. */
  async list(options: DeadListOptions = {}): Promise<JobInfo<Payload>[]> {
    const a = 'list dead letters';
    record(a, options);
    const limit = whole(a, 'limit', options.limit, 1, 1000, 100);
    const after = options.after === undefined ? undefined : whole(a, 'after', options.after, 0, ID_MAX, 0);
    const answer = await this.#ask(Question.DEAD_LIST, a, { limit, after, reason: reasonOf(a, options.reason) });
    if (answer.bytes === undefined) return [];
    return readFrames<Payload>(answer.bytes, (bytes) => this.#core.coding.decode(bytes) as Payload);
  }

  /** Dead jobs become ready again, with all their attempts. Resolves with how many, when that is durable. */
  async redrive(selection: DeadSelection = {}): Promise<number> {
    return (await this.#ask(Question.DEAD_REDRIVE, 'redrive dead letters', this.#checked('redrive', selection))).status;
  }

  /** Dead jobs are removed for good. Resolves with how many, when that is durable. */
  async purge(selection: DeadSelection = {}): Promise<number> {
    return (await this.#ask(Question.DEAD_PURGE, 'purge dead letters', this.#checked('purge', selection))).status;
  }

  /** A question takes one reservation of the submit ring. */
  #checked(verb: string, selection: DeadSelection): DeadFilter {
    const bytesMax = reservationSlotsMax(this.#core.port.shared.sizes) * SLOT_BYTES;
    return checked(verb, selection, Math.floor((bytesMax - 256) / ID_BYTES));
  }

  #ask(verb: number, attempted: string, filter: DeadFilter) {
    this.#core.port.check(attempted);
    return this.#core.port.ask(verb, 0, this.#core.id, filter);
  }
}

const ID_MAX = Number.MAX_SAFE_INTEGER;
/** What an id may take in a question's JSON. */
const ID_BYTES = 17;

function reasonOf(attempted: string, reason: unknown): string | undefined {
  return reason === undefined ? undefined : choice(attempted, 'reason', reason, REASONS, 'none');
}

function checked(verb: string, selection: DeadSelection, idsMax: number): DeadFilter {
  const a = `${verb} dead letters`;
  const { ids, limit, dryRun } = record(a, selection);
  if (ids !== undefined && !(Array.isArray(ids) && ids.every((id) => Number.isSafeInteger(id)))) {
    throw new MillraceError('ERR_MILLRACE_OPTION_INVALID', `cannot ${a}: ids is not an array of job ids`);
  }
  if (ids !== undefined && ids.length > idsMax) {
    throw new MillraceError(
      'ERR_MILLRACE_OPTION_INVALID',
      `cannot ${a}: ${ids.length} ids are given, the limit is ${idsMax}`,
      { option: 'ids', limit: idsMax },
    );
  }
  if (limit !== undefined) whole(a, 'limit', limit, 1, ID_MAX, 1);
  return { ids, reason: reasonOf(a, selection.reason), limit, dryRun };
}
