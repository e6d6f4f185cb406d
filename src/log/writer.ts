/**
 * The log writer: group commit. An agent on a thread of its own; the only one that writes to the log.
 * Each step takes what was published since the last one, writes it by one call, flushes it by one more if any record
 * asks for that, moves the watermark and wakes whoever waits for it. What arrives meanwhile is the next batch.
 *
 * W1  COMMITTED never passes a record that is not as durable as its level asks.
 * W2  One write and at most one fdatasync a batch; no timer unless there is a linger.
 * W3  The first failed write, flush, open or directory sync is the last: the error is latched, COMMITTED stands still,
 *     everybody is woken, and no file is touched again. A flush that failed may report success the next time.
 * W4  No room is the exception: the file is cut back to the batch border, the batch's records are marked refused, and
 *     COMMITTED passes them so that they are skipped. The next batch tries again.
 *     A declaration that was refused is owed: until it is written, its queue's jobs are refused as well.
 * W5  The epoch's batch is durable before the first record of the run is written.
 * W6  A dead owner is DRAINED when COMMITTED has passed every reservation it can have made.
 */
import { type Agent, wake, wakeOwners } from '../../native-free/agent.js';
import { assert } from '../../native-free/assert.js';
import { add, load, store } from '../../native-free/atomics.js';
import { crc32cMix } from '../../native-free/crc32c.js';
import { Encoder } from '../../native-free/encoder.js';
import {
  BrokerState,
  Cell,
  OWNERS,
  Owner,
  OwnerState,
  OwnerWord,
  REFUSALS_KEPT,
  SEGMENTS_KEPT,
  type Shared,
  Wants,
  Word,
} from '../../native-free/layout.js';
import { Level, memoryOver, queueOf, RecordType } from '../../native-free/record.js';
import { Ring } from '../../native-free/ring.js';
import { MillraceError } from '../errors.js';
import { BATCH_HEADER_BYTES } from './batch.js';
import { Gather } from './gather.js';
import { asIoError, type Recovery } from './recovery.js';
import { ASIDE_BYTES, FileSink, SEGMENT_BYTES, type Sealed } from './sink.js';
import { errnoOf, type Storage } from './storage.js';

/** What Word.POISON is an index of: the errno name of the first failure. 0 = healthy. */
export const POISON_CODES = [
  'none',
  'UNKNOWN',
  'EIO',
  'EROFS',
  'EFBIG',
  'EDQUOT',
  'ENOSPC',
  'ENODEV',
  'ENXIO',
  'ESTALE',
  'ETIMEDOUT',
  'EACCES',
  'EPERM',
  'ENOENT',
  'EEXIST',
  'ELOOP',
  'EBADF',
  'EINVAL',
  'EMFILE',
  'ENFILE',
  'ENOMEM',
  'ERR_MILLRACE_BREACH',
  'ERR_MILLRACE_CORRUPT',
] as const;

export const BATCH_BYTES_MAX = 4 << 20;
/**
 * How far ids may run ahead of the log without a batch that says so. Records of level MEMORY use ids up and are not
 * logged, and their ids must not be given out again by the next run.
 */
const IDS_AHEAD = 2 ** 20;

export interface LogWriterOptions {
  readonly shared: Shared;
  readonly storage: Storage;
  readonly dir: string;
  readonly recovery: Recovery;
  /** The id of ring position 0. */
  readonly idBase: number;
  /** This run's: above the one recovered. */
  readonly epoch: number;
  readonly segmentBytes?: number;
  /** How far a segment's length runs ahead of what is in it. */
  readonly asideBytes?: number;
  readonly batchRecordsMax?: number;
  readonly batchBytesMax?: number;
  readonly lingerMs?: number;
  /** Monotonic milliseconds, for the linger and the watermark. */
  readonly now: () => number;
  /** Wall clock, for the EPOCH record. */
  readonly wallMs: number;
}

export class LogWriter implements Agent {
  finished = false;
  /** The first failure (W3). */
  error: unknown;

  readonly #shared: Shared;
  readonly #dir: string;
  readonly #idBase: number;
  readonly #lingerMs: number;
  readonly #now: () => number;
  readonly #wallMs: number;
  readonly #sink: FileSink;
  readonly #ring: Ring;
  readonly #gather: Gather;
  /** The absolute ring position up to which everything is committed. */
  #cursor: number;
  #lingerUntilMs = Infinity;
  readonly #drainAt = new Int32Array(OWNERS);
  readonly #isDraining = new Uint8Array(OWNERS);
  #draining = 0;
  /** Queues whose declaration the full disk refused. */
  readonly #owed = new Set<number>();

  constructor(options: LogWriterOptions) {
    const { shared, storage, dir, recovery, epoch, now } = options;
    this.#shared = shared;
    this.#dir = dir;
    this.#idBase = options.idBase;
    this.#lingerMs = options.lingerMs ?? 0;
    this.#now = now;
    this.#wallMs = options.wallMs;
    this.#sink = new FileSink({
      storage,
      dir,
      recovery,
      epoch,
      segmentBytes: options.segmentBytes ?? SEGMENT_BYTES,
      asideBytes: options.asideBytes ?? ASIDE_BYTES,
      now,
    });
    this.#ring = new Ring(shared.submitPlace, Owner.WRITER);
    const first = load(shared.control, Word.COMMITTED);
    this.#cursor = shared.absolute(first);
    this.#gather = new Gather(shared, this.#ring, first, {
      recordsMax: options.batchRecordsMax ?? Infinity,
      bytesMax: options.batchBytesMax ?? BATCH_BYTES_MAX,
    });
    assert(epoch > recovery.epoch, 'a run has an epoch of its own');
    assert(options.idBase + this.#cursor >= recovery.idHigh, 'ids never repeat');
  }

  /** Opens or creates the newest segment and makes the new epoch durable (W5). Throws a MillraceError. */
  start(): void {
    const attempted = `cannot start the log in ${this.#dir}`;
    try {
      if (!this.#sink.tryOpen() || !this.#tryAppendEpoch()) {
        throw new MillraceError('ERR_MILLRACE_NO_SPACE', `${attempted}: the disk is full`, { dir: this.#dir });
      }
    } catch (error) {
      this.#poison(error);
      this.#sink.abandon();
      throw asIoError(error, attempted);
    }
    this.#tellSegment();
  }

  step(): number {
    try {
      return this.#work();
    } catch (error) {
      this.#poison(error);
      return 1;
    }
  }

  idleForMs(): number {
    if (this.error !== undefined) return Infinity;
    const due = Math.min(this.#lingerUntilMs, this.#sink.watermarkDueMs);
    return due === Infinity ? Infinity : Math.max(0, due - this.#now());
  }

  #work(): number {
    const closing = load(this.#shared.control, Word.STATE) === BrokerState.CLOSED;
    // The scheduler may have met the disk's first failure: it is the last operation all the same (W3).
    if (this.error !== undefined || load(this.#shared.control, Word.POISON) !== 0) {
      if (closing) this.#finish();
      return 0;
    }
    this.#followDeaths();
    if (load(this.#shared.control, Word.ROLL) === 1 && this.#gather.slots === 0) this.#roll();
    const gather = this.#gather;
    gather.take();
    const { slots } = gather;
    if (slots === 0) {
      if (closing) {
        this.#sink.close();
        this.#finish();
      } else {
        this.#sink.tend();
      }
      return 0;
    }
    if (this.#lingerMs > 0 && !closing && !gather.full && this.#lingers()) {
      this.#sink.tend();
      return 0;
    }
    this.#commit();
    return slots;
  }

  /** True: wait a little for more. */
  #lingers(): boolean {
    const now = this.#now();
    if (this.#lingerUntilMs === Infinity) this.#lingerUntilMs = now + this.#lingerMs;
    return now < this.#lingerUntilMs;
  }

  #commit(): void {
    const gather = this.#gather;
    const { control } = this.#shared;
    const from = this.#cursor;
    const { places } = this.#shared;
    const at = 2 * ((gather.next - gather.slots) & (this.#shared.sizes.ringSlots - 1));
    let place = Number.NaN;
    places[at + 1] = gather.slots;
    this.#cursor += gather.slots;
    this.#lingerUntilMs = Infinity;
    // A run of nothing but holes needs no batch, unless its ids have used up what the last batch allowed for.
    const needsIds = this.#idsAhead() > this.#sink.idHigh;
    if (gather.records > 0 || needsIds) {
      gather.pushRuns(this.#sink.buffers());
      if (!this.#isOwed() && this.#tryAppend(gather, gather.flush || needsIds)) {
        place = this.#sink.position - gather.bytes;
        if (this.#owed.size > 0) this.#eachDeclared((queue) => this.#owed.delete(queue));
        if (load(control, Word.DISK_FULL) !== 0) store(control, Word.DISK_FULL, 0);
      } else {
        this.#refuse(from);
      }
    }
    places[at] = place;
    this.#tellSegment();
    store(control, Word.COMMITTED_HIGH, Math.floor(this.#cursor / 2 ** 31));
    store(control, Word.COMMITTED, gather.next);
    gather.clear();
    // Who waits for the flush first: each wake-up is a system call, and the scheduler's work comes after anyway.
    wakeOwners(this.#shared, Wants.DURABLE);
    wake(control, Word.SCHEDULER_ASLEEP);
    this.#settleDeaths();
    this.#sink.tend();
  }

  #tryAppend(sealed: Sealed, flush: boolean): boolean {
    const sink = this.#sink;
    if (!sink.tryAppend(sealed, this.#idsAhead() + IDS_AHEAD)) return false;
    if (flush) sink.flush();
    const { cells } = this.#shared;
    cells[Cell.POSITION] = sink.position;
    cells[Cell.SYNCED] = sink.syncedUpTo;
    cells[Cell.FLUSHES] = sink.flushes;
    cells[Cell.BATCHES]++;
    cells[Cell.RECORDS] += sealed.records;
    cells[Cell.BYTES] += BATCH_HEADER_BYTES + sealed.bytes;
    return true;
  }

  #tryAppendEpoch(): boolean {
    const encoder = new Encoder(256);
    encoder.finish(encoder.append(RecordType.EPOCH, Level.FSYNC, this.#idBase, 0, 0, this.#wallMs, 0));
    const record = memoryOver(new ArrayBuffer(encoder.bytes));
    encoder.moveInto(record, 0, 0, encoder.bytes, this.#idBase);
    this.#sink.buffers().push(record.u8);
    return this.#tryAppend({ records: 1, bytes: encoder.bytes, recordsCrc: crc32cMix(0, record.i32[0]) }, true);
  }

  /** Publishes the newest segment: its base, then its number. */
  #tellSegment(): void {
    const { cells, segmentBases } = this.#shared;
    const { segment, segmentBase } = this.#sink;
    if (cells[Cell.SEGMENT_NEWEST] === segment) return;
    segmentBases[segment % SEGMENTS_KEPT] = segmentBase;
    cells[Cell.SEGMENT_NEWEST] = segment;
  }

  /** Compaction wants everything so far to lie in segments that will not grow. */
  #roll(): void {
    if (!this.#sink.tryRoll()) store(this.#shared.control, Word.DISK_FULL, 1);
    this.#tellSegment();
    store(this.#shared.control, Word.ROLL, 0);
    wake(this.#shared.control, Word.SCHEDULER_ASLEEP);
  }

  #refuse(from: number): void {
    const { control, cells } = this.#shared;
    store(control, Word.DISK_FULL, 1);
    if (this.#gather.records === 0) return;
    this.#eachDeclared((queue) => this.#owed.add(queue));
    this.#gather.refuse();
    // A range that goes on where the last one ended takes it in: on a full disk the newest tells of all of them.
    const refusals = load(control, Word.REFUSALS);
    const last = Cell.REFUSED + 2 * ((refusals - 1) & (REFUSALS_KEPT - 1));
    const at = Cell.REFUSED + 2 * (refusals & (REFUSALS_KEPT - 1));
    cells[at] = refusals !== 0 && cells[last + 1] === from ? cells[last] : from;
    cells[at + 1] = this.#cursor;
    add(control, Word.REFUSALS, 1);
  }

  /** Does the batch hold jobs of a queue whose declaration was refused, and not the declaration? */
  #isOwed(): boolean {
    if (this.#owed.size === 0) return false;
    const owed = new Set(this.#owed);
    this.#eachDeclared((queue) => owed.delete(queue));
    let found = false;
    this.#gather.eachRecord((type, at) => {
      if (type === RecordType.ENQUEUE && owed.has(queueOf(this.#shared.slots, at))) found = true;
    });
    return found;
  }

  #eachDeclared(visit: (queue: number) => void): void {
    this.#gather.eachRecord((type, at) => {
      if (type === RecordType.QUEUE) visit(queueOf(this.#shared.slots, at));
    });
  }

  /** Above every id that can be given out before COMMITTED moves again: the ring holds no more. */
  #idsAhead(): number {
    return this.#idBase + this.#cursor + this.#shared.sizes.ringSlots;
  }

  #followDeaths(): void {
    const { owners, control } = this.#shared;
    const seen = load(control, Word.OWNERS_SEEN);
    for (let owner = 1; owner <= seen; owner++) {
      if (load(owners, owner * OwnerWord.WORDS + OwnerWord.STATE) !== OwnerState.DEAD) continue;
      if (this.#isDraining[owner] === 1) continue;
      // Its last reservation may stand at the tail without having moved it: then the tail moves here, so that the
      // position that is noted is behind everything the owner ever reserved.
      const tail = this.#ring.tail();
      if (this.#ring.countAt(tail) === -owner) this.#ring.repair(tail, owner);
      this.#drainAt[owner] = this.#ring.tail();
      this.#isDraining[owner] = 1;
      this.#draining++;
      this.#settleDeaths();
    }
  }

  #settleDeaths(): void {
    if (this.#draining === 0) return;
    const { owners, control } = this.#shared;
    const committed = load(control, Word.COMMITTED);
    for (let owner = 1; owner < OWNERS; owner++) {
      if (this.#isDraining[owner] === 0 || ((committed - this.#drainAt[owner]) | 0) < 0) continue;
      this.#isDraining[owner] = 0;
      this.#draining--;
      store(owners, owner * OwnerWord.WORDS + OwnerWord.DRAINED, this.#drainAt[owner]);
      store(owners, owner * OwnerWord.WORDS + OwnerWord.STATE, OwnerState.DRAINED);
      wake(control, Word.SCHEDULER_ASLEEP);
    }
  }

  #poison(error: unknown): void {
    if (this.error !== undefined) return;
    this.error = error;
    const { control } = this.#shared;
    const index = (POISON_CODES as readonly string[]).indexOf(errnoOf(error));
    store(control, Word.POISON, index > 0 ? index : POISON_CODES.indexOf('UNKNOWN'));
    wake(control, Word.SCHEDULER_ASLEEP);
    wakeOwners(this.#shared, Wants.DURABLE | Wants.ROOM | Wants.READY | Wants.REPLY);
  }

  #finish(): void {
    this.finished = true;
    this.#sink.abandon();
  }
}
