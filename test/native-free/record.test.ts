import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { BreachError } from '../../native-free/assert.js';
import { crc32c } from '../../native-free/crc32c.js';
import { Encoder, type EnqueueFields } from '../../native-free/encoder.js';
import * as record from '../../native-free/record.js';
import { At, Attribute, Level, memoryOver, RecordType, SLOT_BYTES } from '../../native-free/record.js';

const plain: EnqueueFields = {
  queue: 1,
  level: Level.FSYNC,
  priority: 0,
  enqueuedAtMs: 0,
  attemptsMax: 1,
  crashesMax: 1,
  runAtMs: Number.NaN,
  visibilityMs: 0,
  timeoutMs: 0,
  keyRetentionMs: Number.NaN,
  expiresAtMs: Number.NaN,
  watcher: 0,
  request: 0,
  tenant: '',
  key: '',
};
const word = fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 });
const milliseconds = fc.integer({ min: 0, max: 2 ** 52 });
const label = fc.string({ unit: 'grapheme', maxLength: 60 });
const level = fc.constantFrom(Level.FSYNC, Level.OS, Level.MEMORY);
const fields: fc.Arbitrary<EnqueueFields> = fc.record({
  queue: fc.nat({ max: 131_071 }),
  level,
  priority: word,
  enqueuedAtMs: milliseconds,
  attemptsMax: fc.nat({ max: 65_535 }),
  crashesMax: fc.nat({ max: 255 }),
  runAtMs: fc.oneof(fc.constant(Number.NaN), milliseconds),
  visibilityMs: fc.oneof(fc.constant(0), fc.nat()),
  timeoutMs: fc.oneof(fc.constant(0), fc.nat()),
  keyRetentionMs: fc.oneof(fc.constant(Number.NaN), milliseconds),
  expiresAtMs: fc.oneof(fc.constant(Number.NaN), milliseconds),
  watcher: fc.nat({ max: 255 }),
  request: word,
  tenant: label,
  key: label,
});
const payload = fc.oneof(fc.uint8Array({ maxLength: 300 }), fc.string({ unit: 'grapheme', maxLength: 200 }));
const utf8 = new TextEncoder();
const bytesOfPayload = (value: string | Uint8Array) => (typeof value === 'string' ? utf8.encode(value) : value);

function append(encoder: Encoder, job: EnqueueFields, value: string | Uint8Array): number {
  const offset = encoder.appendEnqueue(job);
  if (typeof value === 'string') encoder.payloadText(offset, value);
  else encoder.payloadBytes(offset, value);
  encoder.finish(offset);
  return offset;
}

/** Everything an ENQUEUE says, read back by the record's own functions. */
function read(memory: record.Memory, offset: number): EnqueueFields & { payload: Uint8Array } {
  const at = (attribute: number) => record.attributeAt(memory, offset, attribute);
  const double = (attribute: number) => (at(attribute) < 0 ? Number.NaN : memory.f64[at(attribute) / 8]!);
  const word = (attribute: number, nth: number) => (at(attribute) < 0 ? 0 : memory.i32[at(attribute) / 4 + nth]!);
  const string = (attribute: number) => {
    const from = at(attribute);
    if (from < 0) return '';
    const bytes = memory.u8[from]! | (memory.u8[from + 1]! << 8);
    return new TextDecoder('utf-8', { ignoreBOM: true }).decode(memory.u8.slice(from + 2, from + 2 + bytes));
  };
  const end = offset + record.bytesOf(memory, offset);
  return {
    queue: record.queueOf(memory, offset),
    level: record.levelOf(memory, offset),
    priority: record.rowOf(memory, offset),
    enqueuedAtMs: record.timeOf(memory, offset),
    attemptsMax: record.attemptsOf(memory, offset),
    crashesMax: record.crashesOf(memory, offset),
    runAtMs: double(Attribute.RUN_AT),
    visibilityMs: word(Attribute.LIMITS, 0),
    timeoutMs: word(Attribute.LIMITS, 1),
    keyRetentionMs: double(Attribute.KEY_RETENTION),
    expiresAtMs: double(Attribute.EXPIRES_AT),
    watcher: word(Attribute.WATCH, 0),
    request: word(Attribute.WATCH, 1),
    tenant: string(Attribute.TENANT),
    key: string(Attribute.KEY),
    payload: memory.u8.slice(end - record.sizeOf(memory, offset), end),
  };
}

/** Records sealed and moved into memory like a ring's, dirty from earlier use. */
function sealed(encoder: Encoder, at: number, firstId: number): record.Memory {
  const ring = memoryOver(new ArrayBuffer(at + encoder.bytes + SLOT_BYTES));
  ring.u8.fill(0xa5);
  encoder.moveInto(ring, at, 0, encoder.bytes, firstId);
  return ring;
}

describe('an ENQUEUE', () => {
  it('is read as it was written, whatever it carries, and is padded with zeros', () => {
    fc.assert(
      fc.property(fields, payload, (job, value) => {
        const encoder = new Encoder(64);
        // What lay there before must not show.
        encoder.room(4096);
        encoder.memory.u8.fill(0xff);
        const offset = append(encoder, job, value);
        const ring = sealed(encoder, 3 * SLOT_BYTES, 4711);
        const at = 3 * SLOT_BYTES;
        const { memory } = encoder;
        // Without a watcher nobody asked, and the request is not kept.
        const request = job.watcher === 0 ? 0 : job.request;
        expect(read(ring, at)).toEqual({ ...job, request, payload: bytesOfPayload(value) });
        expect(record.typeOf(ring, at)).toBe(RecordType.ENQUEUE);
        expect(record.idOf(ring, at)).toBe(4711);
        expect(record.jobLevelOf(ring, at)).toBe(job.level);
        expect(record.runAtOf(ring, at)).toBe(Number.isNaN(job.runAtMs) ? job.enqueuedAtMs : job.runAtMs);
        const bytes = record.bytesOf(ring, at);
        expect(encoder.bytes).toBe(record.paddedBytes(bytes));
        expect(encoder.slots).toBe(record.slotsOf(bytes));
        expect(memory.u8.subarray(offset + bytes, encoder.bytes).every((byte) => byte === 0)).toBe(true);
        expect(record.isIntact(ring, at)).toBe(true);
        expect(ring.i32[at >>> 2]! >>> 0).toBe(crc32c(ring.u8, at + 4, at + encoder.bytes));
        expect(ring.u8.subarray(0, at).every((byte) => byte === 0xa5)).toBe(true);
        expect(ring.u8.subarray(at + encoder.bytes).every((byte) => byte === 0xa5)).toBe(true);
      }),
      { numRuns: 1000 },
    );
  });

  it('every set of attributes is read back', () => {
    for (let present = 0; present < 128; present++) {
      const job: EnqueueFields = {
        ...plain,
        runAtMs: present & 1 ? 1.5 : Number.NaN,
        visibilityMs: present & 2 ? 3 : 0,
        timeoutMs: present & 2 ? -4 : 0,
        keyRetentionMs: present & 4 ? 5 : Number.NaN,
        expiresAtMs: present & 8 ? 6 : Number.NaN,
        watcher: present & 16 ? 7 : 0,
        request: present & 16 ? 8 : 0,
        tenant: present & 32 ? 'tenant' : '',
        key: present & 64 ? 'key' : '',
      };
      const encoder = new Encoder();
      append(encoder, job, 'payload');
      expect(record.attributesOf(encoder.memory, 0)).toBe(present);
      expect(read(encoder.memory, 0)).toEqual({ ...job, payload: utf8.encode('payload') });
    }
  });

  it.each([0, 1, 55, 56, 57, 95, 96, 97, 247, 248, 249, 255, 256, 257, 65_535, 65_536])(
    'a payload of %i bytes keeps its bytes and its length, as text and as bytes',
    (bytes) => {
      for (const value of ['x'.repeat(bytes), new Uint8Array(bytes).fill(7)]) {
        const encoder = new Encoder();
        append(encoder, plain, value);
        const ring = sealed(encoder, 0, 1);
        expect(read(ring, 0).payload).toEqual(bytesOfPayload(value));
        expect(encoder.bytes).toBe(Math.ceil((At.ATTRIBUTES + bytes) / SLOT_BYTES) * SLOT_BYTES);
        expect(record.isIntact(ring, 0)).toBe(true);
      }
    },
  );

  it('is refused above the longest record, and taken at it', () => {
    const longest = record.RECORD_BYTES_MAX - At.ATTRIBUTES;
    for (const bytes of [longest - 1, longest]) {
      const encoder = new Encoder();
      append(encoder, plain, new Uint8Array(bytes));
      expect(record.bytesOf(encoder.memory, 0)).toBe(At.ATTRIBUTES + bytes);
      expect(record.sizeOf(encoder.memory, 0)).toBe(bytes);
    }
    for (const bytes of [longest + 1, longest + SLOT_BYTES, 2 ** 24 + 5]) {
      expect(() => append(new Encoder(), plain, new Uint8Array(bytes))).toThrow(BreachError);
    }
  });
});

describe('an IMAGE', () => {
  it('holds the body of any ENQUEUE, and behind it what became of the job', () => {
    fc.assert(
      fc.property(
        fields,
        payload,
        fc.uint8Array({ maxLength: 80 }),
        fc.option(fc.uint8Array({ maxLength: 80 })),
        fc.nat(255),
        (job, value, errors, result, state) => {
          const from = new Encoder();
          const at = append(from, job, value);
          const bodyBytes = record.bodyEnd(from.memory, at) - at - record.BODY;
          expect(at + record.BODY + bodyBytes).toBe(at + record.bytesOf(from.memory, at));

          const encoder = new Encoder();
          encoder.appendShort(RecordType.EPOCH, Level.FSYNC, 0, 0, 0, 0);
          const image = encoder.bytes;
          const counts = record.limitsWord(3, 2, state);
          encoder.appendImage(
            9,
            job.queue,
            job.priority,
            job.level,
            from.memory,
            at + record.BODY,
            bodyBytes,
            5,
            counts,
            1,
            errors,
            result ?? undefined,
          );
          const { memory } = encoder;
          expect([record.typeOf(memory, image), record.idOf(memory, image)]).toEqual([RecordType.IMAGE, 9]);
          expect([record.queueOf(memory, image), record.rowOf(memory, image)]).toEqual([job.queue, job.priority]);
          const body = memory.u8.slice(image + record.BODY, record.bodyEnd(memory, image));
          expect(body).toEqual(from.memory.u8.slice(at + record.BODY, at + record.BODY + bodyBytes));
          const tail = record.imageTail(memory, image);
          expect(tail % 8).toBe(0);
          expect(memory.f64[(tail + record.ImageAt.RUN_AT) / 8]).toBe(5);
          expect(memory.i32[(tail + record.ImageAt.COUNTS) / 4]).toBe(counts);
          expect(memory.i32[(tail + record.ImageAt.REASON) / 4]).toBe(1);
          const texts = tail + record.ImageAt.TEXTS;
          expect(memory.u8.slice(texts, texts + errors.length)).toEqual(errors);
          expect(memory.i32[(tail + record.ImageAt.RESULT) / 4]).toBe(result?.length ?? -1);
          const end = texts + errors.length;
          expect(memory.u8.slice(end, end + (result?.length ?? 0))).toEqual(result ?? new Uint8Array(0));
        },
      ),
    );
  });
});

it('the mark of a body without its payload is no part of any other field', () => {
  const encoder = new Encoder();
  const at = append(encoder, { ...plain, level: Level.OS }, 'payload');
  const { memory } = encoder;
  expect(record.isPagedOut(memory, at)).toBe(false);
  record.markPagedOut(memory, at);
  expect(record.isPagedOut(memory, at)).toBe(true);
  expect([record.sizeOf(memory, at), record.jobLevelOf(memory, at)]).toEqual([7, Level.OS]);
});

it('a reason that is not known is none', () => {
  const encoder = new Encoder();
  const reasons = [0, 1, record.REASONS.length, 255].map((reason) => {
    const at = encoder.append(RecordType.DEAD, Level.FSYNC, 1, 1, 0, 0, record.limitsWord(1, 1, reason));
    encoder.finish(at);
    return record.reasonOf(encoder.memory, at);
  });
  expect(reasons).toEqual([record.REASONS[0], record.REASONS[1], 'none', 'none']);
});

describe('a checksum', () => {
  it('notices every single bit that flips, padding and lengths included', () => {
    const encoder = new Encoder();
    append(
      encoder,
      { ...plain, tenant: 't', key: 'a key', runAtMs: 5, watcher: 3, request: 9 },
      'some payload, not padded',
    );
    const ring = sealed(encoder, 0, 99);
    let noticed = 0;
    for (let bit = 0; bit < encoder.bytes * 8; bit++) {
      ring.u8[bit >>> 3]! ^= 1 << (bit & 7);
      // A length that leads out of the memory is damage, too: readers look at it before they look at the checksum.
      if (record.paddedBytes(record.bytesOf(ring, 0)) !== encoder.bytes || !record.isIntact(ring, 0)) noticed++;
      ring.u8[bit >>> 3]! ^= 1 << (bit & 7);
    }
    expect(noticed).toBe(encoder.bytes * 8);
    expect(record.isIntact(ring, 0)).toBe(true);
  });

  it('notices a shorter or longer length by itself', () => {
    const encoder = new Encoder();
    append(encoder, plain, new Uint8Array(200).fill(1));
    const ring = memoryOver(new ArrayBuffer(4096));
    encoder.moveInto(ring, 0, 0, encoder.bytes, 1);
    for (let bytes = 0; bytes < 4000; bytes++) {
      if (bytes === record.bytesOf(ring, 0)) continue;
      const before = ring.i32[1]!;
      ring.i32[1] = (before & 0xff000000) | bytes;
      expect(record.isIntact(ring, 0)).toBe(false);
      ring.i32[1] = before;
    }
  });
});

describe('an encoder', () => {
  const other = fc.record({
    type: fc.constantFrom(RecordType.ACK, RecordType.RETRY, RecordType.DEAD, RecordType.ASK),
    level,
    id: fc.maxSafeNat(),
    queue: fc.nat({ max: 131_071 }),
    row: word,
    timeMs: milliseconds,
    attempts: fc.nat({ max: 65_535 }),
    crashes: fc.nat({ max: 255 }),
    reason: fc.nat({ max: record.REASONS.length - 1 }),
    body: payload,
  });
  const short = fc.record({
    level,
    id: fc.maxSafeNat(),
    queue: fc.nat({ max: 131_071 }),
    row: word,
    timeMs: milliseconds,
  });

  it('moves any run of records, each with its own fields, enqueues with the ids of their slots', () => {
    const any = fc.oneof(
      fc.tuple(fc.constant('enqueue' as const), fields, payload),
      fc.tuple(fc.constant('other' as const), other),
      fc.tuple(fc.constant('short' as const), short),
    );
    fc.assert(
      fc.property(fc.array(any, { minLength: 1, maxLength: 12 }), fc.nat({ max: 2 ** 40 }), (records, firstId) => {
        const encoder = new Encoder(32);
        encoder.room(65_536);
        encoder.memory.u8.fill(0xff);
        for (const one of records) {
          if (one[0] === 'enqueue') {
            append(encoder, one[1], one[2]);
          } else if (one[0] === 'other') {
            const { type, level, id, queue, row, timeMs, attempts, crashes, reason, body } = one[1];
            const limits = record.limitsWord(attempts, crashes, reason);
            const offset = encoder.append(type, level, id, queue, row, timeMs, limits);
            if (typeof body === 'string') encoder.payloadText(offset, body);
            else encoder.payloadBytes(offset, body);
            encoder.finish(offset);
          } else {
            const { level, id, queue, row, timeMs } = one[1];
            encoder.finish(encoder.appendShort(RecordType.CANCEL, level, id, queue, row, timeMs));
          }
        }
        const ring = sealed(encoder, 0, firstId);
        let at = 0;
        for (const one of records) {
          expect(record.isIntact(ring, at)).toBe(true);
          const head = {
            type: record.typeOf(ring, at),
            level: record.levelOf(ring, at),
            id: record.idOf(ring, at),
            queue: record.queueOf(ring, at),
            row: record.rowOf(ring, at),
            timeMs: record.timeOf(ring, at),
          };
          if (one[0] === 'enqueue') {
            expect(head.id).toBe(firstId + at / SLOT_BYTES);
            expect(read(ring, at).payload).toEqual(bytesOfPayload(one[2]));
          } else if (one[0] === 'other') {
            const { attempts, crashes, reason, body, ...rest } = one[1];
            expect(head).toEqual(rest);
            expect(record.attemptsOf(ring, at)).toBe(attempts);
            expect(record.crashesOf(ring, at)).toBe(crashes);
            expect(record.reasonOf(ring, at)).toBe(record.REASONS[reason]);
            const end = at + record.bytesOf(ring, at);
            expect(ring.u8.slice(end - record.sizeOf(ring, at), end)).toEqual(bytesOfPayload(body));
          } else {
            expect(head).toEqual({ type: RecordType.CANCEL, ...one[1] });
            expect(record.bytesOf(ring, at)).toBe(SLOT_BYTES);
          }
          at += record.paddedBytes(record.bytesOf(ring, at));
        }
        expect(at).toBe(encoder.bytes);
      }),
      { numRuns: 500 },
    );
  });

  it('finds the longest prefix of whole records that fits', () => {
    const encoder = new Encoder();
    for (const bytes of [1, 100, 24, 56]) append(encoder, plain, new Uint8Array(bytes));
    const ends = [64, 224, 288, 384];
    expect(encoder.bytes).toBe(384);
    for (let bytesMax = 0; bytesMax <= 400; bytesMax++) {
      expect(encoder.prefix(0, bytesMax)).toBe(Math.max(0, ...ends.filter((end) => end <= bytesMax)));
      expect(encoder.prefix(64, bytesMax)).toBe(
        Math.max(0, ...ends.map((end) => end - 64).filter((end) => end <= bytesMax)),
      );
    }
    expect(encoder.prefixOne(64)).toBe(160);
  });

  it('copies a finished record under another level, and seals it anew', () => {
    const encoder = new Encoder();
    encoder.finish(encoder.appendShort(RecordType.CANCEL, Level.MEMORY, 12, 3, 4, 5));
    const first = sealed(encoder, 0, 1);
    const copies = new Encoder();
    copies.appendCopy(first.u8.slice(0, 32), Level.FSYNC);
    const again = sealed(copies, 0, 1);
    expect(record.levelOf(again, 0)).toBe(Level.FSYNC);
    expect(record.typeOf(again, 0)).toBe(RecordType.CANCEL);
    expect(record.idOf(again, 0)).toBe(12);
    expect(record.isIntact(again, 0)).toBe(true);
  });

  it('an ack without a result is one slot, and lone surrogates become the replacement character', () => {
    const encoder = new Encoder();
    const offset = encoder.append(RecordType.RETRY, 0, 1, 2, 3, 4, 0);
    expect(encoder.payloadText(offset, 'a\ud800b')).toBe(5);
    encoder.finish(offset);
    expect(new TextDecoder().decode(encoder.memory.u8.slice(40, 45))).toBe('a\ufffdb');
    encoder.clear();
    encoder.finish(encoder.appendShort(RecordType.ACK, 0, 1, 2, 3, 4));
    expect(encoder.slots).toBe(1);
  });
});
