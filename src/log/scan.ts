/**
 * Reads a whole log in order and says how it ends; changes nothing. `recover` acts on what it says, the tools print it.
 *
 * S1  A record is shown only when its whole batch is intact and is the one that is due: number, position, epoch.
 * S2  Batches are found by walking from header to header. Looking for headers at other places happens only behind
 *     damage, and what is found there only ever makes the verdict stricter: a payload can hold anything.
 * S3  What is decided is in the tables of `decide`; this file gathers the facts.
 */
import { idOf, type Memory, RecordType, typeOf } from '../../native-free/record.js';
import {
  BATCH_ALIGNMENT,
  BATCH_HEADER_BYTES,
  BATCH_MAGIC,
  type BatchHeader,
  type Body,
  checkBody,
  emptyBatchHeader,
  isBatchHeader,
  readBatchHeader,
} from './batch.js';
import { decideBatch, decideSegment, type Found, type Head } from './decide.js';
import {
  FORMAT_VERSION,
  readSegmentHeader,
  SEGMENT_HEADER_BYTES,
  type SegmentHeader,
  segmentName,
  segmentNumberOf,
} from './segment.js';
import type { Storage } from './storage.js';
import { readWatermark, WATERMARK_NAME, type Watermark } from './watermark.js';
import { Window } from './window.js';

export interface LogVisitor {
  /** One record, checked, and its position; `offset` is a multiple of 32. The memory is used again after the call. */
  record(memory: Memory, offset: number, position: number): void;
  /** A segment that is entered, before its batches. */
  segment?(segment: ScannedSegment): void;
  /** A batch that is intact, before its records; `offset` is its header's in `memory`. */
  batch?(header: Readonly<BatchHeader>, memory: Memory, offset: number): void;
}

export interface ScannedSegment {
  readonly name: string;
  readonly number: number;
  readonly base: number;
  readonly bytes: number;
}

/** How the log ends. cut: at `offset` of `file`. remove: `file` was being created. */
export interface Verdict {
  readonly action: 'end' | 'cut' | 'remove' | 'refuse' | 'newer';
  readonly reason: string;
  /** A name in the directory. */
  readonly file: string;
  readonly position: number;
  readonly offset: number;
  /** How many bytes of the file are not part of the log. */
  readonly bytes: number;
}

export interface Scan {
  /** Those that were entered, in order. */
  readonly segments: readonly ScannedSegment[];
  /** Where the last intact batch ends. */
  readonly position: number;
  readonly batchNumber: number;
  readonly epoch: number;
  readonly idHigh: number;
  readonly syncedUpTo: number;
  readonly records: number;
  readonly batches: number;
  /** undefined when no intact segment header was found. */
  readonly salt: number | undefined;
  readonly watermark: Watermark | undefined;
  /** Segments below this number were dropped, or were about to be. */
  readonly headSegment: number;
  readonly verdict: Verdict;
}

export interface ScanOptions {
  /** How much is read at once. */
  readonly chunkBytes?: number;
}

export function scan(storage: Storage, dir: string, visitor: LogVisitor, options: ScanOptions = {}): Scan {
  return new Scanner(storage, dir, visitor, options).run();
}

class Scanner {
  readonly #storage: Storage;
  readonly #dir: string;
  readonly #visitor: LogVisitor;
  readonly #window: Window;
  /** The lowest segment there is, and the highest number that a HEAD record lets it have. */
  #firstSegment = 1;
  #headSegment = 1;
  readonly #header = emptyBatchHeader();
  readonly #segments: ScannedSegment[] = [];
  #watermark: Watermark | undefined;
  #salt: number | undefined;
  #position = 0;
  #batchNumber = 0;
  #epoch = 0;
  #idHigh = 0;
  #syncedUpTo = 0;
  #records = 0;
  #batches = 0;

  constructor(storage: Storage, dir: string, visitor: LogVisitor, options: ScanOptions) {
    this.#storage = storage;
    this.#dir = dir;
    this.#visitor = visitor;
    this.#window = new Window(options.chunkBytes);
  }

  run(): Scan {
    const verdict = this.#walk();
    return {
      segments: this.#segments,
      position: this.#position,
      batchNumber: this.#batchNumber,
      epoch: this.#epoch,
      idHigh: this.#idHigh,
      syncedUpTo: this.#syncedUpTo,
      records: this.#records,
      batches: this.#batches,
      salt: this.#salt,
      watermark: this.#watermark,
      headSegment: this.#headSegment,
      verdict,
    };
  }

  #walk(): Verdict {
    this.#watermark = readWatermark(this.#storage, `${this.#dir}/${WATERMARK_NAME}`);
    const found = this.#storage.list(this.#dir).filter((name) => segmentNumberOf(name) !== undefined);
    const names = found.sort((a, b) => segmentNumberOf(a)! - segmentNumberOf(b)!);
    this.#firstSegment = names.length === 0 ? 1 : segmentNumberOf(names[0]!)!;
    for (const [index, name] of names.entries()) {
      const number = this.#firstSegment + index;
      const due = segmentName(number);
      if (name !== due) {
        const reason =
          segmentNumberOf(name)! > number ? `segment ${number} is missing` : `${name} is a segment too many`;
        return verdictOf('refuse', reason, segmentNumberOf(name)! > number ? due : name, this.#position, 0, 0);
      }
    }
    let end: Verdict | undefined;
    for (const [index, name] of names.entries()) {
      end = this.#segment(name, this.#firstSegment + index, index === names.length - 1);
      if (end !== undefined) break;
    }
    if (end !== undefined) return this.#missesHead(end) ?? end;
    const name = segmentName(this.#firstSegment);
    if (this.#isWatermarkAbove(this.#position)) {
      return verdictOf('refuse', `segment ${this.#firstSegment} is missing`, name, this.#position, 0, 0);
    }
    return verdictOf('end', 'an empty directory', name, this.#position, 0, 0);
  }

  /** Segments below the newest HEAD may be gone; none above it, and none at all without one. */
  #missesHead(end: Verdict): Verdict | undefined {
    if (this.#firstSegment <= this.#headSegment || end.action === 'refuse' || end.action === 'newer') return undefined;
    const name = segmentName(this.#headSegment);
    return verdictOf(
      'refuse',
      `segment ${this.#headSegment} is missing`,
      name,
      this.#headSegment === 1 ? 0 : (this.#segments[0]?.base ?? 0),
      0,
      0,
    );
  }

  /** undefined: go on with the next segment. */
  #segment(name: string, number: number, newest: boolean): Verdict | undefined {
    const file = this.#storage.open(`${this.#dir}/${name}`, 'read');
    try {
      const window = this.#window;
      window.open(file);
      const header = readHead(window);
      const head = this.#headOf(header, number);
      const row = decideSegment({
        head,
        bytesBehind: head === 'bad' && window.size > SEGMENT_HEADER_BYTES && !window.isZeroFrom(SEGMENT_HEADER_BYTES),
        newest,
        durable: this.#isWatermarkAbove(this.#position),
      });
      if (row.action !== 'enter') return verdictOf(row.action, row.label, name, this.#position, 0, window.size);
      this.#salt = header!.salt;
      this.#position = header!.base;
      this.#batchNumber = header!.batchNumber;
      this.#epoch = header!.epoch;
      this.#idHigh = header!.idHigh;
      const entered = { name, number, base: header!.base, bytes: window.size };
      this.#segments.push(entered);
      this.#visitor.segment?.(entered);
      return this.#batchesOf(name, newest);
    } finally {
      file.close();
    }
  }

  #headOf(header: SegmentHeader | undefined, number: number): Head {
    if (header === undefined) return 'bad';
    if (header.version !== FORMAT_VERSION) return 'newer';
    if (header.number !== number) return 'misplaced';
    // What a first segment that is not number 1 starts from is its own header's to say.
    if (number === this.#firstSegment && number !== 1) return 'good';
    if (header.base !== this.#position || header.batchNumber !== this.#batchNumber) return 'misplaced';
    if (header.epoch !== this.#epoch || header.idHigh !== this.#idHigh) return 'misplaced';
    return this.#salt === undefined || header.salt === this.#salt ? 'good' : 'misplaced';
  }

  #batchesOf(name: string, newest: boolean): Verdict | undefined {
    const window = this.#window;
    const header = this.#header;
    for (let at = SEGMENT_HEADER_BYTES; ; ) {
      let found = this.#find(at);
      let body: Body = 'damaged';
      if (hasHeader(found) && header.bodyBytes <= window.size - at - BATCH_HEADER_BYTES) {
        const offset = window.at(at, BATCH_HEADER_BYTES + header.bodyBytes);
        body = checkBody(window.memory, offset + BATCH_HEADER_BYTES, header);
        if (found === 'good' && body !== 'damaged' && !this.#mayStart(header, offset)) found = 'unexpected';
        if (found === 'good' && body === 'intact') {
          this.#accept(header, offset);
          at += BATCH_HEADER_BYTES + header.bodyBytes;
          continue;
        }
      }
      const durable = this.#isWatermarkAbove(this.#position) || (newest && this.#isVouchedFor(at, found));
      const row = decideBatch({ found, body, newest, durable });
      if (row.action === 'next segment') return undefined;
      if (row.action === 'apply') continue;
      return verdictOf(row.action, row.label, name, this.#position, at, window.size - at);
    }
  }

  #accept(header: Readonly<BatchHeader>, offset: number): void {
    const { memory } = this.#window;
    const visitor = this.#visitor;
    visitor.batch?.(header, memory, offset);
    const end = offset + BATCH_HEADER_BYTES + header.bodyBytes;
    for (let at = offset + BATCH_HEADER_BYTES; at < end; ) {
      const padded = ((memory.i32[(at + 4) >>> 2] & 0xffffff) + 31) & ~31;
      if (typeOf(memory, at) === RecordType.HEAD) this.#headSegment = idOf(memory, at);
      visitor.record(memory, at, this.#position + (at - offset));
      at += padded;
    }
    this.#position += BATCH_HEADER_BYTES + header.bodyBytes;
    this.#batchNumber = header.number;
    this.#epoch = header.epoch;
    this.#idHigh = header.idHigh;
    this.#syncedUpTo = header.syncedUpTo;
    this.#records += header.records;
    this.#batches++;
  }

  /** What stands at `at`; leaves the header in #header when there is one. */
  #find(at: number): Found {
    const window = this.#window;
    if (at === window.size) return 'end';
    if (window.size - at >= BATCH_HEADER_BYTES) {
      const offset = window.at(at, BATCH_HEADER_BYTES);
      if (isBatchHeader(window.memory, offset, this.#salt!)) {
        readBatchHeader(window.memory, offset, this.#header);
        return this.#placeOf(this.#header);
      }
    }
    return window.isZeroFrom(at) ? 'zeros' : 'bad';
  }

  #placeOf(header: Readonly<BatchHeader>): Found {
    if (header.position !== this.#position) return 'elsewhere';
    if (header.version !== FORMAT_VERSION) return 'newer';
    if (header.epoch < this.#epoch) return 'stale';
    if (header.number !== this.#batchNumber + 1) return 'unexpected';
    if (header.syncedUpTo < this.#syncedUpTo || header.syncedUpTo > header.position) return 'unexpected';
    return header.idHigh >= this.#idHigh ? 'good' : 'unexpected';
  }

  /** An epoch begins with the batch that says so, and with nothing else. */
  #mayStart(header: Readonly<BatchHeader>, offset: number): boolean {
    if (header.epoch === this.#epoch) return true;
    return header.records > 0 && typeOf(this.#window.memory, offset + BATCH_HEADER_BYTES) === RecordType.EPOCH;
  }

  #isWatermarkAbove(position: number): boolean {
    const watermark = this.#watermark;
    if (watermark === undefined || (this.#salt !== undefined && watermark.salt !== this.#salt)) return false;
    return watermark.position > position;
  }

  /** Does a header behind `at` say that bytes behind `at` were durable? (S2) */
  #isVouchedFor(at: number, found: Found): boolean {
    if (found === 'end' || found === 'zeros') return false;
    const window = this.#window;
    const header = emptyBatchHeader();
    const last = window.size - BATCH_HEADER_BYTES;
    for (let next = at + BATCH_ALIGNMENT; next <= last; next += BATCH_ALIGNMENT) {
      const offset = window.at(next, BATCH_HEADER_BYTES);
      if (window.memory.i32[offset >>> 2] !== BATCH_MAGIC) continue;
      if (!isBatchHeader(window.memory, offset, this.#salt!)) continue;
      readBatchHeader(window.memory, offset, header);
      if (header.position === this.#position + (next - at) && header.syncedUpTo > this.#position) return true;
    }
    return false;
  }
}

function readHead(window: Window): SegmentHeader | undefined {
  if (window.size < SEGMENT_HEADER_BYTES) return undefined;
  const offset = window.at(0, SEGMENT_HEADER_BYTES);
  return readSegmentHeader(window.memory, offset);
}

function hasHeader(found: Found): boolean {
  return found !== 'end' && found !== 'zeros' && found !== 'bad';
}

function verdictOf(
  action: Verdict['action'],
  reason: string,
  file: string,
  position: number,
  offset: number,
  bytes: number,
): Verdict {
  return { action, reason, file, position, offset, bytes };
}
