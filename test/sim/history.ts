/**
 * What a simulation knows from outside, and what must hold of what the broker says:
 *
 * O1  An enqueue that was accepted is live, dead or ended until somebody ended it; through a kill if it was written,
 *     through a power cut if it was flushed. One that was refused is never seen.
 * O2  Nothing is seen that nobody enqueued, and every payload is what it was.
 * O3  A job has one live lease. Only the latest can settle it, and it is lost only to its time, a cancellation or a death.
 * O4  Tokens rise for each job, attempts and crashes stay within their bounds and below the leases given out.
 * O5  What had been applied is not undone by a crash that its level survives.
 * O6  No job runs before its time.
 */
import { Level } from '../../native-free/record.js';
import type { Lease } from '../../src/client/lease.js';
import type { Client, Life, RowView } from './life.js';

export type Ending = 'kill' | 'power' | 'close';

export interface Held {
  readonly lease: Lease;
  readonly client: Client;
  readonly entry: Entry;
  /** Monotonic. */
  deadlineMs: number;
  isSettled: boolean;
}

/** A job as those outside know it. */
export interface Entry {
  readonly serial: number;
  readonly queue: string;
  readonly text: string;
  readonly level: number;
  readonly attemptsMax: number;
  readonly crashesMax: number;
  readonly key: string;
  readonly runAt: number;
  id: number | undefined;
  outcome: 'pending' | 'accepted' | 'refused' | 'unknown' | 'duplicate';
  /** It came through a recovery. */
  isKept: boolean;
  /** It must never be seen live again. */
  isOver: boolean;
  mayComeBack: boolean;
  end: 'none' | 'acked' | 'cancelled' | 'dead';
  endedBy: Client | undefined;
  isAckTried: boolean;
  isCancelAsked: boolean;
  notBefore: number;
  token: number;
  leases: number;
  latest: Held | undefined;
}

interface Applied {
  readonly rows: Map<number, RowView>;
  readonly upToId: number;
}

export class Breach extends Error {
  override readonly name = 'Breach';
}

function fail(entry: Entry | undefined, what: string): never {
  const about = entry === undefined ? '' : `job ${entry.serial} (id ${entry.id}, ${entry.outcome}): `;
  throw new Breach(about + what);
}

function serialOf(text: string): number {
  return (JSON.parse(text) as { n: number }).n;
}

const survives = (level: number, ending: Ending): boolean =>
  level === Level.FSYNC || (level === Level.OS && ending !== 'power');

export class History {
  readonly entries: Entry[] = [];
  /** Jobs that were done for certain, and those of which only the log knows; by queue. */
  readonly done = new Map<string, { certain: number; possible: number }>();
  accepted = 0;
  cancelled = 0;
  wallMax = 0;
  #applied: Applied | undefined;

  enqueued(
    facts: Omit<Entry, keyof typeof FRESH | 'serial' | 'text' | 'notBefore'>,
    payload: (n: number) => object,
  ): Entry {
    const serial = this.entries.length;
    const entry = { ...facts, ...FRESH, serial, text: JSON.stringify(payload(serial)), notBefore: facts.runAt };
    this.entries.push(entry);
    return entry;
  }

  entryOf(text: string): Entry {
    return this.entries[serialOf(text)]!;
  }

  accept(entry: Entry, id: number, duplicate: boolean): void {
    if (duplicate) {
      const holder = this.entries.find((other) => other.id === id);
      if (entry.key === '') fail(entry, 'a duplicate without a key');
      if (id < 1) fail(entry, 'a duplicate of no job');
      if (holder !== undefined && (holder.key !== entry.key || holder.queue !== entry.queue)) {
        fail(entry, `said to be a duplicate of job ${holder.serial}, which has another key`);
      }
      entry.outcome = 'duplicate';
      entry.isOver = true;
      // A job that the log does not keep as well may be gone after a crash, and then the later one holds the key.
      entry.mayComeBack = holder === undefined || holder.level !== Level.FSYNC;
      return;
    }
    if (entry.id !== undefined && entry.id !== id) fail(entry, `its id was told as ${id}`);
    entry.id = id;
    entry.outcome = 'accepted';
    this.accepted++;
  }

  refuse(entry: Entry): void {
    if (entry.leases > 0) fail(entry, 'refused, after it had run');
    entry.outcome = 'refused';
    entry.isOver = true;
  }

  claimed(client: Client, lease: Lease, queue: string, visibilityMs: number): Held {
    const text = JSON.stringify(lease.payload);
    const entry = this.entries[serialOf(text)];
    if (entry === undefined) fail(undefined, `a phantom was claimed: ${text}`);
    this.#same(entry, lease.id, queue, text);
    if (entry.isOver) fail(entry, `claimed, but it was over (${entry.end})`);
    if (entry.end !== 'none') {
      if (entry.endedBy?.isAlive !== false) fail(entry, `claimed, but it was ${entry.end}`);
      // Who ended it died before its record was on its way.
      entry.end = 'none';
    }
    const { latest } = entry;
    if (latest?.client.isAlive === true && latest.lease.held) fail(entry, 'two live leases');
    if (lease.token <= entry.token) fail(entry, `token ${lease.token} after ${entry.token}`);
    if (lease.attempt > entry.attemptsMax) fail(entry, `attempt ${lease.attempt} of ${entry.attemptsMax}`);
    if (lease.crashes >= entry.crashesMax) fail(entry, `runs after ${lease.crashes} crashes of ${entry.crashesMax}`);
    if (lease.attempts + lease.crashes > entry.leases) {
      fail(entry, `${lease.attempts} attempts and ${lease.crashes} crashes after ${entry.leases} leases`);
    }
    if (entry.notBefore > this.wallMax) fail(entry, `runs at ${this.wallMax}, before its time ${entry.notBefore}`);
    entry.token = lease.token;
    entry.leases++;
    const deadlineMs = client.life.clock.monotonicMs() + visibilityMs;
    entry.latest = { lease, client, entry, deadlineMs, isSettled: false };
    return entry.latest;
  }

  /** Somebody took a lease and died before he could tell. */
  claimedUnseen(text: string): void {
    const entry = this.entries[serialOf(text)]!;
    entry.leases++;
  }

  /** The holder tried to settle. `over`: what it becomes if that worked, none = it runs again. */
  settled(held: Held, worked: boolean, over: 'acked' | 'none'): void {
    const { entry } = held;
    if (!worked) return this.#lost(held);
    if (held.isSettled) fail(entry, 'one lease settled twice');
    if (entry.latest !== held) fail(entry, 'settled by a lease that is not the latest');
    if (entry.end !== 'none') fail(entry, `settled after it was ${entry.end}`);
    held.isSettled = true;
    entry.endedBy = held.client;
    if (over === 'acked') {
      entry.end = 'acked';
      entry.isAckTried = true;
    }
  }

  /** A lease was found lost: there must be a reason. */
  #lost(held: Held): void {
    const { entry } = held;
    if (held.isSettled || entry.latest !== held || entry.isCancelAsked) return;
    const nowMs = held.client.life.clock.monotonicMs();
    if (nowMs < held.deadlineMs) fail(entry, `its lease was lost ${held.deadlineMs - nowMs} ms before its time`);
  }

  extended(held: Held, worked: boolean, ms: number): void {
    if (!worked) return this.#lost(held);
    if (held.isSettled || held.entry.latest !== held) fail(held.entry, 'a lease that is over was extended');
    held.deadlineMs = held.client.life.clock.monotonicMs() + ms;
  }

  cancelledFor(entry: Entry, worked: boolean): void {
    if (!worked || entry.end === 'cancelled') return;
    if (entry.end !== 'none' && entry.endedBy?.isAlive !== false) fail(entry, `cancelled after it was ${entry.end}`);
    entry.end = 'cancelled';
    entry.endedBy = undefined;
  }

  /** The thread of a client is gone: what it settled last may not have left it. */
  killed(client: Client): void {
    for (const entry of this.entries) if (entry.latest?.client === client) entry.notBefore = entry.runAt;
  }

  /** Somebody wants all dead jobs to be removed. */
  purged(): void {
    for (const entry of this.entries) entry.isCancelAsked = true;
  }

  /** The life is over; its last applied state is kept to compare. */
  died(life: Life): void {
    this.#applied = { rows: this.#bySerial(life.rows()), upToId: life.appliedId };
    for (const entry of this.entries) if (entry.outcome === 'pending') entry.outcome = 'unknown';
  }

  /** A new life has recovered what the last one left (O1, O2, O5). */
  recovered(life: Life, ending: Ending): void {
    const rows = this.#bySerial(life.rows());
    for (const entry of this.entries) {
      const row = rows.get(entry.serial);
      const before = this.#applied?.rows.get(entry.serial);
      const isLive = row !== undefined && row.state !== 'dead' && row.state !== 'done';
      if (row !== undefined && !survives(entry.level, 'close')) fail(entry, 'a job that is not logged came back');
      if (row === undefined) {
        this.#missing(entry, before, ending);
      } else {
        if (isLive && entry.isOver) fail(entry, `live again, and it was over (${entry.end})`);
        this.#undone(entry, row, before, ending);
        entry.isKept = true;
        if (entry.outcome === 'pending') entry.outcome = 'unknown';
        entry.end = row.state === 'dead' ? 'dead' : row.state === 'done' ? 'acked' : 'none';
        if (row.state === 'done') this.#over(entry, true);
      }
      entry.endedBy = undefined;
      entry.isAckTried = false;
      entry.isCancelAsked = false;
      entry.latest = undefined;
      entry.notBefore = entry.runAt;
    }
    this.#applied = undefined;
  }

  #missing(entry: Entry, before: RowView | undefined, ending: Ending): void {
    if (entry.isOver) return;
    const isIn = entry.outcome === 'accepted' || entry.isKept;
    const mayBeLost = !survives(entry.level, ending) && !entry.isKept;
    if (isIn && !mayBeLost) {
      if (before?.state === 'dead') fail(entry, 'it was dead, and is gone');
      if (!entry.isAckTried && !entry.isCancelAsked) fail(entry, `lost by a ${ending}`);
    }
    // Whether it was done or cancelled, or was lost before, is known to the log alone when both may have been.
    const isCertain = isIn && !mayBeLost && entry.isAckTried && !entry.isCancelAsked;
    this.#over(entry, isCertain);
  }

  #undone(entry: Entry, row: RowView, before: RowView | undefined, ending: Ending): void {
    const isApplied = entry.id !== undefined && this.#applied !== undefined && entry.id < this.#applied.upToId;
    if (!isApplied || entry.mayComeBack || !survives(entry.level, ending)) return;
    const isOver = before === undefined || before.state === 'done';
    if (isOver && row.state !== 'done') fail(entry, `ended durably, and is ${row.state} again`);
    if (before === undefined) return;
    if (before.state === 'dead' && row.state !== 'dead') fail(entry, `was dead, and is ${row.state}`);
    if (row.attempts < before.attempts || row.crashes < before.crashes) {
      fail(
        entry,
        `had ${before.attempts} attempts and ${before.crashes} crashes, has ${row.attempts} and ${row.crashes}`,
      );
    }
  }

  /** It ended, for good: was it done? */
  #over(entry: Entry, isCertain: boolean): void {
    if (entry.isOver) return;
    entry.isOver = true;
    const sum = this.done.get(entry.queue) ?? { certain: 0, possible: 0 };
    this.done.set(entry.queue, sum);
    if (isCertain) sum.certain++;
    else if (entry.isAckTried) sum.possible++;
  }

  /** Nothing goes on any more: everything has to have come to an end. */
  ended(life: Life): void {
    const rows = this.#bySerial(life.rows());
    for (const entry of this.entries) {
      const row = rows.get(entry.serial);
      if (row !== undefined && row.state !== 'dead' && row.state !== 'done')
        fail(entry, `never ended: it is ${row.state}`);
      if (row?.state === 'dead') entry.end = 'dead';
      if (row !== undefined || entry.isOver) continue;
      if (entry.outcome === 'accepted' || entry.isKept) {
        if (entry.end === 'none' && !entry.isCancelAsked) fail(entry, 'gone, and nobody ended it');
      }
    }
    for (const entry of this.entries) {
      if (entry.end === 'acked') this.#over(entry, true);
      if (entry.end === 'cancelled' && !entry.isOver) this.cancelled++;
    }
  }

  #bySerial(views: readonly RowView[]): Map<number, RowView> {
    const rows = new Map<number, RowView>();
    const keys = new Set<string>();
    const ids = new Set<number>();
    for (const view of views) {
      const entry = this.entries[serialOf(view.text)];
      if (entry === undefined) fail(undefined, `a phantom is there: ${view.text}`);
      this.#same(entry, view.id, view.queue, view.text);
      if (rows.has(entry.serial) || ids.has(view.id)) fail(entry, 'it is there twice');
      if (view.attempts > entry.attemptsMax || view.crashes > entry.crashesMax) {
        fail(entry, `${view.attempts} attempts, ${view.crashes} crashes`);
      }
      if (view.attempts + view.crashes > entry.leases)
        fail(entry, `${view.attempts} attempts in ${entry.leases} leases`);
      if (view.state === 'dead' && view.attempts < 1 && view.crashes < 1) fail(entry, 'dead without a run');
      rows.set(entry.serial, view);
      ids.add(view.id);
      // What a key held is as lasting as its job.
      if (entry.level !== Level.FSYNC || view.key === '' || view.state === 'dead' || view.state === 'done') continue;
      if (keys.has(`${view.queue} ${view.key}`)) fail(entry, `two live jobs hold the key ${view.key}`);
      keys.add(`${view.queue} ${view.key}`);
    }
    return rows;
  }

  #same(entry: Entry, id: number, queue: string, text: string): void {
    if (entry.text !== text) fail(entry, `its payload was altered: ${text}`);
    if (entry.queue !== queue) fail(entry, `it is in queue ${queue}`);
    if (entry.outcome === 'duplicate' && entry.mayComeBack) {
      entry.outcome = 'unknown';
      entry.isOver = false;
    }
    if (entry.outcome === 'refused' || entry.outcome === 'duplicate') fail(entry, 'it was not accepted, and is there');
    if (entry.id !== undefined && entry.id !== id) fail(entry, `its id has become ${id}`);
    if (entry.id === undefined) {
      if (this.entries.some((other) => other.id === id)) fail(entry, `id ${id} was given out twice`);
      entry.id = id;
    }
  }
}

const FRESH = {
  id: undefined as number | undefined,
  outcome: 'pending' as Entry['outcome'],
  isKept: false,
  isOver: false,
  mayComeBack: false,
  end: 'none' as Entry['end'],
  endedBy: undefined as Client | undefined,
  isAckTried: false,
  isCancelAsked: false,
  token: 0,
  leases: 0,
  latest: undefined as Held | undefined,
};
