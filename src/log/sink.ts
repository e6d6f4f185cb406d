/**
 * The local log as a place that batches go to: the newest segment file, the switch to the next one, the watermark file.
 * Owned by the log writer and used on its thread only. It knows no ring and no records, only sealed bytes.
 *
 * K1  A batch goes in by one write at its position, and is durable when `flush` has returned.
 * K2  `syncedUpTo` moves by a flush of this run and by nothing else; recovery flushed what was there before.
 * K3  No room is a refusal and leaves the file at the last batch border. Every other failure is thrown, and after that
 *     the owner must not call anything but `abandon`.
 * K4  The old segment, then the new one's header, then its name are durable before a batch goes into the new one. A
 *     segment that could not be made is gone for good before the old one grows: recovery reads "has a successor" as
 *     "was complete".
 * K5  The newest file is longer than its batches: zeros, set aside so that a flush has no new length to write as well.
 *     They are cut off before there is a successor, and by a close.
 */
import { memoryOver } from '../../native-free/record.js';
import { BATCH_HEADER_BYTES, type BatchHeader, emptyBatchHeader, writeBatchHeader } from './batch.js';
import type { Recovery } from './recovery.js';
import { FORMAT_VERSION, SEGMENT_HEADER_BYTES, segmentName, writeSegmentHeader } from './segment.js';
import { errnoOf, type Storage, type StorageFile } from './storage.js';
import { WATERMARK_NAME, WatermarkFile } from './watermark.js';

export const SEGMENT_BYTES = 64 << 20;
/** How far a file's length runs ahead of its batches (K5). */
export const ASIDE_BYTES = 1 << 20;
/** The watermark file is refreshed this long after it became stale. */
export const WATERMARK_DELAY_MS = 1000;

export interface FileSinkOptions {
  readonly storage: Storage;
  readonly dir: string;
  readonly recovery: Recovery;
  readonly epoch: number;
  readonly segmentBytes: number;
  /** 0: none. */
  readonly asideBytes: number;
  /** Monotonic milliseconds. */
  readonly now: () => number;
}

/** What a header says about its records. */
export interface Sealed {
  readonly records: number;
  readonly bytes: number;
  readonly recordsCrc: number;
}

export class FileSink {
  /** Where the next batch goes. */
  position: number;
  syncedUpTo: number;
  /** The last batch's number and the bound on ids that it gives. */
  batchNumber: number;
  idHigh: number;
  flushes = 0;
  /** When the watermark file should be written, monotonic; Infinity while it is fresh. */
  watermarkDueMs = Infinity;

  readonly #storage: Storage;
  readonly #dir: string;
  readonly #salt: number;
  readonly #segmentBytes: number;
  readonly #now: () => number;
  readonly #header: BatchHeader = emptyBatchHeader();
  readonly #headerMemory = memoryOver(new ArrayBuffer(BATCH_HEADER_BYTES));
  readonly #buffers: Uint8Array[] = [];
  /** The newest segment, and the position of its first batch. */
  segment: number;
  segmentBase: number;
  #file: StorageFile | undefined;
  /** The file's length, and how far it is to run ahead (K5). */
  #length = 0;
  #asideBytes: number;
  /** It was cut since the last flush: a shorter length is to be durable too. */
  #isCut = false;
  #watermark: WatermarkFile | undefined;
  #watermarkPosition = -1;
  #batchSynced: number;
  /** Of the last batch: the run's own from its first batch on. */
  #batchEpoch: number;

  constructor(options: FileSinkOptions) {
    const { recovery } = options;
    this.#storage = options.storage;
    this.#dir = options.dir;
    this.#salt = recovery.salt;
    this.#segmentBytes = options.segmentBytes;
    this.#asideBytes = options.asideBytes;
    this.#now = options.now;
    this.#header.version = FORMAT_VERSION;
    this.#header.epoch = options.epoch;
    this.segment = recovery.segment;
    this.segmentBase = recovery.segmentBase;
    this.position = recovery.position;
    this.syncedUpTo = recovery.position;
    this.batchNumber = recovery.batchNumber;
    this.#batchSynced = recovery.batchNumber;
    this.#batchEpoch = recovery.epoch;
    this.idHigh = recovery.idHigh;
  }

  /** Opens the files. False: no room for a first segment. */
  tryOpen(): boolean {
    if (this.segment > 0) {
      this.#file = this.#storage.open(this.#pathOf(this.segment), 'update');
      this.#length = this.#file.size();
    } else if (!this.#tryStartSegment()) return false;
    this.#watermark = new WatermarkFile(this.#storage, `${this.#dir}/${WATERMARK_NAME}`, this.#salt);
    this.#storage.syncDirectory(this.#dir);
    return true;
  }

  /** An empty list of buffers, to be filled with the next batch's records and given to `tryAppend`. */
  buffers(): Uint8Array[] {
    this.#buffers.length = 1;
    this.#buffers[0] = this.#headerMemory.u8;
    return this.#buffers;
  }

  /** Writes the records in `buffers` as the next batch (K1). False: no room (K3). */
  tryAppend(sealed: Sealed, idHigh: number): boolean {
    const bytes = BATCH_HEADER_BYTES + sealed.bytes;
    if (this.#isTooLong(bytes) && !this.#tryStartSegment()) return false;
    const header = this.#header;
    header.number = this.batchNumber + 1;
    header.records = sealed.records;
    header.bodyBytes = sealed.bytes;
    header.recordsCrc = sealed.recordsCrc;
    header.position = this.position;
    header.syncedUpTo = this.syncedUpTo;
    header.idHigh = idHigh;
    writeBatchHeader(this.#headerMemory, 0, header, this.#salt);
    const file = this.#file!;
    const end = this.#offset() + bytes;
    if (end > this.#length) this.#setAside(file, end);
    if (!tryWrite(file, this.#buffers, this.#offset(), bytes)) {
      this.#cut(file);
      return false;
    }
    this.batchNumber = header.number;
    this.#batchEpoch = header.epoch;
    this.idHigh = idHigh;
    this.position += bytes;
    return true;
  }

  /** Goes on in a new segment, unless the newest is still empty. False: no room for one. */
  tryRoll(): boolean {
    return this.position === this.segmentBase || this.#tryStartSegment();
  }

  flush(): void {
    if (this.syncedUpTo !== this.position) this.#sync();
  }

  #sync(): void {
    this.#file!.sync();
    this.#isCut = false;
    this.syncedUpTo = this.position;
    this.#batchSynced = this.batchNumber;
    this.flushes++;
    if (this.watermarkDueMs === Infinity) this.watermarkDueMs = this.#now() + WATERMARK_DELAY_MS;
  }

  /** Writes the watermark file when it is due. Not flushed: it only has to be there some time. */
  tend(): void {
    if (this.watermarkDueMs !== Infinity && this.#now() >= this.watermarkDueMs) this.#writeWatermark();
  }

  /** Flushes everything, the watermark too. */
  close(): void {
    this.#seal();
    this.#writeWatermark();
    this.#watermark?.sync();
    this.abandon();
  }

  /** Lets go of the files as they are. */
  abandon(): void {
    this.#file?.close();
    this.#watermark?.close();
    this.#file = undefined;
    this.#watermark = undefined;
  }

  #writeWatermark(): void {
    this.watermarkDueMs = Infinity;
    if (this.#watermarkPosition === this.syncedUpTo) return;
    this.#watermark?.write(this.syncedUpTo, this.#batchSynced);
    this.#watermarkPosition = this.syncedUpTo;
  }

  /** The next write ends at `end`: lengthens the file for it and for those after it (K5). */
  #setAside(file: StorageFile, end: number): void {
    this.#length = end;
    if (this.#asideBytes === 0) return;
    const length = Math.min(end + this.#asideBytes, Math.max(end, this.#segmentBytes));
    try {
      file.truncate(length);
      this.#length = length;
    } catch (error) {
      if (!TOO_LONG.has(errnoOf(error))) throw error;
      this.#asideBytes = 0;
    }
  }

  /** Makes the file end where the last batch does. */
  #cut(file: StorageFile): void {
    file.truncate(this.#offset());
    this.#length = this.#offset();
    this.#isCut = true;
  }

  /** Leaves a file that ends where its last batch does, durably. */
  #seal(): void {
    if (this.#file === undefined) return;
    if (this.#length > this.#offset()) this.#cut(this.#file);
    if (this.#isCut) this.#sync();
    else this.flush();
  }

  #offset(): number {
    return this.position - this.segmentBase + SEGMENT_HEADER_BYTES;
  }

  #pathOf(segment: number): string {
    return `${this.#dir}/${segmentName(segment)}`;
  }

  #isTooLong(bytes: number): boolean {
    return this.position > this.segmentBase && this.#offset() + bytes > this.#segmentBytes;
  }

  /** K4. False: no room, and the old segment is still the newest. */
  #tryStartSegment(): boolean {
    this.#seal();
    const segment = this.segment + 1;
    const path = this.#pathOf(segment);
    const memory = memoryOver(new ArrayBuffer(SEGMENT_HEADER_BYTES));
    writeSegmentHeader(memory, 0, {
      version: FORMAT_VERSION,
      salt: this.#salt,
      number: segment,
      base: this.position,
      batchNumber: this.batchNumber,
      epoch: this.#batchEpoch,
      idHigh: this.idHigh,
    });
    const file = tryCreate(this.#storage, path);
    if (file === undefined) return false;
    try {
      if (!tryWrite(file, [memory.u8], 0, SEGMENT_HEADER_BYTES)) {
        this.#storage.remove(path);
        this.#storage.syncDirectory(this.#dir);
        file.close();
        return false;
      }
      file.sync();
      this.#storage.syncDirectory(this.#dir);
    } catch (error) {
      file.close();
      throw error;
    }
    this.#file?.close();
    this.#file = file;
    this.#length = SEGMENT_HEADER_BYTES;
    this.segment = segment;
    this.segmentBase = this.position;
    return true;
  }
}

/** What says that a file cannot be that long, and nothing about the bytes in it. */
const TOO_LONG = new Set(['ENOSPC', 'EFBIG', 'EDQUOT', 'EINVAL', 'EPERM', 'EOPNOTSUPP']);

function tryCreate(storage: Storage, path: string): StorageFile | undefined {
  try {
    return storage.open(path, 'exclusive');
  } catch (error) {
    if (errnoOf(error) === 'ENOSPC') return undefined;
    throw error;
  }
}

/** False: there is no room for all of it. Any other failure is thrown. */
function tryWrite(file: StorageFile, buffers: readonly Uint8Array[], position: number, bytes: number): boolean {
  try {
    return file.write(buffers, position) === bytes;
  } catch (error) {
    if (errnoOf(error) === 'ENOSPC') return false;
    throw error;
  }
}
