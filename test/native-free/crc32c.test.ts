import { createRequire } from 'node:module';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { crc32c, crc32cMix, crc32cWords } from '../../native-free/crc32c.js';

const require = createRequire(import.meta.url);
/** The JavaScript that fast-crc32c falls back to: one byte a step, from a table somebody else computed. */
const oracle = require('fast-crc32c/impls/js_crc32c.js') as { calculate(bytes: Uint8Array, seed?: number): number };

/** The definition, one bit at a time. */
function bitwise(bytes: Uint8Array, seed = 0): number {
  let crc = ~seed;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
  }
  return ~crc >>> 0;
}

const seeds = fc.oneof(
  fc.constantFrom(0, 1, 2 ** 31 - 1, 2 ** 31, 2 ** 32 - 1),
  fc.integer({ min: 0, max: 2 ** 32 - 1 }),
);

describe('crc32c', () => {
  it('gives the check value of the algorithm', () => {
    expect(crc32c(new TextEncoder().encode('123456789'), 0, 9)).toBe(0xe3069283);
  });

  it('gives the values of RFC 3720, appendix B.4', () => {
    const rising = Uint8Array.from({ length: 32 }, (_, i) => i);
    const read = new Uint8Array(48);
    read.set([0x01, 0xc0], 0);
    read[16] = 0x14;
    read[22] = 0x04;
    read[27] = 0x14;
    read[31] = 0x18;
    read[32] = 0x28;
    read[40] = 0x02;
    const vectors: [Uint8Array, number][] = [
      [new Uint8Array(32), 0x8a9136aa],
      [new Uint8Array(32).fill(255), 0x62a8ab43],
      [rising, 0x46dd794e],
      [rising.toReversed(), 0x113fdb5c],
      [read, 0xd9963a56],
    ];
    for (const [bytes, crc] of vectors) {
      expect(crc32c(bytes, 0, bytes.length)).toBe(crc);
      expect(crc32cWords(new Int32Array(bytes.buffer), 0, bytes.length / 4)).toBe(crc);
    }
  });

  it('agrees with the bitwise definition and with fast-crc32c over any range and seed', () => {
    fc.assert(
      fc.property(
        fc.uint8Array({ maxLength: 300, size: 'max' }),
        fc.nat(40),
        fc.nat(40),
        seeds,
        (bytes, head, tail, seed) => {
          const from = Math.min(head, bytes.length);
          const to = Math.max(from, bytes.length - tail);
          const range = bytes.slice(from, to);
          const crc = crc32c(bytes, from, to, seed);
          expect(crc).toBe(bitwise(range, seed));
          expect(crc).toBe(oracle.calculate(Buffer.from(range), seed));
          if (seed === 0) expect(crc32c(bytes, from, to)).toBe(crc);
        },
      ),
      { numRuns: 500 },
    );
  });

  it('takes words as their little-endian bytes, over any range and seed', () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer(), { maxLength: 80, size: 'max' }),
        fc.nat(20),
        fc.nat(20),
        seeds,
        (values, head, tail, seed) => {
          const words = Int32Array.from(values);
          const bytes = new Uint8Array(words.buffer);
          const from = Math.min(head, words.length);
          const to = Math.max(from, words.length - tail);
          expect(crc32cWords(words, from, to, seed)).toBe(crc32c(bytes, 4 * from, 4 * to, seed));
          if (seed === 0) expect(crc32cWords(words, from, to)).toBe(crc32c(bytes, 4 * from, 4 * to));
        },
      ),
      { numRuns: 500 },
    );
  });

  it('continues a seed: the CRC of a, then of b, is the CRC of a and b', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 100 }), fc.uint8Array({ maxLength: 100 }), (a, b) => {
        const both = new Uint8Array([...a, ...b]);
        const split = crc32c(b, 0, b.length, crc32c(a, 0, a.length));
        expect(split).toBe(crc32c(both, 0, both.length));
      }),
    );
  });

  it('mixes in a word as if its four bytes followed', () => {
    fc.assert(
      fc.property(seeds, fc.integer(), (seed, word) => {
        expect(crc32cMix(seed, word)).toBe(crc32c(new Uint8Array(Int32Array.of(word).buffer), 0, 4, seed));
        expect(crc32cMix(seed, word >>> 0)).toBe(crc32cMix(seed, word));
        expect(crc32cMix(seed | 0, word)).toBe(crc32cMix(seed, word));
      }),
    );
  });

  it('notices every flip of one bit in a record of 104 bytes', () => {
    const words = Int32Array.from({ length: 26 }, (_, i) => Math.imul(i + 1, 0x9e3779b1));
    const crc = crc32cWords(words, 0, 26);
    for (let bit = 0; bit < 832; bit++) {
      words[bit >> 5] ^= 1 << (bit & 31);
      expect(crc32cWords(words, 0, 26)).not.toBe(crc);
      words[bit >> 5] ^= 1 << (bit & 31);
    }
  });

  it('works in place on shared memory', () => {
    const words = new Int32Array(new SharedArrayBuffer(64)).fill(7);
    expect(crc32cWords(words, 4, 12)).toBe(bitwise(new Uint8Array(Int32Array.from(words.subarray(4, 12)).buffer)));
    expect(crc32c(new Uint8Array(words.buffer), 16, 48)).toBe(crc32cWords(words, 4, 12));
  });
});
