/**
 * What a queue is to one thread: its id, settings and coding, the declaration in the log, and the claim itself.
 * Shared by the public `Queue`, leases and workers of the thread.
 *
 * Q1  A queue's QUEUE record leaves this thread before its first job does (C4 in port.ts).
 * Q2  A claim announces the row (CLAIMING) before it touches the lease word, so that the scheduler can tell, when this
 *     thread dies in between, whose half-made lease it is.
 * Q3  Payload bytes are copied out of the arena and the lease word is looked at again before they are decoded: bytes
 *     of a lease that was lost meanwhile are never shown to anybody.
 */
import { wake } from '../../native-free/agent.js';
import { ARENA_UNIT_BYTES } from '../../native-free/arena.js';
import { add, compareExchange, load, store } from '../../native-free/atomics.js';
import {
  GROUPS_MAX,
  GroupWord,
  LeaseState,
  OwnerWord,
  QueueFlag,
  QueueWord,
  READY_SLOTS,
  Terms,
  Word,
} from '../../native-free/layout.js';
import { queueNamed } from '../../native-free/names.js';
import * as record from '../../native-free/record.js';
import { Attribute, BODY, Level, RecordType } from '../../native-free/record.js';
import { Ring } from '../../native-free/ring.js';
import { MillraceError, shown } from '../errors.js';
import {
  INTERVAL_MS_MAX,
  type QueueOptions,
  type QueueSettings,
  queueSettings,
  record as recordOf,
} from '../options.js';
import { withState } from '../schedule/lease.js';
import { Question, type QueueRecord } from '../schedule/questions.js';
import { sharedSettings, shareSettings } from '../schedule/queue-settings.js';
import { type Coding, codecOf, codingOf } from './codec.js';
import { Lease } from './lease.js';
import type { Port } from './port.js';

const CREDIT_FIRST = 64;
/** How long a synchronous look may turn on the spot for the scheduler to catch up with what is committed. */
const CATCH_UP_MS = 1;
const ADOPT_MS = 50;

/** A lease that lasts as long as its thread: the longest run in milliseconds, 0 = no limit. */
export interface Bound {
  readonly timeoutMs: number;
}

export class QueueCore {
  readonly port: Port;
  readonly id: number;
  readonly name: string;
  readonly block: number;
  readonly resultCoding: Coding = codingOf('json');
  readonly taken = new Int32Array(2 * READY_SLOTS);
  readonly #level: number;
  #settings: QueueSettings;
  #coding: Coding;
  /** Whether this thread gave options: else what others gave holds here too. */
  #given: boolean;
  #version = 0;
  #declared = '';
  #ring: Ring | undefined;
  #group = -1;

  constructor(port: Port, name: string, options: QueueOptions<never> | undefined, level: number) {
    this.port = port;
    this.name = name;
    this.#level = level;
    this.#given = options !== undefined;
    const own = recordOf('use a queue', options);
    this.#settings = queueSettings(name, own, level);
    this.#coding = codingOf(own.codec);
    this.id = queueNamed(port.shared, name);
    if (this.id < 0) {
      throw new MillraceError('ERR_MILLRACE_FULL', `cannot use queue ${shown(name)}: there is room for no more queues`);
    }
    this.block = this.id * QueueWord.WORDS;
  }

  /** All of the new options, or, when one of them is refused, none. */
  configure(options: QueueOptions<never>): void {
    const settings = queueSettings(this.name, recordOf('use a queue', options), this.#level);
    this.#coding = codingOf(options.codec);
    this.#settings = settings;
    this.#given = true;
  }

  get settings(): QueueSettings {
    if (!this.#given) this.#follow();
    return this.#settings;
  }

  get coding(): Coding {
    if (!this.#given) this.#follow();
    return this.#coding;
  }

  #follow(): void {
    const { shared } = this.port;
    const version = load(shared.queues, this.block + QueueWord.VERSION);
    if (version === this.#version) return;
    this.#version = version;
    const { codec, ...settings } = sharedSettings(shared, this.block);
    this.#settings = { ...settings, backoff: undefined };
    this.#coding = codingOf(codec === 'own' ? 'json' : codec);
  }

  /** Appends the queue's record when the log has none, or when it says something else and `force` (Q1). */
  declare(force: boolean): void {
    const { shared, outbox } = this.port;
    const known = (load(shared.queues, this.block + QueueWord.FLAGS) & QueueFlag.DECLARED) !== 0;
    if (this.#declared === '' && known && !force) this.#declared = 'elsewhere';
    if (this.#declared !== '' && !force) return;
    const { settings } = this;
    const { attempts, crashes, base, max, jitter, visibilityMs, resultRetentionMs, level, priority } = settings;
    if (force) shareSettings(shared, this.block, { ...settings, codec: codecOf(this.#coding) });
    const json = JSON.stringify({
      name: this.name,
      attempts,
      crashes,
      base,
      max,
      jitter,
      visibility: visibilityMs,
      resultRetention: resultRetentionMs,
      level,
      priority,
    } satisfies QueueRecord);
    if (json === this.#declared) return;
    this.#declared = json;
    const at = outbox.append(RecordType.QUEUE, Level.FSYNC, 0, this.id, 0, this.port.wallMs(), 0);
    outbox.payloadText(at, json);
    outbox.finish(at);
    this.port.flush();
  }

  /** The queue's group of consumers, made if need be: then its ring is filled for `count` jobs. */
  group(count = 1): number {
    if (this.#group < 0) this.#join(count);
    return this.#group;
  }

  /** Says how many jobs this thread may want at once: the scheduler keeps at least as many at hand. */
  want(count: number): void {
    const { groups } = this.port.shared;
    const word = this.group(count) * GroupWord.WORDS + GroupWord.CREDIT;
    const credit = Math.min(READY_SLOTS, Math.max(CREDIT_FIRST, 2 * count));
    for (;;) {
      const now = load(groups, word);
      if (now >= credit || compareExchange(groups, word, now, credit) === now) return;
    }
  }

  /**
   * Takes up to `max` leases of `visibilityMs`. `patient`: a consumer that can wait asks without turning on the spot.
   * `bound`: the leases last as long as the thread, or as their timeout.
   */
  claim(max: number, visibilityMs: number | undefined, patient: boolean, bound?: Bound): Lease[] {
    const leases: Lease[] = [];
    this.want(max);
    const ring = this.#ring!;
    const takeAll = (): void => {
      while (leases.length < max) {
        const count = ring.tryTakeMany(this.taken, Math.min(max - leases.length, READY_SLOTS));
        if (count === 0) return;
        this.#take(count, visibilityMs, bound, leases);
      }
    };
    takeAll();
    if (leases.length < max && !patient) {
      // The scheduler may be in the middle of offering: its head moves when it is done.
      const backlog = this.#group * GroupWord.WORDS + GroupWord.BACKLOG;
      this.port.catchUp(CATCH_UP_MS, () => ring.used() > 0 || load(this.port.shared.groups, backlog) === 0);
      takeAll();
    }
    if (leases.length > 0) add(this.port.shared.queues, this.block + QueueWord.LEASED, leases.length);
    this.#refill();
    return leases;
  }

  /** Turns the `count` entries in `taken` into leases (Q2, Q3). */
  #take(count: number, visibilityMs: number | undefined, bound: Bound | undefined, leases: Lease[]): void {
    const { port } = this;
    const { shared, owner } = port;
    const { lease, arena } = shared;
    const claiming = owner * OwnerWord.WORDS + OwnerWord.CLAIMING;
    const nowMs = port.monotonicMs();
    const wallMs = port.wallMs();
    for (let i = 0; i < count; i++) {
      const row = this.taken[2 * i]!;
      const ready = this.taken[2 * i + 1]!;
      store(shared.owners, claiming, row + 1);
      const half = withState(ready, LeaseState.CLAIMING);
      // Stale: cancelled, paused, or offered anew since the entry was made.
      if (compareExchange(lease, row, ready, half) !== ready) continue;
      const offset = shared.ref[row]! * ARENA_UNIT_BYTES - BODY;
      const attributes = record.attributesOf(arena, offset);
      let visibleMs = visibilityMs ?? this.settings.visibilityMs;
      let timeout = 0;
      if ((attributes & Attribute.LIMITS) !== 0) {
        const at = record.attributeAt(arena, offset, Attribute.LIMITS) / 4;
        if (visibilityMs === undefined && arena.i32[at]! > 0) visibleMs = arena.i32[at]!;
        timeout = arena.i32[at + 1]!;
      }
      let terms: number = Terms.VISIBILITY;
      if (bound !== undefined) {
        // Held for as long as the thread lives; a timeout is a deadline that nothing extends.
        const limit = timeout || bound.timeoutMs;
        visibleMs = limit || INTERVAL_MS_MAX;
        terms = limit > 0 ? Terms.TIMEOUT : Terms.BOUND;
      }
      const deadline = (nowMs + visibleMs) | 0;
      const word = withState(ready, LeaseState.LEASED);
      shared.holder[row] = owner;
      shared.terms[row] = terms;
      store(shared.deadline, row, deadline);
      store(lease, row, word);
      const blockFrom = shared.ref[row]! * ARENA_UNIT_BYTES;
      const end = blockFrom + shared.bytes[row]!;
      const bytes = arena.u8.slice(end - record.sizeOf(arena, offset), end);
      const id = shared.id[row]!;
      const attempt = (shared.counts[row]! & 0xffff) + 1;
      const crashes = (shared.counts[row]! >>> 16) & 0xff;
      const enqueuedAt = record.timeOf(arena, offset);
      const level = record.jobLevelOf(arena, offset);
      const checkpointed = record.isCheckpointed(arena, offset);
      let tenant: string | undefined;
      if ((attributes & Attribute.TENANT) !== 0) {
        const at = record.attributeAt(arena, offset, Attribute.TENANT);
        const length = arena.u8[at]! | (arena.u8[at + 1]! << 8);
        tenant = Buffer.from(arena.u8.slice(at + 2, at + 2 + length)).toString();
      }
      const armedMs = shared.timer[row]!;
      if (load(lease, row) !== word) {
        add(shared.queues, this.block + QueueWord.LEASED, 1);
        continue;
      }
      const payload = this.#decode(bytes, row, word, id, level);
      if (payload === FAILED) continue;
      leases.push(
        new Lease(
          this,
          row,
          word,
          level,
          id,
          payload,
          attempt,
          crashes,
          enqueuedAt,
          wallMs + visibleMs,
          tenant,
          timeout === 0 ? undefined : timeout,
          checkpointed,
        ),
      );
      if (visibleMs < INTERVAL_MS_MAX && nowMs + visibleMs < armedMs) port.tell(Question.REARM, id, this.id, row);
    }
    store(shared.owners, claiming, 0);
  }

  /** A payload that its codec cannot read is a failed run, not a lost job. */
  #decode(bytes: Uint8Array, row: number, word: number, id: number, level: number): unknown {
    try {
      return this.coding.decode(bytes);
    } catch (cause) {
      add(this.port.shared.queues, this.block + QueueWord.LEASED, 1);
      const lease = new Lease(this, row, word, level, id, undefined, 1, 0, 0, 0, undefined, undefined, false);
      const why = `cannot decode the payload of job ${id}: ${shown(String(cause))}`;
      lease.fail(new MillraceError('ERR_MILLRACE_PAYLOAD_INVALID', why, { id }, cause));
      return FAILED;
    }
  }

  /** The row that would be claimed next, 0 when the ring is empty or nobody consumes. It may be gone already. */
  offered(): number {
    const { shared, owner } = this.port;
    const group = load(shared.queues, this.block + QueueWord.GROUP) - 1;
    if (group < 0) return 0;
    const ring = this.#ring ?? new Ring(shared.readyPlace(group), owner);
    return ring.peek();
  }

  /** Wakes the scheduler when the ring runs low and there is more. */
  #refill(): void {
    const { shared } = this.port;
    const block = this.#group * GroupWord.WORDS;
    if (load(shared.groups, block + GroupWord.BACKLOG) === 0) return;
    if (this.#ring!.used() * 2 <= load(shared.groups, block + GroupWord.CREDIT)) {
      wake(shared.control, Word.SCHEDULER_ASLEEP);
    }
  }

  /** Finds the queue's group, or takes a free one: a group belongs to the queue whose id its QUEUE word holds. */
  #join(count: number): void {
    const { shared, owner } = this.port;
    this.declare(false);
    for (let index = 0; index < GROUPS_MAX; index++) {
      const word = index * GroupWord.WORDS + GroupWord.QUEUE;
      let queue = load(shared.groups, word);
      if (queue === 0) queue = compareExchange(shared.groups, word, 0, this.id) || this.id;
      if (queue !== this.id) continue;
      this.#group = index;
      this.#ring = new Ring(shared.readyPlace(index), owner);
      // Before the scheduler can see the group: it fills it for the first time at once.
      this.want(count);
      for (;;) {
        const count = load(shared.control, Word.GROUPS);
        if (count > index || compareExchange(shared.control, Word.GROUPS, count, index + 1) === count) break;
      }
      wake(shared.control, Word.SCHEDULER_ASLEEP);
      this.port.catchUp(ADOPT_MS, () => load(shared.queues, this.block + QueueWord.GROUP) !== 0);
      return;
    }
    throw new MillraceError(
      'ERR_MILLRACE_FULL',
      `cannot consume ${shown(this.name)}: ${GROUPS_MAX} queues have consumers`,
    );
  }
}

const FAILED = Symbol('failed');
