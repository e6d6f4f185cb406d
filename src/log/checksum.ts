/**
 * Which CRC32C a thread uses: `native-free/crc32c`, or for long ranges the add-on of fast-crc32c where it was built.
 * Each thread that encodes or checks records calls `useChecksum` once, at its start.
 *
 * 1. With `nativeFree` the package is not even looked for.
 * 2. fast-crc32c falls back to its own JavaScript without a word, which is slower than ours: that does not count as
 *    loaded. An add-on that cannot be loaded, or computes something else, is the same as none.
 */
import { createRequire } from 'node:module';
import { crc32c } from '../../native-free/crc32c.js';
import { useLongChecksum } from '../../native-free/record.js';

export type Checksum = 'native' | 'javascript';

/** Ranges from this many bytes on are faster by the add-on: 128 take 105 ns here and 110 there, 256 take 204 and 117. */
export const NATIVE_BYTES_MIN = 160;

interface Crc32cModule {
  /** Exactly one argument: the add-on refuses a second one that is undefined. */
  readonly calculate: (bytes: Uint8Array) => number;
}

let loaded: Checksum | undefined;

/** Chooses for this thread; returns what long ranges go through. */
export function useChecksum(options: { readonly nativeFree?: boolean } = {}): Checksum {
  if (options.nativeFree === true) return 'javascript';
  if (loaded !== undefined) return loaded;
  const native = findNative(createRequire(import.meta.url));
  if (native === undefined) {
    loaded = 'javascript';
  } else {
    useLongChecksum((bytes, from, to) => native(bytes.subarray(from, to)), NATIVE_BYTES_MIN);
    loaded = 'native';
  }
  return loaded;
}

/** The add-on's function, when `require` finds it and it computes CRC32C. */
export function findNative(require: (name: string) => unknown): ((bytes: Uint8Array) => number) | undefined {
  try {
    const chosen = require('fast-crc32c') as Crc32cModule;
    const fallback = require('fast-crc32c/impls/js_crc32c.js') as Crc32cModule;
    const { calculate } = chosen;
    if (calculate === fallback.calculate) return undefined;
    const probe = Uint8Array.from({ length: 257 }, (_, i) => (i * 151) & 0xff);
    return calculate(probe) >>> 0 === crc32c(probe, 0, probe.length) ? calculate : undefined;
  } catch {
    return undefined;
  }
}
