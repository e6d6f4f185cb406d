/**
 * The log writer: group commit. An agent on a thread of its own; the only one that writes segment files.
 * Each step takes what was published since the last one, writes it by one call, flushes it by one more if any record
 * asks for that, moves the watermark and wakes whoever waits for it. What arrives meanwhile is the next batch.
 *
 * W1  COMMITTED never passes a record that is not as durable as its level asks.
 * W2  One write and at most one fdatasync a batch; no timer unless there is a linger.
 * W3  The first failed write, flush, open or directory sync is the last: the error is latched, COMMITTED stands still,
 *     everybody is woken, and no file is touched again. A flush that failed may report success the next time.
 * W4  No room is the exception: the file is cut back to the batch border, the batch's records are marked refused, and
 *     COMMITTED passes them so that they are skipped. The next batch tries again.
 * W5  The epoch's batch is durable before the first record of the run is written.
 * W6  A dead owner is DRAINED when COMMITTED has passed every reservation it can have made.
 */
import type { Agent } from '../../native-free/agent.js';
import { wake, wakeOwners } from '../../native-free/agent.js';
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
  type Shared,
  Wants,
  Word,
} from '../../native-free/layout.js';
import { Level, memoryOver, RecordType } from '../../native-free/record.js';
import { Ring } from '../../native-free/ring.js';
import { MillraceError } from '../errors.js';
import { BATCH_HEADER_BYTES, type BatchHeader, emptyBatchHeader, writeBatchHeader } from './batch.js';
import { Gather } from './gather.js';
import { asIoError, type Recovery } from './recovery.js';
import { FORMAT_VERSION, SEGMENT_HEADER_BYTES, segmentName, writeSegmentHeader } from './segment.js';
import { errnoOf, type Storage, type StorageFile } from './storage.js';
import { WATERMARK_NAME, WatermarkFile } from './watermark.js';

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
] as const;

export const SEGMENT_BYTES = 64 << 20;
export const BATCH_BYTES_MAX = 4 << 20;
/** The watermark file is refreshed this long after it became stale. */
export const WATERMARK_DELAY_MS = 1000;
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
  readonly #storage: Storage;
  readonly #dir: string;
  readonly #recovery: Recovery;
  readonly #idBase: number;
  readonly #epoch: number;
  readonly #segmentBytes: number;
  readonly #lingerMs: number;
  readonly #now: () => number;
  readonly #wallMs: number;

  readonly #ring: Ring;
  readonly #gather: Gather;
  /** The absolute ring position up to which everything is committed. */
  #cursor: number;
  #lingerUntilMs = Infinity;
  readonly #drainAt = new Int32Array(OWNERS);
  readonly #isDraining = new Uint8Array(OWNERS);
  #draining = 0;

  #file: StorageFile | undefined;
  #segment: number;
  #segmentBase: number;
  /** Where the next batch goes. */
  #position: number;
  #syncedUpTo: number;
  readonly #header: BatchHeader = emptyBatchHeader();
  readonly #headerMemory = memoryOver(new ArrayBuffer(BATCH_HEADER_BYTES));
  readonly #buffers: Uint8Array[] = [];

  #watermark: WatermarkFile | undefined;
  #watermarkPosition = -1;
  #watermarkDueMs = Infinity;

  constructor(options: LogWriterOptions) {
    const { shared, recovery } = options;
    this.#shared = shared;
    this.#storage = options.storage;
    this.#dir = options.dir;
    this.#recovery = recovery;
    this.#idBase = options.idBase;
    this.#epoch = options.epoch;
    this.#segmentBytes = options.segmentBytes ?? SEGMENT_BYTES;
    this.#lingerMs = options.lingerMs ?? 0;
    this.#now = options.now;
    this.#wallMs = options.wallMs;
    this.#segment = recovery.segment;
    this.#segmentBase = recovery.segmentBase;
    this.#position = recovery.position;
    this.#syncedUpTo = recovery.position;
    this.#header.number = recovery.batchNumber;
    this.#header.idHigh = recovery.idHigh;
    this.#ring = new Ring(shared.submitPlace, Owner.WRITER);
    const first = load(shared.control, Word.COMMITTED);
    this.#cursor = shared.absolute(first);
    this.#gather = new Gather(shared, this.#ring, first, {
      recordsMax: options.batchRecordsMax ?? Infinity,
      bytesMax: options.batchBytesMax ?? BATCH_BYTES_MAX,
    });
    assert(options.epoch > recovery.epoch, 'a run has an epoch of its own');
    assert(options.idBase + this.#cursor >= recovery.idHigh, 'ids never repeat');
  }

  /** Opens or creates the newest segment and makes the new epoch durable (W5). Throws a MillraceError. */
  start(): void {
    try {
      if (this.#segment > 0) this.#file = this.#storage.open(this.#pathOf(this.#segment), 'update');
      if (this.#needsSegment(0)) this.#startSegment();
      const encoder = new Encoder(256);
      encoder.finish(encoder.append(RecordType.EPOCH, Level.FSYNC, this.#idBase, 0, 0, this.#wallMs, 0));
      const record = memoryOver(new ArrayBuffer(encoder.bytes));
      encoder.moveInto(record, 0, 0, encoder.bytes, this.#idBase);
      const gathered = { records: 1, bytes: encoder.bytes, recordsCrc: foldOf(record.i32[0]), flush: true };
      this.#buffers.push(this.#headerMemory.u8, record.u8);
      if (!this.#append(gathered)) throw Object.assign(new Error('no room for the epoch'), { code: 'ENOSPC' });
      this.#watermark = new WatermarkFile(this.#storage, `${this.#dir}/${WATERMARK_NAME}`, this.#recovery.salt);
      this.#storage.syncDirectory(this.#dir);
    } catch (error) {
      this.#poison(error);
      if (errnoOf(error) !== 'ENOSPC') throw asIoError(error, `cannot start the log in ${this.#dir}`);
      const message = `cannot start the log in ${this.#dir}: the disk is full`;
      throw new MillraceError('ERR_MILLRACE_NO_SPACE', message, { dir: this.#dir }, error);
    }
    this.#count(1);
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
    const due = Math.min(this.#lingerUntilMs, this.#watermarkDueMs);
    return due === Infinity ? Infinity : Math.max(0, due - this.#now());
  }

  #work(): number {
    const closing = load(this.#shared.control, Word.STATE) === BrokerState.CLOSED;
    if (this.error !== undefined) {
      if (closing) this.#finish();
      return 0;
    }
    this.#followDeaths();
    const gather = this.#gather;
    gather.take();
    const { slots } = gather;
    if (slots === 0) {
      if (closing) this.#close();
      else if (this.#now() >= this.#watermarkDueMs) this.#writeWatermark();
      return 0;
    }
    if (this.#lingerMs > 0 && !closing && !gather.full && this.#lingers()) return 0;
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
    const from = this.#cursor;
    this.#cursor += gather.slots;
    this.#lingerUntilMs = Infinity;
    const { control } = this.#shared;
    const renewsIds = this.#idsAhead() > this.#header.idHigh;
    if (gather.records > 0 || renewsIds) {
      if (renewsIds) gather.flush = true;
      this.#buffers.length = 0;
      this.#buffers.push(this.#headerMemory.u8);
      gather.pushRuns(this.#buffers);
      if (this.#append(gather)) {
        this.#count(gather.records);
        if (load(control, Word.DISK_FULL) !== 0) store(control, Word.DISK_FULL, 0);
      } else {
        this.#refuse(from);
      }
    }
    store(control, Word.COMMITTED_HIGH, Math.floor(this.#cursor / 2 ** 31));
    store(control, Word.COMMITTED, gather.next);
    gather.clear();
    wake(control, Word.SCHEDULER_ASLEEP);
    wakeOwners(this.#shared, Wants.DURABLE);
    this.#settleDeaths();
  }

  /** Writes #buffers, a header and records, as the next batch. False: no room, and the file is as it was (W4). */
  #append(batch: { records: number; bytes: number; recordsCrc: number; flush: boolean }): boolean {
    const bytes = BATCH_HEADER_BYTES + batch.bytes;
    if (this.#needsSegment(bytes) && !this.#tryStartSegment()) return false;
    const header = this.#header;
    const idHigh = header.idHigh;
    header.number++;
    header.records = batch.records;
    header.bodyBytes = batch.bytes;
    header.recordsCrc = batch.recordsCrc;
    header.version = FORMAT_VERSION;
    header.epoch = this.#epoch;
    header.position = this.#position;
    header.syncedUpTo = this.#syncedUpTo;
    header.idHigh = this.#idsAhead() + IDS_AHEAD;
    writeBatchHeader(this.#headerMemory, 0, header, this.#recovery.salt);
    const file = this.#file!;
    const offset = this.#offset();
    if (!tryWrite(file, this.#buffers, offset, bytes)) {
      header.number--;
      header.idHigh = idHigh;
      file.truncate(offset);
      return false;
    }
    this.#position += bytes;
    if (batch.flush) this.#flush();
    return true;
  }

  #flush(): void {
    this.#file!.sync();
    this.#syncedUpTo = this.#position;
    this.#shared.cells[Cell.FLUSHES]++;
    if (this.#watermarkDueMs === Infinity) this.#watermarkDueMs = this.#now() + WATERMARK_DELAY_MS;
    else if (this.#now() >= this.#watermarkDueMs) this.#writeWatermark();
  }

  #count(records: number): void {
    const { cells } = this.#shared;
    cells[Cell.POSITION] = this.#position;
    cells[Cell.SYNCED] = this.#syncedUpTo;
    cells[Cell.BATCHES]++;
    cells[Cell.RECORDS] += records;
    cells[Cell.BYTES] += BATCH_HEADER_BYTES + this.#header.bodyBytes;
  }

  #refuse(from: number): void {
    const { control, cells } = this.#shared;
    store(control, Word.DISK_FULL, 1);
    if (this.#gather.records === 0) return;
    this.#gather.refuse();
    const at = Cell.REFUSED + 2 * ((load(control, Word.REFUSALS) >>> 0) % REFUSALS_KEPT);
    cells[at] = from;
    cells[at + 1] = this.#cursor;
    add(control, Word.REFUSALS, 1);
  }

  /** Above every id that can be given out before COMMITTED moves again: the ring holds no more. */
  #idsAhead(): number {
    return this.#idBase + this.#cursor + this.#shared.sizes.ringSlots;
  }

  #offset(): number {
    return this.#position - this.#segmentBase + SEGMENT_HEADER_BYTES;
  }

  #pathOf(segment: number): string {
    return `${this.#dir}/${segmentName(segment)}`;
  }

  #needsSegment(bytes: number): boolean {
    if (this.#file === undefined) return true;
    return this.#position > this.#segmentBase && this.#offset() + bytes > this.#segmentBytes;
  }

  /** False: no room, and there is no new segment. */
  #tryStartSegment(): boolean {
    try {
      this.#startSegment();
      return true;
    } catch (error) {
      if (!(error instanceof NoRoom)) throw error;
      return false;
    }
  }

  /** Everything in the old segment, then the new one's header and name, are durable before anything goes into it. */
  #startSegment(): void {
    const old = this.#file;
    if (old !== undefined && this.#syncedUpTo < this.#position) this.#flush();
    const segment = this.#segment + 1;
    const path = this.#pathOf(segment);
    const memory = memoryOver(new ArrayBuffer(SEGMENT_HEADER_BYTES));
    writeSegmentHeader(memory, 0, {
      version: FORMAT_VERSION,
      salt: this.#recovery.salt,
      number: segment,
      base: this.#position,
      batchNumber: this.#header.number,
    });
    const file = this.#tryCreate(path);
    if (file === undefined || !tryWrite(file, [memory.u8], 0, SEGMENT_HEADER_BYTES)) {
      if (file !== undefined) {
        file.close();
        this.#storage.remove(path);
        // The name must be gone for good before the old segment grows: a successor says that it was complete.
        this.#storage.syncDirectory(this.#dir);
      }
      throw new NoRoom();
    }
    file.sync();
    this.#storage.syncDirectory(this.#dir);
    old?.close();
    this.#file = file;
    this.#segment = segment;
    this.#segmentBase = this.#position;
  }

  #tryCreate(path: string): StorageFile | undefined {
    try {
      return this.#storage.open(path, 'exclusive');
    } catch (error) {
      if (errnoOf(error) === 'ENOSPC') return undefined;
      throw error;
    }
  }

  #writeWatermark(): void {
    this.#watermarkDueMs = Infinity;
    if (this.#watermark === undefined || this.#watermarkPosition === this.#syncedUpTo) return;
    this.#watermark.write(this.#syncedUpTo, this.#header.number);
    this.#watermarkPosition = this.#syncedUpTo;
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

  #close(): void {
    if (this.#syncedUpTo < this.#position) this.#flush();
    this.#writeWatermark();
    this.#watermark?.sync();
    this.#finish();
  }

  #finish(): void {
    this.finished = true;
    this.#file?.close();
    this.#watermark?.close();
  }
}

class NoRoom extends Error {
  readonly code = 'ENOSPC';
}

function foldOf(crc: number): number {
  return crc32cMix(0, crc);
}

/** False: there is no room for all of it (W4). Any other failure is thrown. */
function tryWrite(file: StorageFile, buffers: readonly Uint8Array[], position: number, bytes: number): boolean {
  try {
    return file.write(buffers, position) === bytes;
  } catch (error) {
    if (errnoOf(error) === 'ENOSPC') return false;
    throw error;
  }
}
