/** The results file: what a later run takes from it, and what it must never do to it. */
import { appendFileSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { canonical, FinishedLines, ResultFile, type ResultLine } from '../../src/ops/output.js';
import { scratch } from './command.js';

const FIRST = '{"line":1,"input":{"a":1},"result":10}\n';
const SECOND = '{"line":2,"input":"é","result":null}\n';

function opened(path: string): { file: ResultFile; kept: ResultLine[] } {
  const kept: ResultLine[] = [];
  return { file: new ResultFile(path, (found) => kept.push(found)), kept };
}

it('appends whole lines and takes them in again', async () => {
  const path = join(scratch(), 'out');
  const { file } = opened(path);
  file.write(1, '{"a":1}', '10');
  file.write(2, '"é"', 'null');
  await file.finish();
  expect(readFileSync(path, 'utf8')).toBe(FIRST + SECOND);

  const again = opened(path);
  await again.file.finish();
  expect(again.kept).toEqual([
    { line: 1, input: { a: 1 }, result: 10 },
    { line: 2, input: 'é', result: null },
  ]);
  expect(again.file.finished).toMatchObject({ count: 2, last: 2 });
  expect(again.file.finished.agrees(1, canonical(JSON.parse('{ "a" : 1 }')))).toBe(true);
  expect(again.file.finished.agrees(1, canonical({ a: 2 }))).toBe(false);
});

it('cuts a line that was torn at any byte, and goes on behind the last whole one', async () => {
  const bytes = Buffer.from(FIRST + SECOND);
  const path = join(scratch(), 'out');
  for (let cut = FIRST.length; cut < bytes.length; cut++) {
    writeFileSync(path, bytes.subarray(0, cut));
    const { file, kept } = opened(path);
    expect(kept).toHaveLength(1);
    expect(statSync(path).size).toBe(FIRST.length);
    file.write(2, '"é"', 'null');
    await file.finish();
    expect(readFileSync(path, 'utf8')).toBe(FIRST + SECOND);
  }
});

it('cuts zeros that a power cut left at the end', async () => {
  const path = join(scratch(), 'out');
  writeFileSync(path, Buffer.concat([Buffer.from(FIRST), Buffer.alloc(100)]));
  const { file } = opened(path);
  await file.finish();
  expect(readFileSync(path, 'utf8')).toBe(FIRST);
});

it.each([
  ['notes of the user', 'buy milk\n'],
  ['notes without a line end', 'buy milk'],
  ['bytes of another kind', Buffer.from([0x89, 0x50, 0x4e, 0x47, 0xff])],
  ['notes behind results', `${FIRST}buy milk`],
  ['a line that is not JSON', `${FIRST}{"line":2,"input":\n${SECOND}`],
  ['JSON of another shape', '{"line":1,"text":"x"}\n'],
  ['a line number that is none', '{"line":-1,"input":1,"result":1}\n'],
  ['two results of one line', FIRST + FIRST],
])('refuses a file with %s, and leaves it as it was', (_, content) => {
  const path = join(scratch(), 'out');
  writeFileSync(path, content);
  expect(() => opened(path)).toThrow(/cannot go on with .*out: its line \d/);
  expect(readFileSync(path)).toEqual(Buffer.from(content));
});

it('tells of a write that failed, at once and at the end', async () => {
  // A device that takes nothing.
  const file = new ResultFile('/dev/full');
  const failed = new Promise<Error>((resolve) => {
    file.failed = resolve;
  });
  file.write(1, '1', '1');
  await expect(failed).resolves.toMatchObject({ code: 'ENOSPC' });
  await expect(file.finish()).rejects.toMatchObject({ code: 'ENOSPC' });
});

it('reads nothing back from what is not a file', async () => {
  const { file, kept } = opened('/dev/null');
  file.write(1, '1', '1');
  await file.finish();
  expect(kept).toEqual([]);
});

it('appends behind whatever somebody else has appended meanwhile', async () => {
  const path = join(scratch(), 'out');
  const { file } = opened(path);
  appendFileSync(path, FIRST);
  file.write(2, '"é"', 'null');
  await file.finish();
  expect(readFileSync(path, 'utf8')).toBe(FIRST + SECOND);
});

it('remembers finished lines far apart in little memory', () => {
  const finished = new FinishedLines();
  for (const line of [1, 4095, 4096, 4097, Number.MAX_SAFE_INTEGER])
    expect(finished.tryAdd(line, `${line}`)).toBe(true);
  expect(finished.tryAdd(4096, 'again')).toBe(false);
  for (const line of [1, 4095, 4096, 4097, Number.MAX_SAFE_INTEGER]) expect(finished.has(line)).toBe(true);
  for (const line of [2, 4094, 4098, Number.MAX_SAFE_INTEGER - 1]) expect(finished.has(line)).toBe(false);
  expect(finished.count).toBe(5);
});
