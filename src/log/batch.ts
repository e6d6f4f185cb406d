/**
 * The batch: what one group commit writes, a 64-byte header and the records behind it (FORMAT.md, "Batch").
 * Pure functions over memory, used by the writer, recovery and the tools.
 *
 * 1. The header's CRC is seeded with the directory's salt: no other directory's header, nor one that a user composed
 *    in a payload, is right here.
 * 2. The header holds a CRC over its records' CRCs in order. A record that is intact by itself but was left on the
 *    disk by an earlier write does not pass for one of this batch.
 * 3. An all-zero header is not valid: the magic is not zero.
 */
import { crc32cMix, crc32cWords } from '../../native-free/crc32c.js';
import {
  bytesOf,
  HEADER_BYTES,
  isIntact,
  type Memory,
  paddedBytes,
  RecordType,
  typeOf,
} from '../../native-free/record.js';

export const BATCH_HEADER_BYTES = 64;
/** Batches start at multiples of this, counted from the segment's start: headers are looked for in these steps. */
export const BATCH_ALIGNMENT = 32;
/** "mlrB" */
export const BATCH_MAGIC = 0x42726c6d;

export const BatchAt = {
  MAGIC: 0,
  CRC: 4,
  BODY_BYTES: 8,
  RECORDS: 12,
  RECORDS_CRC: 16,
  /** Version u16, flags u16. */
  VERSION: 20,
  NUMBER: 24,
  EPOCH: 32,
  POSITION: 40,
  SYNCED_UP_TO: 48,
  ID_HIGH: 56,
} as const;

export interface BatchHeader {
  bodyBytes: number;
  records: number;
  /** The records' CRC words in order, folded with `crc32cMix` from 0. */
  recordsCrc: number;
  /** Format version in the lower, flags in the upper 16 bits. */
  version: number;
  /** Without gaps, from 1. */
  number: number;
  epoch: number;
  /** Where this header stands. */
  position: number;
  /** Everything below was durable when the batch was written. */
  syncedUpTo: number;
  /** Every id given out before the next batch is below this. */
  idHigh: number;
}

export function emptyBatchHeader(): BatchHeader {
  return {
    bodyBytes: 0,
    records: 0,
    recordsCrc: 0,
    version: 0,
    number: 0,
    epoch: 0,
    position: 0,
    syncedUpTo: 0,
    idHigh: 0,
  };
}

export function writeBatchHeader(memory: Memory, offset: number, header: Readonly<BatchHeader>, salt: number): void {
  const { i32, f64 } = memory;
  i32[(offset + BatchAt.MAGIC) >>> 2] = BATCH_MAGIC;
  i32[(offset + BatchAt.BODY_BYTES) >>> 2] = header.bodyBytes;
  i32[(offset + BatchAt.RECORDS) >>> 2] = header.records;
  i32[(offset + BatchAt.RECORDS_CRC) >>> 2] = header.recordsCrc;
  i32[(offset + BatchAt.VERSION) >>> 2] = header.version;
  f64[(offset + BatchAt.NUMBER) >>> 3] = header.number;
  f64[(offset + BatchAt.EPOCH) >>> 3] = header.epoch;
  f64[(offset + BatchAt.POSITION) >>> 3] = header.position;
  f64[(offset + BatchAt.SYNCED_UP_TO) >>> 3] = header.syncedUpTo;
  f64[(offset + BatchAt.ID_HIGH) >>> 3] = header.idHigh;
  i32[(offset + BatchAt.CRC) >>> 2] = headerChecksum(memory, offset, salt);
}

/** True when the 64 bytes at `offset`, a multiple of 8, are an intact header of this directory. */
export function isBatchHeader(memory: Memory, offset: number, salt: number): boolean {
  if (memory.i32[(offset + BatchAt.MAGIC) >>> 2] !== BATCH_MAGIC) return false;
  return memory.i32[(offset + BatchAt.CRC) >>> 2] === headerChecksum(memory, offset, salt);
}

export function readBatchHeader(memory: Memory, offset: number, into: BatchHeader): void {
  const { i32, f64 } = memory;
  into.bodyBytes = i32[(offset + BatchAt.BODY_BYTES) >>> 2] >>> 0;
  into.records = i32[(offset + BatchAt.RECORDS) >>> 2] >>> 0;
  into.recordsCrc = i32[(offset + BatchAt.RECORDS_CRC) >>> 2] >>> 0;
  into.version = i32[(offset + BatchAt.VERSION) >>> 2];
  into.number = f64[(offset + BatchAt.NUMBER) >>> 3];
  into.epoch = f64[(offset + BatchAt.EPOCH) >>> 3];
  into.position = f64[(offset + BatchAt.POSITION) >>> 3];
  into.syncedUpTo = f64[(offset + BatchAt.SYNCED_UP_TO) >>> 3];
  into.idHigh = f64[(offset + BatchAt.ID_HIGH) >>> 3];
}

/** newer: every checksum is right and there is a record type that this version does not know. */
export type Body = 'intact' | 'damaged' | 'newer';

/** Checks the records behind a header; all of its `bodyBytes` must be in memory from `offset` on. */
export function checkBody(memory: Memory, offset: number, header: Readonly<BatchHeader>): Body {
  const end = offset + header.bodyBytes;
  let crc = 0;
  let records = 0;
  let known = true;
  for (let at = offset; at < end; records++) {
    const bytes = bytesOf(memory, at);
    const next = at + paddedBytes(bytes);
    if (bytes < HEADER_BYTES || next > end || !isIntact(memory, at)) return 'damaged';
    if (!isKnown(typeOf(memory, at))) known = false;
    crc = crc32cMix(crc, memory.i32[at >>> 2]);
    at = next;
  }
  if (records !== header.records || crc !== header.recordsCrc) return 'damaged';
  return known ? 'intact' : 'newer';
}

const KNOWN: readonly boolean[] = Array.from({ length: 64 }, (_, type) => {
  return type < RecordType.ASK && (Object.values(RecordType) as number[]).includes(type);
});

function isKnown(type: number): boolean {
  return KNOWN[type];
}

function headerChecksum(memory: Memory, offset: number, salt: number): number {
  const word = offset >>> 2;
  return crc32cWords(memory.i32, word + 2, word + BATCH_HEADER_BYTES / 4, salt) | 0;
}
