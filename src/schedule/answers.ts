/**
 * Answers questions (`questions.ts`) out of the job table. Scheduler thread only.
 *
 * A question that changes jobs (cancel, redrive, purge) appends its records to the outbox and an ECHO behind them;
 * when the echo comes back through the ring, everything before it is committed and applied, and the answer is due.
 */
import { assert } from '../../native-free/assert.js';
import type { Encoder } from '../../native-free/encoder.js';
import { LeaseState, type Shared } from '../../native-free/layout.js';
import { nameOf } from '../../native-free/names.js';
import * as record from '../../native-free/record.js';
import { At, Attribute, Level, type Memory, RecordType } from '../../native-free/record.js';
import type { Jobs } from './jobs.js';
import { leaseState } from './lease.js';
import { type DeadFilter, Outcome, Question, Reply, type RouteQuestion, type StoredInfo } from './questions.js';
import type { Replies } from './replies.js';
import { ROW_STATES, State } from './transitions.js';

const ECHO = 63;
const LIST_MAX = 1000;
const text = new TextDecoder();
const utf8 = new TextEncoder();

/** What only the scheduler can do for an answer. */
interface Hands {
  takeOut(row: number): boolean | null;
  rearm(row: number): void;
  nowMs(): number;
  compact(owner: number, request: number): void;
}

export class Answers {
  readonly #shared: Shared;
  readonly #jobs: Jobs;
  readonly #replies: Replies;
  readonly #outbox: Encoder;
  readonly #hands: Hands;
  #cancels: { owner: number; request: number; id: number; queue: number }[] = [];

  constructor(shared: Shared, jobs: Jobs, replies: Replies, outbox: Encoder, hands: Hands) {
    this.#shared = shared;
    this.#jobs = jobs;
    this.#replies = replies;
    this.#outbox = outbox;
    this.#hands = hands;
  }

  get waiting(): boolean {
    return this.#cancels.length > 0;
  }

  answer(memory: Memory, at: number): void {
    const verb = memory.i32[(at + At.LIMITS) >>> 2]!;
    const id = record.idOf(memory, at);
    const queue = record.queueOf(memory, at);
    const request = record.rowOf(memory, at);
    const owner = record.timeOf(memory, at);
    switch (verb) {
      case Question.GET: {
        const row = this.#jobs.find(id);
        this.#reply(owner, request, row === 0 ? 0 : 1, row === 0 ? undefined : this.#frames([row]));
        return;
      }
      case Question.CANCEL:
        if (!this.#tryCancel(owner, request, id, queue)) this.#cancels.push({ owner, request, id, queue });
        return;
      case Question.WATCH:
        return this.#watch(owner, id);
      case Question.DEAD_LIST: {
        const rows = this.#deadRows(queue, this.#filter(memory, at));
        this.#reply(owner, request, rows.length, this.#frames(rows));
        return;
      }
      case Question.DEAD_REDRIVE:
        return this.#each(owner, request, RecordType.REDRIVE, queue, this.#filter(memory, at));
      case Question.DEAD_PURGE:
        return this.#each(owner, request, RecordType.PURGE, queue, this.#filter(memory, at));
      case Question.SYNC:
        return this.#reply(owner, request, 1, undefined);
      case Question.REARM:
        return this.#hands.rearm(request);
      case Question.AUDIT:
        return this.#reply(owner, request, 1, utf8.encode(JSON.stringify(this.#jobs.table.audit())));
      case Question.COMPACT:
        return this.#hands.compact(owner, request);
      case Question.ROUTE: {
        const { topic } = this.#question(memory, at) as RouteQuestion;
        const queues = this.#jobs.bindings.match(topic);
        return this.#reply(owner, request, queues.length, new Uint8Array(Int32Array.from(queues).buffer));
      }
      case Question.CHECKPOINT: {
        const bytes = this.#jobs.checkpoints.get(this.#jobs.find(id));
        this.#reply(owner, request, bytes === undefined ? 0 : 1, bytes);
        return;
      }
      case ECHO:
        return this.#reply(owner, request, queue, undefined);
      default:
        assert(false, 'a question that nobody asks');
    }
  }

  /** Cancellations that met a consumer between two words. */
  retry(): number {
    if (this.#cancels.length === 0) return 0;
    const before = this.#cancels.length;
    this.#cancels = this.#cancels.filter(
      ({ owner, request, id, queue }) => !this.#tryCancel(owner, request, id, queue),
    );
    return before - this.#cancels.length;
  }

  #tryCancel(owner: number, request: number, id: number, queue: number): boolean {
    const row = this.#jobs.find(id);
    const taken = row === 0 || this.#shared.queue[row] !== queue ? null : this.#hands.takeOut(row);
    if (taken === false) return false;
    if (taken === null) {
      this.#reply(owner, request, 0, undefined);
      return true;
    }
    const level = record.jobLevelOf(this.#shared.arena, this.#jobs.bodyOffset(row));
    this.#outbox.appendShort(RecordType.CANCEL, level, id, this.#shared.queue[row]!, row, this.#hands.nowMs());
    this.#echo(owner, request, 1);
    return true;
  }

  #watch(owner: number, id: number): void {
    const jobs = this.#jobs;
    const row = jobs.find(id);
    if (row === 0) return jobs.tell(owner, id);
    switch (jobs.table.state(row)) {
      case State.DONE: {
        const result = jobs.results.get(row);
        const status = result === undefined ? Outcome.DONE : Outcome.DONE_WITH_RESULT;
        return this.#replies.send(owner, Reply.OUTCOME, 0, status, 0, id, result);
      }
      case State.DEAD: {
        const errors = jobs.errors.get(row);
        const told = { reason: jobs.reasons.get(row), error: errors?.[errors.length - 1] };
        return this.#replies.send(owner, Reply.OUTCOME, 0, Outcome.DEAD, 0, id, utf8.encode(JSON.stringify(told)));
      }
      default:
        jobs.watch(row, owner);
    }
  }

  #each(owner: number, request: number, type: number, queue: number, filter: DeadFilter): void {
    const rows = this.#deadRows(queue, filter);
    if (filter.dryRun !== true) {
      for (const row of rows) {
        const level = record.jobLevelOf(this.#shared.arena, this.#jobs.bodyOffset(row));
        this.#outbox.appendShort(type, level, this.#shared.id[row]!, queue, row, this.#hands.nowMs());
      }
    }
    this.#echo(owner, request, rows.length);
  }

  /** `value` travels in the QUEUE field. */
  #echo(owner: number, request: number, value: number): void {
    const at = this.#outbox.append(RecordType.ASK, Level.MEMORY, 0, value, request, owner, ECHO);
    this.#outbox.finish(at);
  }

  #deadRows(queueId: number, filter: DeadFilter): number[] {
    const jobs = this.#jobs;
    const queue = jobs.queues[queueId];
    if (queue === undefined) return [];
    const wanted = filter.ids === undefined ? undefined : new Set(filter.ids);
    const limit = filter.limit ?? Number.POSITIVE_INFINITY;
    const rows: number[] = [];
    let row = filter.after === undefined ? queue.deadFirst : jobs.deadAfter(queue, filter.after);
    for (; row !== 0 && rows.length < limit; row = jobs.nextDead(queue, row)) {
      if (wanted !== undefined && !wanted.has(this.#shared.id[row]!)) continue;
      if (filter.reason !== undefined && jobs.reasons.get(row) !== filter.reason) continue;
      rows.push(row);
    }
    return rows;
  }

  #filter(memory: Memory, at: number): DeadFilter {
    return record.sizeOf(memory, at) === 0 ? {} : (this.#question(memory, at) as DeadFilter);
  }

  #question(memory: Memory, at: number): unknown {
    const from = at + At.ATTRIBUTES;
    return JSON.parse(text.decode(memory.u8.slice(from, from + record.sizeOf(memory, at))));
  }

  /** [u32 bytes of JSON][u32 bytes of payload][JSON][payload], one behind the other. */
  #frames(rows: readonly number[]): Uint8Array {
    const parts: Uint8Array[] = [];
    for (const row of rows.slice(0, LIST_MAX)) {
      const info = utf8.encode(JSON.stringify(this.#info(row)));
      const payload = this.#jobs.payload(row);
      parts.push(new Uint8Array(new Uint32Array([info.length, payload.length]).buffer), info, payload);
    }
    let bytes = 0;
    for (const part of parts) bytes += part.length;
    const frames = new Uint8Array(bytes);
    let at = 0;
    for (const part of parts) {
      frames.set(part, at);
      at += part.length;
    }
    return frames;
  }

  #info(row: number): StoredInfo {
    const jobs = this.#jobs;
    const shared = this.#shared;
    const state = ROW_STATES[jobs.table.state(row)]!;
    const held = leaseState(shared.lease[row]!);
    const leased = held === LeaseState.LEASED || held === LeaseState.CLAIMING || held === LeaseState.SETTLED;
    const shownState = state === 'offered' ? (leased ? 'leased' : 'ready') : state;
    return {
      id: shared.id[row]!,
      queue: nameOf(shared, shared.queue[row]!),
      state: shownState === 'leaving' || shownState === 'free' ? 'ready' : shownState,
      attempt: jobs.table.attempts(row),
      crashes: jobs.table.crashes(row),
      priority: shared.priority[row]!,
      tenant: jobs.attributeText(row, Attribute.TENANT),
      key: jobs.attributeText(row, Attribute.KEY),
      enqueuedAt: record.timeOf(shared.arena, jobs.bodyOffset(row)),
      runAt: shared.runAt[row]!,
      errors: jobs.errors.get(row) ?? [],
      reason: jobs.reasons.get(row),
    };
  }

  #reply(owner: number, request: number, status: number, bytes: Uint8Array | undefined): void {
    this.#replies.send(owner, Reply.ANSWER, request, status, 0, 0, bytes);
  }
}
