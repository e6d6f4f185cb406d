/**
 * Records on their way into a ring. Each thread has its own encoder: records are built one behind the other in
 * private memory, sealed (id and checksum) when their place in the ring is known, and copied in one go.
 * The scheduler and every consumer also use one as an outbox: what does not fit in the ring stays here, in order.
 *
 * E1  `append*` leaves a whole number of slots, padding zeroed; nothing is shared until `moveInto`.
 * E2  A job's id is the id of its first slot, so ids rise in log order without a counter of their own.
 */
import { assert } from './assert.js';
import {
  At,
  Attribute,
  BODY,
  bytesOf,
  checksumOf,
  clearMarks,
  HEADER_BYTES,
  ImageAt,
  lengthWord,
  limitsWord,
  type Memory,
  memoryOver,
  paddedBytes,
  RECORD_BYTES_MAX,
  RecordType,
  SLOT_BYTES,
  typeOf,
} from './record.js';

const text = new TextEncoder();
const SHORT = 96;

/** The fields of one ENQUEUE besides its payload. Reused by the caller from job to job. */
export interface EnqueueFields {
  queue: number;
  level: number;
  priority: number;
  enqueuedAtMs: number;
  attemptsMax: number;
  crashesMax: number;
  /** Wall clock, milliseconds; NaN = at once. */
  runAtMs: number;
  /** 0 = the queue's. */
  visibilityMs: number;
  timeoutMs: number;
  /** NaN = the queue's. */
  keyRetentionMs: number;
  expiresAtMs: number;
  /** Owner to tell at the end; 0 = nobody. */
  watcher: number;
  /** Request to answer with a verdict on the key; 0 = none. */
  request: number;
  tenant: string;
  key: string;
}

export class Encoder {
  memory: Memory;
  /** Bytes in use: whole records, each a whole number of slots. */
  bytes = 0;
  #capacity: number;

  constructor(bytes = 8192) {
    this.#capacity = bytes;
    this.memory = memoryOver(new ArrayBuffer(bytes));
  }

  get slots(): number {
    return this.bytes >>> 5;
  }

  clear(): void {
    this.bytes = 0;
  }

  /** Drops what was appended behind `bytes`. */
  truncate(bytes: number): void {
    this.bytes = bytes;
  }

  /** Starts an ENQUEUE; its payload follows by `payloadText` or `payloadBytes`. Returns its offset. */
  appendEnqueue(fields: EnqueueFields): number {
    const offset = this.bytes;
    this.room(offset + 128 + 2 * (3 * fields.tenant.length + 3 * fields.key.length + 4));
    const { i32, f64 } = this.memory;
    let present = 0;
    let at = offset + At.ATTRIBUTES;
    if (!Number.isNaN(fields.runAtMs)) {
      present |= Attribute.RUN_AT;
      f64[at >>> 3] = fields.runAtMs;
      at += 8;
    }
    if (fields.visibilityMs !== 0 || fields.timeoutMs !== 0) {
      present |= Attribute.LIMITS;
      i32[at >>> 2] = fields.visibilityMs;
      i32[(at >>> 2) + 1] = fields.timeoutMs;
      at += 8;
    }
    if (!Number.isNaN(fields.keyRetentionMs)) {
      present |= Attribute.KEY_RETENTION;
      f64[at >>> 3] = fields.keyRetentionMs;
      at += 8;
    }
    if (!Number.isNaN(fields.expiresAtMs)) {
      present |= Attribute.EXPIRES_AT;
      f64[at >>> 3] = fields.expiresAtMs;
      at += 8;
    }
    if (fields.watcher !== 0) {
      present |= Attribute.WATCH;
      i32[at >>> 2] = fields.watcher;
      i32[(at >>> 2) + 1] = fields.request;
      at += 8;
    }
    if (fields.tenant !== '') {
      present |= Attribute.TENANT;
      at = this.#string(fields.tenant, at);
    }
    if (fields.key !== '') {
      present |= Attribute.KEY;
      at = this.#string(fields.key, at);
    }
    const word = offset >>> 2;
    i32[word + 1] = lengthWord(at - offset, RecordType.ENQUEUE, fields.level);
    i32[word + 4] = fields.queue;
    i32[word + 5] = fields.priority;
    f64[(offset + At.TIME) >>> 3] = fields.enqueuedAtMs;
    i32[word + 8] = limitsWord(fields.attemptsMax, fields.crashesMax, present);
    i32[word + 9] = fields.level << 30;
    this.bytes = at;
    return offset;
  }

  /** Starts any other record with the common header and, from `LIMITS` on, two words. Returns its offset. */
  append(type: number, level: number, id: number, queue: number, row: number, timeMs: number, limits: number): number {
    const offset = this.bytes;
    this.room(offset + HEADER_BYTES + 32);
    const { i32, f64 } = this.memory;
    const word = offset >>> 2;
    i32[word + 1] = lengthWord(HEADER_BYTES + 8, type, level);
    f64[(offset + At.ID) >>> 3] = id;
    i32[word + 4] = queue;
    i32[word + 5] = row;
    f64[(offset + At.TIME) >>> 3] = timeMs;
    i32[word + 8] = limits;
    i32[word + 9] = 0;
    this.bytes = offset + HEADER_BYTES + 8;
    return offset;
  }

  /** A record of one slot: the header alone (an ACK without a result, a CANCEL, a PURGE). */
  appendShort(type: number, level: number, id: number, queue: number, row: number, timeMs: number): number {
    const offset = this.bytes;
    this.room(offset + SLOT_BYTES);
    const { i32, f64 } = this.memory;
    const word = offset >>> 2;
    i32[word + 1] = lengthWord(HEADER_BYTES, type, level);
    f64[(offset + At.ID) >>> 3] = id;
    i32[word + 4] = queue;
    i32[word + 5] = row;
    f64[(offset + At.TIME) >>> 3] = timeMs;
    this.bytes = offset + HEADER_BYTES;
    return offset;
  }

  /**
   * An IMAGE of a job: its header, its body out of the arena, and where it stands. `texts` are the errors as JSON and
   * the result, -1 bytes of which mean none.
   */
  appendImage(
    id: number,
    queue: number,
    priority: number,
    level: number,
    arena: Memory,
    bodyAt: number,
    bodyBytes: number,
    runAtMs: number,
    counts: number,
    reason: number,
    errors: Uint8Array,
    result: Uint8Array | undefined,
  ): void {
    const offset = this.bytes;
    const tail = (offset + BODY + bodyBytes + 7) & ~7;
    const resultBytes = result === undefined ? -1 : result.length;
    const end = tail + ImageAt.TEXTS + errors.length + Math.max(0, resultBytes);
    this.room(end + SLOT_BYTES);
    const { i32, f64, u8 } = this.memory;
    const word = offset >>> 2;
    i32[word + 1] = lengthWord(end - offset, RecordType.IMAGE, level);
    f64[(offset + At.ID) >>> 3] = id;
    i32[word + 4] = queue;
    i32[word + 5] = priority;
    u8.set(arena.u8.subarray(bodyAt, bodyAt + bodyBytes), offset + BODY);
    clearMarks(this.memory, offset);
    u8.fill(0, offset + BODY + bodyBytes, tail);
    f64[(tail + ImageAt.RUN_AT) >>> 3] = runAtMs;
    i32[(tail + ImageAt.COUNTS) >>> 2] = counts;
    i32[(tail + ImageAt.REASON) >>> 2] = reason;
    i32[(tail + ImageAt.ERRORS) >>> 2] = errors.length;
    i32[(tail + ImageAt.RESULT) >>> 2] = resultBytes;
    u8.set(errors, tail + ImageAt.TEXTS);
    if (result !== undefined) u8.set(result, tail + ImageAt.TEXTS + errors.length);
    this.bytes = end;
    this.finish(offset);
  }

  /** Appends a finished record that came from elsewhere, under another level. */
  appendCopy(bytes: Uint8Array, level: number): void {
    const word = (this.bytes + At.LENGTH) >>> 2;
    this.appendCopies(bytes);
    this.memory.i32[word] = (this.memory.i32[word]! & 0x3fffffff) | (level << 30);
  }

  /** Appends finished records as they are. */
  appendCopies(bytes: Uint8Array): void {
    const offset = this.bytes;
    this.room(offset + bytes.length);
    this.memory.u8.set(bytes, offset);
    this.bytes = offset + bytes.length;
  }

  /** Adds text to the record at `offset`, which must be the last, as its payload. Returns the payload's bytes. */
  payloadText(offset: number, value: string): number {
    const from = this.bytes;
    const length = value.length;
    this.room(from + 3 * length + SLOT_BYTES);
    const u8 = this.memory.u8;
    let written = 0;
    if (length <= SHORT) {
      while (written < length) {
        const unit = value.charCodeAt(written);
        if (unit > 0x7f) break;
        u8[from + written++] = unit;
      }
    }
    if (written < length || length === 0) {
      written = length === 0 ? 0 : text.encodeInto(value, u8.subarray(from)).written;
    }
    return this.#sized(offset, from, written);
  }

  payloadBytes(offset: number, value: Uint8Array): number {
    const from = this.bytes;
    this.room(from + value.length + SLOT_BYTES);
    const u8 = this.memory.u8;
    if (value.length <= SHORT) for (let i = 0; i < value.length; i++) u8[from + i] = value[i]!;
    else u8.set(value, from);
    return this.#sized(offset, from, value.length);
  }

  /** Pads the last record to whole slots (R1). Call once its payload, if any, is in. */
  finish(offset: number): void {
    const bytes = bytesOf(this.memory, offset);
    assert(bytes <= RECORD_BYTES_MAX, 'a record is longer than its length field can say');
    const end = offset + paddedBytes(bytes);
    this.room(end);
    const u8 = this.memory.u8;
    for (let i = offset + bytes; i < end; i++) u8[i] = 0;
    this.bytes = end;
  }

  /** Bytes of the longest prefix of whole records, from `from`, that fits in `bytesMax`. */
  prefix(from: number, bytesMax: number): number {
    let at = from;
    while (at < this.bytes) {
      const next = at + paddedBytes(bytesOf(this.memory, at));
      if (next - from > bytesMax) break;
      at = next;
    }
    return at - from;
  }

  /** Padded bytes of the record at `from`. */
  prefixOne(from: number): number {
    return paddedBytes(bytesOf(this.memory, from));
  }

  /**
   * Seals the records in [from, from + bytes) and copies them to `offset` of the ring's memory (E1).
   * `firstId` is the id of the first slot they go to (E2).
   */
  moveInto(ring: Memory, offset: number, from: number, bytes: number, firstId: number): void {
    const memory = this.memory;
    const end = from + bytes;
    for (let at = from; at < end; ) {
      if (typeOf(memory, at) === RecordType.ENQUEUE) memory.f64[(at + At.ID) >>> 3] = firstId + ((at - from) >>> 5);
      memory.i32[at >>> 2] = checksumOf(memory, at);
      at += paddedBytes(bytesOf(memory, at));
    }
    if (bytes <= 256) {
      const source = memory.i32;
      const target = ring.i32;
      const shift = (offset - from) >> 2;
      for (let word = from >>> 2; word < end >>> 2; word++) target[word + shift] = source[word]!;
    } else {
      ring.u8.set(memory.u8.subarray(from, end), offset);
    }
  }

  #sized(offset: number, from: number, bytes: number): number {
    const { i32 } = this.memory;
    i32[(offset + At.SIZE) >>> 2]! |= bytes;
    const length = from + bytes - offset;
    const word = (offset + At.LENGTH) >>> 2;
    i32[word] = (i32[word]! & 0xff000000) | Math.min(length, 0xffffff);
    this.bytes = from + bytes;
    return bytes;
  }

  #string(value: string, at: number): number {
    const { u8 } = this.memory;
    const written = text.encodeInto(value, u8.subarray(at + 2)).written;
    u8[at] = written & 0xff;
    u8[at + 1] = written >>> 8;
    return at + 2 + written;
  }

  /** Makes sure that `bytes` fit. */
  room(bytes: number): void {
    if (bytes <= this.#capacity) return;
    let capacity = this.#capacity;
    while (capacity < bytes) capacity *= 2;
    const grown = memoryOver(new ArrayBuffer(capacity));
    grown.u8.set(this.memory.u8.subarray(0, this.bytes));
    this.#capacity = capacity;
    this.memory = grown;
  }
}
