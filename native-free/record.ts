/**
 * The record: what a producer writes into ring slots is byte for byte what lies in the log (`src/log/FORMAT.md`).
 * Pure functions over (memory, offset); used by producers, the scheduler, recovery and the tools, on any thread.
 *
 * R1  A record is padded with zeros to whole slots of 32 bytes; its CRC32C covers everything after the CRC word,
 *     padding included, so no bit of it can change unnoticed.
 * R2  The length word also holds the type and the durability level.
 * R3  The arena keeps a job's bytes from `BODY` on, so a block at byte b is read as the record at b - BODY.
 */
import { crc32cWords } from './crc32c.js';

export const SLOT_BYTES = 32;
export const SLOT_WORDS = 8;
export const HEADER_BYTES = 32;
/** The longest record: its length has 24 bits. */
export const RECORD_BYTES_MAX = (1 << 24) - SLOT_BYTES;

/** Types below `ASK` may stand in a log; a type that is not listed was written by a newer version. */
export const RecordType = {
  ENQUEUE: 1,
  ACK: 2,
  ACK_MANY: 3,
  RETRY: 4,
  DEAD: 5,
  QUEUE: 6,
  EPOCH: 7,
  CANCEL: 8,
  REDRIVE: 9,
  PURGE: 10,
  CLAIM_MARK: 11,
  CHECKPOINT: 12,
  BIND: 13,
  UNBIND: 14,
  PAUSE: 15,
  RESUME: 16,
  /** All of one job as it is now: written by compaction. */
  IMAGE: 17,
  /** The log begins with the segment whose number is the id; those below may be gone. */
  HEAD: 18,
  /** Questions to the scheduler and filled holes: seen in rings, never in a log. */
  ASK: 48,
  VOID: 49,
} as const;
export type RecordType = (typeof RecordType)[keyof typeof RecordType];

/**
 * ROW of a PAUSE or BIND that compaction wrote again. It says what held when it was made, so it counts only where
 * nothing else is known: what people did since may stand before it.
 */
export const COPIED = 1;

/** How safe a record must be before its producer hears ok. */
export const Level = { FSYNC: 0, OS: 1, MEMORY: 2, REFUSED: 3 } as const;
export type Level = (typeof Level)[keyof typeof Level];

/** Why an attempt ended or a job died; stored as a byte, so the order is part of the format. */
export const REASONS = ['none', 'attempts', 'crash', 'rejected', 'timeout', 'expired', 'lease', 'given-back'] as const;
export type Reason = (typeof REASONS)[number];

/** Which optional fields an ENQUEUE carries, in this order behind its fixed part. */
export const Attribute = {
  RUN_AT: 1,
  /** visibility and timeout, both Int32 milliseconds, 0 = the queue's. */
  LIMITS: 2,
  KEY_RETENTION: 4,
  EXPIRES_AT: 8,
  /** Two Int32: the owner to tell when the job ends, and the request to answer; for the run that wrote it only. */
  WATCH: 16,
  TENANT: 32,
  KEY: 64,
  TRACE: 128,
} as const;

/** Byte offsets inside a record. */
export const At = {
  CRC: 0,
  LENGTH: 4,
  ID: 8,
  QUEUE: 16,
  /** ENQUEUE: priority; settling records: a row hint, good in the run that wrote it. */
  ROW: 20,
  TIME: 24,
  /** ENQUEUE: attemptsMax u16, crashesMax u8, attributes u8. RETRY, DEAD: attempts u16, crashes u8, reason u8. */
  LIMITS: 32,
  /** Bytes of payload (ENQUEUE), error (RETRY, DEAD) or result (ACK); in an ENQUEUE the level again, in bits 30-31. */
  SIZE: 36,
  ATTRIBUTES: 40,
} as const;

/** First byte of a record that the arena keeps (R3). */
export const BODY = At.TIME;

/** The three views of one piece of memory that record code needs. All start at byte 0 of the same buffer. */
export interface Memory {
  readonly u8: Uint8Array;
  readonly i32: Int32Array;
  readonly f64: Float64Array;
}

export function memoryOver(buffer: ArrayBufferLike): Memory {
  const whole = buffer.byteLength & ~7;
  return {
    u8: new Uint8Array(buffer),
    i32: new Int32Array(buffer, 0, whole >>> 2),
    f64: new Float64Array(buffer, 0, whole >>> 3),
  };
}

export function paddedBytes(bytes: number): number {
  return (bytes + (SLOT_BYTES - 1)) & ~(SLOT_BYTES - 1);
}

export function slotsOf(bytes: number): number {
  return (bytes + (SLOT_BYTES - 1)) >>> 5;
}

export function lengthWord(bytes: number, type: number, level: number): number {
  return bytes | (type << 24) | (level << 30);
}

export function bytesOf(memory: Memory, offset: number): number {
  return memory.i32[(offset + At.LENGTH) >>> 2]! & 0xffffff;
}

export function typeOf(memory: Memory, offset: number): number {
  return (memory.i32[(offset + At.LENGTH) >>> 2]! >>> 24) & 0x3f;
}

export function levelOf(memory: Memory, offset: number): Level {
  return (memory.i32[(offset + At.LENGTH) >>> 2]! >>> 30) as Level;
}

export function idOf(memory: Memory, offset: number): number {
  return memory.f64[(offset + At.ID) >>> 3]!;
}

export function queueOf(memory: Memory, offset: number): number {
  return memory.i32[(offset + At.QUEUE) >>> 2]!;
}

export function rowOf(memory: Memory, offset: number): number {
  return memory.i32[(offset + At.ROW) >>> 2]!;
}

export function timeOf(memory: Memory, offset: number): number {
  return memory.f64[(offset + At.TIME) / 8]!;
}

export function sizeOf(memory: Memory, offset: number): number {
  return memory.i32[(offset + At.SIZE) / 4]! & 0xffffff;
}

/** The level of an ENQUEUE, read from its body, where the arena keeps it too. */
export function jobLevelOf(memory: Memory, offset: number): Level {
  return (memory.i32[(offset + At.SIZE) / 4]! >>> 30) as Level;
}

/** Bits of SIZE that no record has, only bodies in an arena. The payload is not there (`schedule/pager`). */
const PAGED_OUT = 1 << 24;
/** The scheduler keeps a checkpoint of the job. */
const CHECKPOINTED = 1 << 25;
const MARKS = PAGED_OUT | CHECKPOINTED;

export function isPagedOut(memory: Memory, offset: number): boolean {
  return (memory.i32[(offset + At.SIZE) / 4]! & PAGED_OUT) !== 0;
}

export function markPagedOut(memory: Memory, offset: number): void {
  memory.i32[(offset + At.SIZE) / 4]! |= PAGED_OUT;
}

export function isCheckpointed(memory: Memory, offset: number): boolean {
  return (memory.i32[(offset + At.SIZE) / 4]! & CHECKPOINTED) !== 0;
}

export function markCheckpointed(memory: Memory, offset: number): void {
  memory.i32[(offset + At.SIZE) / 4]! |= CHECKPOINTED;
}

/** A body on its way from an arena into the log. */
export function clearMarks(memory: Memory, offset: number): void {
  memory.i32[(offset + At.SIZE) / 4]! &= ~MARKS;
}

/** attemptsMax of an ENQUEUE, attempts of a RETRY or DEAD. */
export function attemptsOf(memory: Memory, offset: number): number {
  return memory.i32[(offset + At.LIMITS) / 4]! & 0xffff;
}

/** crashesMax of an ENQUEUE, crashes of a RETRY or DEAD. */
export function crashesOf(memory: Memory, offset: number): number {
  return (memory.i32[(offset + At.LIMITS) / 4]! >>> 16) & 0xff;
}

export function attributesOf(memory: Memory, offset: number): number {
  return memory.i32[(offset + At.LIMITS) / 4]! >>> 24;
}

export function reasonOf(memory: Memory, offset: number): Reason {
  return REASONS[memory.i32[(offset + At.LIMITS) / 4]! >>> 24] ?? 'none';
}

export function limitsWord(attempts: number, crashes: number, attributesOrReason: number): number {
  return attempts | (crashes << 16) | (attributesOrReason << 24);
}

/** Byte offset, in the memory, of one optional field; -1 when the record has none. */
export function attributeAt(memory: Memory, offset: number, attribute: number): number {
  const present = attributesOf(memory, offset);
  if ((present & attribute) === 0) return -1;
  let at = offset + At.ATTRIBUTES;
  for (let bit = 1; bit < attribute; bit <<= 1) {
    if ((present & bit) === 0) continue;
    at += bit < Attribute.TENANT ? 8 : 2 + (memory.u8[at]! | (memory.u8[at + 1]! << 8));
  }
  return at;
}

export function runAtOf(memory: Memory, offset: number): number {
  return (attributesOf(memory, offset) & Attribute.RUN_AT) === 0
    ? timeOf(memory, offset)
    : memory.f64[(offset + At.ATTRIBUTES) / 8]!;
}

let longChecksum: ((bytes: Uint8Array, from: number, to: number) => number) | undefined;
let longFrom = Infinity;

/** Hands long ranges to another implementation (a native one) from `bytesMin` on. Once per thread, at its start. */
export function useLongChecksum(
  checksum: (bytes: Uint8Array, from: number, to: number) => number,
  bytesMin: number,
): void {
  longChecksum = checksum;
  longFrom = bytesMin;
}

/** Byte offset behind an ENQUEUE's or IMAGE's payload. */
export function bodyEnd(memory: Memory, offset: number): number {
  const present = attributesOf(memory, offset);
  let at = offset + At.ATTRIBUTES;
  for (let bit = 1; bit <= Attribute.TRACE; bit <<= 1) {
    if ((present & bit) === 0) continue;
    at += bit < Attribute.TENANT ? 8 : 2 + (memory.u8[at]! | (memory.u8[at + 1]! << 8));
  }
  return at + sizeOf(memory, offset);
}

/** What an IMAGE holds behind the job's body, from the next multiple of 8 on: byte offsets from there. */
export const ImageAt = {
  RUN_AT: 0,
  /** attempts u16, crashes u8, 0 = live, 1 = dead, 2 = done. */
  COUNTS: 8,
  REASON: 12,
  ERRORS: 16,
  /** Bytes of the result, -1 = none. */
  RESULT: 20,
  /** JSON of the errors, then the result. */
  TEXTS: 24,
} as const;
export const ImageState = { LIVE: 0, DEAD: 1, DONE: 2 } as const;

export function imageTail(memory: Memory, offset: number): number {
  return (bodyEnd(memory, offset) + 7) & ~7;
}

/** The checksum a record must carry (R1). `offset` is a multiple of 4. */
export function checksumOf(memory: Memory, offset: number): number {
  const padded = paddedBytes(bytesOf(memory, offset));
  if (padded < longFrom) return crc32cWords(memory.i32, (offset + 4) >>> 2, (offset + padded) >>> 2) | 0;
  return longChecksum!(memory.u8, offset + 4, offset + padded) | 0;
}

export function isIntact(memory: Memory, offset: number): boolean {
  return memory.i32[offset >>> 2] === checksumOf(memory, offset);
}
