import { createRequire } from 'node:module';
import { expect, it } from 'vitest';
import { crc32c } from '../../native-free/crc32c.js';
import { Encoder } from '../../native-free/encoder.js';
import { isIntact, RecordType } from '../../native-free/record.js';
import { findNative, NATIVE_BYTES_MIN, useChecksum } from '../../src/log/checksum.js';

const here = createRequire(import.meta.url);

function requireOf(modules: Record<string, unknown>): (name: string) => unknown {
  return (name) => {
    if (name in modules) return modules[name];
    throw new Error(`Cannot find module ${name}`);
  };
}

const right = (bytes: Uint8Array) => crc32c(bytes, 0, bytes.length);

it('takes the add-on where it loaded', () => {
  const calculate = (bytes: Uint8Array) => right(bytes);
  const native = findNative(
    requireOf({ 'fast-crc32c': { calculate }, 'fast-crc32c/impls/js_crc32c.js': { calculate: () => 0 } }),
  );
  expect(native).toBe(calculate);
});

it('calls it with one argument', () => {
  const seen: number[] = [];
  findNative(
    requireOf({
      'fast-crc32c': {
        calculate(...args: [Uint8Array]) {
          seen.push(args.length);
          return right(args[0]);
        },
      },
      'fast-crc32c/impls/js_crc32c.js': { calculate: () => 0 },
    }),
  );
  expect(seen).toEqual([1]);
});

it('does not take its fallback in JavaScript, a wrong one, a broken one or none', () => {
  const calculate = right;
  for (const modules of [
    { 'fast-crc32c': { calculate }, 'fast-crc32c/impls/js_crc32c.js': { calculate } },
    { 'fast-crc32c': { calculate: () => 1 }, 'fast-crc32c/impls/js_crc32c.js': { calculate } },
    {
      'fast-crc32c': {
        calculate() {
          throw new Error('no CRC-32C implementation is available');
        },
      },
      'fast-crc32c/impls/js_crc32c.js': { calculate },
    },
    { 'fast-crc32c': { calculate } },
    { 'fast-crc32c': {}, 'fast-crc32c/impls/js_crc32c.js': {} },
    {},
  ]) {
    expect(findNative(requireOf(modules))).toBeUndefined();
  }
});

it('leaves records the same whichever computes them, and is never asked for when forbidden', () => {
  expect(useChecksum({ nativeFree: true })).toBe('javascript');
  const encoder = new Encoder();
  const build = () => {
    encoder.clear();
    for (const bytes of [0, 10, NATIVE_BYTES_MIN - 33, NATIVE_BYTES_MIN, 5000]) {
      const at = encoder.append(RecordType.RETRY, 0, 1, 2, 3, 4, 5);
      encoder.payloadBytes(
        at,
        Uint8Array.from({ length: bytes }, (_, i) => i),
      );
      encoder.finish(at);
    }
    encoder.moveInto(encoder.memory, 0, 0, encoder.bytes, 9);
    return Buffer.from(encoder.memory.u8.slice(0, encoder.bytes)).toString('hex');
  };
  const javascript = build();
  const loaded = useChecksum();
  expect(loaded).toBe(findNative(here) === undefined ? 'javascript' : 'native');
  expect(useChecksum()).toBe(loaded);
  expect(build()).toBe(javascript);
  expect(isIntact(encoder.memory, 0)).toBe(true);
});
