// CRC32C (Castagnoli), as in RFC 3720 and in iSCSI, ext4 and RocksDB: polynomial 0x1EDC6F41 reflected, starting from and
// finished with all ones; the CRC of "123456789" is 0xE3069283. Pure functions, called on every thread that encodes or
// checks a record, in place on shared memory: no views are made and nothing is copied.
//
// 1. A seed is a finished CRC: crc(b, crc(a)) is the CRC of a followed by b. Seed 0 is the empty string's.
// 2. The words of an Int32Array count as their four little-endian bytes.
//
// Slicing by 8 after Kounavis and Berry, "A systematic approach to building high performance software-based CRC
// generators" (2005): eight bytes a step, each looked up in the table of its distance from the end.

const POLYNOMIAL_REFLECTED = 0x82f63b78;

/** Eight tables of 256 in a row: entry 256 * k + b is byte b followed by k zero bytes. */
const T = tables(8);

function tables(count: number): Int32Array {
  const table = new Int32Array(256 * count);
  for (let byte = 0; byte < 256; byte++) {
    let crc = byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? POLYNOMIAL_REFLECTED : 0);
    table[byte] = crc;
  }
  for (let at = 256; at < table.length; at++) table[at] = (table[at - 256] >>> 8) ^ table[table[at - 256] & 255];
  return table;
}

/** CRC of bytes[from, to), unsigned. */
export function crc32c(bytes: Uint8Array, from: number, to: number, seed = 0): number {
  let crc = ~seed;
  let at = from;
  for (const end = to - 7; at < end; at += 8) {
    crc =
      T[1792 + ((crc ^ bytes[at]) & 255)] ^
      T[1536 + (((crc >>> 8) ^ bytes[at + 1]) & 255)] ^
      T[1280 + (((crc >>> 16) ^ bytes[at + 2]) & 255)] ^
      T[1024 + ((crc >>> 24) ^ bytes[at + 3])] ^
      T[768 + bytes[at + 4]] ^
      T[512 + bytes[at + 5]] ^
      T[256 + bytes[at + 6]] ^
      T[bytes[at + 7]];
  }
  for (; at < to; at++) crc = (crc >>> 8) ^ T[(crc ^ bytes[at]) & 255];
  return ~crc >>> 0;
}

/** CRC of words[fromWord, toWord), unsigned. */
export function crc32cWords(words: Int32Array, fromWord: number, toWord: number, seed = 0): number {
  let crc = ~seed;
  let at = fromWord;
  for (const end = toWord - 1; at < end; at += 2) {
    const near = crc ^ words[at];
    const far = words[at + 1];
    crc =
      T[1792 + (near & 255)] ^
      T[1536 + ((near >>> 8) & 255)] ^
      T[1280 + ((near >>> 16) & 255)] ^
      T[1024 + (near >>> 24)] ^
      T[768 + (far & 255)] ^
      T[512 + ((far >>> 8) & 255)] ^
      T[256 + ((far >>> 16) & 255)] ^
      T[far >>> 24];
  }
  return at < toWord ? crc32cMix(~crc, words[at]) : ~crc >>> 0;
}

/** The CRC `seed` continued over the four bytes of one word, unsigned. */
export function crc32cMix(seed: number, word: number): number {
  const near = ~seed ^ word;
  return (
    ~(T[768 + (near & 255)] ^ T[512 + ((near >>> 8) & 255)] ^ T[256 + ((near >>> 16) & 255)] ^ T[near >>> 24]) >>> 0
  );
}
