/** Logs made for tests, and their parts: where each batch lies, and ways to damage one. */
import { memoryOver } from '../../native-free/record.js';
import {
  type BatchHeader,
  emptyBatchHeader,
  isBatchHeader,
  readBatchHeader,
  writeBatchHeader,
} from '../../src/log/batch.js';
import { readSegmentHeader, SEGMENT_HEADER_BYTES, segmentName } from '../../src/log/segment.js';
import { MemoryStorage } from './memory-storage.js';
import { DIR, Run, type RunOptions } from './run.js';

export const LOG = `${DIR}/${segmentName(1)}`;

export interface Place {
  readonly at: number;
  readonly end: number;
  readonly header: BatchHeader;
}

export function copyOf(bytes: Uint8Array): Uint8Array {
  return Uint8Array.from(bytes);
}

export function memoryOf(bytes: Uint8Array) {
  const memory = memoryOver(new ArrayBuffer((bytes.length + 63) & ~63));
  memory.u8.set(bytes);
  return memory;
}

export function saltOf(bytes: Uint8Array): number {
  return readSegmentHeader(memoryOf(bytes), 0)!.salt;
}

/** The batches of one intact segment. */
export function batchesIn(bytes: Uint8Array): Place[] {
  const memory = memoryOf(bytes);
  const salt = saltOf(bytes);
  const places: Place[] = [];
  for (let at = SEGMENT_HEADER_BYTES; at < bytes.length; ) {
    if (!isBatchHeader(memory, at, salt)) throw new Error(`no batch at ${at}`);
    const header = emptyBatchHeader();
    readBatchHeader(memory, at, header);
    const end = at + 64 + header.bodyBytes;
    places.push({ at, end, header });
    at = end;
  }
  return places;
}

/** The bytes with one header changed and sealed again. */
export function resealed(bytes: Uint8Array, at: number, change: Partial<BatchHeader>): Uint8Array {
  const memory = memoryOf(bytes);
  const header = emptyBatchHeader();
  readBatchHeader(memory, at, header);
  writeBatchHeader(memory, at, { ...header, ...change }, saltOf(bytes));
  return memory.u8.slice(0, bytes.length);
}

/** One batch for each text or list of texts; everything flushed, not closed: there is no watermark yet. */
export function logOf(batches: readonly (string | readonly string[])[], options: RunOptions = {}): MemoryStorage {
  const disk = new MemoryStorage();
  const run = new Run(disk, options);
  for (const texts of batches) {
    run.enqueue(texts);
    run.settle();
  }
  return disk;
}

/** The same, closed. */
export function closedLogOf(batches: readonly (string | readonly string[])[], options: RunOptions = {}): MemoryStorage {
  const disk = new MemoryStorage();
  const run = new Run(disk, options);
  for (const texts of batches) {
    run.enqueue(texts);
    run.settle();
  }
  run.close();
  return disk;
}

export function joined(...parts: readonly Uint8Array[]): Uint8Array {
  return Uint8Array.from(Buffer.concat(parts));
}
