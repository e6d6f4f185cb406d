/** Lines out of bytes, however they are cut into chunks. */
import { Readable } from 'node:stream';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { type Line, LineSplitter, readLines } from '../../src/ops/input.js';

function split(chunks: readonly Uint8Array[], bytesMax = 1 << 20): Line[] {
  const splitter = new LineSplitter(bytesMax);
  return [...chunks.flatMap((chunk) => [...splitter.take(chunk)]), ...splitter.rest()];
}

function texts(chunks: readonly (string | Uint8Array)[], bytesMax?: number): string[] {
  const lines = split(
    chunks.map((chunk) => Buffer.from(chunk)),
    bytesMax,
  );
  return lines.map(({ text, problem }) => problem ?? text);
}

it('numbers lines from 1, empty ones too, and tells whether the last one ended', () => {
  const lines = split([Buffer.from('a\n\nb')]);
  expect(lines.map(({ line, text, ended }) => [line, text, ended])).toEqual([
    [1, 'a', true],
    [2, '', true],
    [3, 'b', false],
  ]);
});

it('ends lines at \\n and \\r\\n alone', () => {
  expect(texts(['a\r\nb\rc\r\n\u2028d\r'])).toEqual(['a', 'b\rc', '\u2028d\r']);
});

it('gives the same lines however the bytes are cut', () => {
  const text = fc.array(fc.constantFrom('a', '\n', '\r', 'é', '\u{1f600}', '"'), { maxLength: 40 });
  fc.assert(
    fc.property(text, fc.array(fc.nat(200), { maxLength: 8 }), (units, cuts) => {
      const bytes = Buffer.from(units.join(''));
      const at = [0, ...cuts.map((cut) => cut % (bytes.length + 1)).sort((a, b) => a - b), bytes.length];
      const chunks = at.slice(1).map((end, index) => bytes.subarray(at[index]!, end));
      const whole = units.join('').split('\n');
      const last = whole.pop()!;
      const expected = whole.map((line) => line.replace(/\r$/, ''));
      if (last !== '') expected.push(last);
      const found = split(chunks);
      expect(found.map(({ text: line }) => line)).toEqual(expected);
      expect(found.reduce((sum, line) => sum + line.bytes, 0)).toBe(bytes.length);
    }),
  );
});

it('names a line that is too long, and keeps the lines around it', () => {
  expect(texts(['abcd\nabcde\nabcd\r\n', 'abc', 'defgh', 'i\nab'], 4)).toEqual([
    'abcd',
    '5 bytes long, the limit is 4',
    'abcd',
    '9 bytes long, the limit is 4',
    'ab',
  ]);
});

it('holds no more than the limit of a line that does not end', () => {
  const splitter = new LineSplitter(1000);
  const chunk = Buffer.alloc(64 << 10, 'x');
  const before = process.memoryUsage().arrayBuffers;
  for (let i = 0; i < 8000; i++) expect([...splitter.take(Buffer.from(chunk))]).toEqual([]);
  expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(256 << 20);
  expect([...splitter.rest()]).toMatchObject([{ line: 1, problem: '524288000 bytes long, the limit is 1000' }]);
});

it('names a line that is not UTF-8', () => {
  expect(texts([Buffer.from([0x61, 0xff, 0x0a, 0xc3]), Buffer.from([0xa9, 0x0a, 0xc3])])).toEqual([
    'not valid UTF-8',
    'é',
    'not valid UTF-8',
  ]);
});

it('ends a stream in the middle when it is told to, and lets go of it', async () => {
  const stop = new AbortController();
  const stream = new Readable({ read: () => {} });
  stream.push('a\nb\n');
  const found: string[] = [];
  for await (const { text } of readLines(stream, new LineSplitter(100), stop.signal)) {
    found.push(text);
    // The second line is at hand, and after it the stream would wait for ever.
    if (text === 'b') setImmediate(() => stop.abort());
  }
  expect(found).toEqual(['a', 'b']);
  expect(stream.destroyed).toBe(true);
});

it('passes on what goes wrong with the stream', async () => {
  const stream = new Readable({ read: () => {} });
  stream.destroy(new Error('the disk is gone'));
  const reading = readLines(stream, new LineSplitter(100), new AbortController().signal);
  await expect(reading.next()).rejects.toThrow('the disk is gone');
});
