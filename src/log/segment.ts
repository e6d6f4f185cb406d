/**
 * Segment files: their names and their 64-byte header (FORMAT.md, "Segment"). Pure functions over memory, used by the
 * writer, recovery and the tools.
 *
 * 1. A segment's header is durable before the first byte behind it is written.
 * 2. Position is global: that of a byte is the segment's base plus its offset behind the header.
 */
import { crc32cWords } from '../../native-free/crc32c.js';
import type { Memory } from '../../native-free/record.js';

export const FORMAT_VERSION = 1;
export const SEGMENT_HEADER_BYTES = 64;
/** "mlrS" */
const MAGIC = 0x53726c6d;

const SegmentAt = {
  MAGIC: 0,
  CRC: 4,
  VERSION: 8,
  SALT: 12,
  NUMBER: 16,
  BASE: 24,
  BATCH: 32,
  EPOCH: 40,
  ID_HIGH: 48,
} as const;

export interface SegmentHeader {
  /** Format version in the lower, flags in the upper 16 bits. */
  version: number;
  /** Random, unsigned, the same in every segment of a directory. */
  salt: number;
  number: number;
  /** Position of the first batch. */
  base: number;
  /** Of the last batch before this segment, 0 = none: a log can be read from any segment on. */
  batchNumber: number;
  epoch: number;
  idHigh: number;
}

export function segmentName(number: number): string {
  return `${String(number).padStart(16, '0')}.log`;
}

/** The number a file name claims; undefined when it is not a segment's. */
export function segmentNumberOf(name: string): number | undefined {
  const digits = /^(\d+)\.log$/.exec(name)?.[1];
  return digits === undefined ? undefined : Number(digits);
}

export function writeSegmentHeader(memory: Memory, offset: number, header: Readonly<SegmentHeader>): void {
  const { i32, f64 } = memory;
  const word = offset >>> 2;
  i32.fill(0, word, word + SEGMENT_HEADER_BYTES / 4);
  i32[word] = MAGIC;
  i32[(offset + SegmentAt.VERSION) >>> 2] = header.version;
  i32[(offset + SegmentAt.SALT) >>> 2] = header.salt;
  f64[(offset + SegmentAt.NUMBER) >>> 3] = header.number;
  f64[(offset + SegmentAt.BASE) >>> 3] = header.base;
  f64[(offset + SegmentAt.BATCH) >>> 3] = header.batchNumber;
  f64[(offset + SegmentAt.EPOCH) >>> 3] = header.epoch;
  f64[(offset + SegmentAt.ID_HIGH) >>> 3] = header.idHigh;
  i32[word + 1] = checksum(memory, word);
}

/** Reads 64 bytes at `offset`; undefined when they are no intact segment header. */
export function readSegmentHeader(memory: Memory, offset: number): SegmentHeader | undefined {
  const { i32, f64 } = memory;
  const word = offset >>> 2;
  if (i32[word] !== MAGIC || i32[word + 1] !== checksum(memory, word)) return undefined;
  return {
    version: i32[(offset + SegmentAt.VERSION) >>> 2],
    salt: i32[(offset + SegmentAt.SALT) >>> 2] >>> 0,
    number: f64[(offset + SegmentAt.NUMBER) >>> 3],
    base: f64[(offset + SegmentAt.BASE) >>> 3],
    batchNumber: f64[(offset + SegmentAt.BATCH) >>> 3],
    epoch: f64[(offset + SegmentAt.EPOCH) >>> 3],
    idHigh: f64[(offset + SegmentAt.ID_HIGH) >>> 3],
  };
}

function checksum(memory: Memory, word: number): number {
  return crc32cWords(memory.i32, word + 2, word + SEGMENT_HEADER_BYTES / 4) | 0;
}
