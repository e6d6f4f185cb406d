/** What is said on standard error: to a terminal with a line that moves, elsewhere without. */
import { PassThrough } from 'node:stream';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { Progress, type Standing } from '../../src/ops/progress.js';
import { duration, figures, oneLine, size, table, tameJson } from '../../src/ops/terminal.js';

function terminal(columns: number | undefined): { stream: NodeJS.WriteStream; text: () => string } {
  const through = new PassThrough({ encoding: 'utf8' });
  let text = '';
  through.on('data', (chunk: string) => {
    text += chunk;
  });
  Object.assign(through, { isTTY: columns !== undefined, columns });
  return { stream: through as never, text: () => text };
}

/** What a terminal shows after this text: the last state of each line. */
function screen(text: string): string[] {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: colours are taken out.
  const plain = text.replace(/\u001b\[\d+m/g, '');
  return plain.split('\n').map((line) => line.split('\r\u001b[K').at(-1)!);
}

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'performance'] });
  vi.stubEnv('TERM', 'xterm');
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllEnvs();
});

const START: Standing = { ended: 0, failed: 0, before: 0, total: 1000, estimated: false };

it('shows how far it is, how fast, and how long it will take', () => {
  const { stream, text } = terminal(100);
  const progress = new Progress(stream, 'lines');
  let standing = START;
  progress.show(() => standing);
  for (let tick = 1; tick <= 10; tick++) {
    standing = { ...START, ended: tick * 25, failed: 2 };
    vi.advanceTimersByTime(100);
  }
  expect(screen(text())).toEqual([
    `${'\u2588'.repeat(6)}${'\u2591'.repeat(18)}   25%  250 of 1,000 lines  2 failed  250/s  3.0 s left`,
  ]);
});

it('follows a change of pace within seconds, without jumping', () => {
  const { stream, text } = terminal(100);
  const progress = new Progress(stream, 'lines');
  let ended = 0;
  progress.show(() => ({ ...START, ended, total: undefined }));
  const rates: number[] = [];
  for (let tick = 1; tick <= 300; tick++) {
    ended += tick <= 100 ? 10 : 20;
    vi.advanceTimersByTime(100);
    rates.push(Number(/(\d+)\/s/.exec(screen(text())[0]!)?.[1]));
  }
  expect(rates[99]).toBe(100);
  expect(rates[100]).toBeLessThan(110);
  expect(rates[299]).toBeGreaterThan(190);
});

it('counts what is done since an earlier run, but not in the rate', () => {
  const { stream, text } = terminal(100);
  const progress = new Progress(stream, 'lines');
  let standing: Standing = { ...START, before: 500, estimated: true };
  progress.show(() => standing);
  standing = { ...standing, ended: 10 };
  vi.advanceTimersByTime(100);
  expect(screen(text())[0]).toContain(' 51%  510 of about 1,000 lines  100/s  4.9 s left');
});

it('puts messages above the line, and takes the line away at the end', () => {
  const { stream, text } = terminal(80);
  const progress = new Progress(stream, 'lines');
  progress.show(() => START);
  progress.say('to you\u001b[2J');
  progress.complain('line 3', 'no\nluck');
  vi.advanceTimersByTime(100);
  expect(screen(text()).slice(0, 2)).toEqual(['millrace: to you\\u001b[2J', 'line 3: no luck']);
  expect(screen(text())[2]).toContain('0 of 1,000 lines');
  progress.hide();
  expect(screen(text())[2]).toBe('');
  vi.advanceTimersByTime(1000);
  expect(screen(text())).toHaveLength(3);
});

it('never fills a line of the terminal, however narrow', () => {
  for (const columns of [1, 10, 20, 40, 60, 80]) {
    const { stream, text } = terminal(columns);
    const progress = new Progress(stream, 'lines');
    let ended = 0;
    progress.show(() => ({ ...START, ended, failed: 3 }));
    ended = 100;
    vi.advanceTimersByTime(100);
    expect(screen(text())[0]!.length).toBeLessThan(columns);
    progress.hide();
  }
});

it.each([
  ['a pipe', undefined, 'xterm'],
  ['a dumb terminal', 80, 'dumb'],
])('draws nothing on %s', (_, columns, term) => {
  vi.stubEnv('TERM', term);
  const { stream, text } = terminal(columns);
  const progress = new Progress(stream, 'lines');
  progress.show(() => START);
  vi.advanceTimersByTime(1000);
  progress.say('done');
  progress.hide();
  expect(text()).toBe('millrace: done\n');
});

it('writes sizes, times and rates as people do', () => {
  expect([0, 999, 1000, 1949, 99_949, 99_950, 999_499, 999_500, 5e15].map(size)).toEqual([
    '0 B',
    '999 B',
    '1.0 kB',
    '1.9 kB',
    '99.9 kB',
    '100 kB',
    '999 kB',
    '1.0 MB',
    '5000 TB',
  ]);
  expect([0, 850, 9940, 9950, 59_400, 59_600, 3_599_000, 3_600_000, 7_500_000].map(duration)).toEqual([
    '0.0 s',
    '0.8 s',
    '9.9 s',
    '10 s',
    '59 s',
    '1 min 00 s',
    '59 min 59 s',
    '1 h 00 min',
    '2 h 05 min',
  ]);
  expect([0.123, 1, 5.55, 42.4, 99.9, 1234.5].map(figures)).toEqual(['0.12', '1', '5.5', '42', '100', '1,235']);
});

it('makes one harmless line of any text, and the same JSON of any JSON', () => {
  expect(oneLine(' a\r\n\tb\u202e\u0007 ')).toBe('a b\\u202e\\u0007');
  const json = JSON.stringify({ text: '\u009b31m\u202eabc\u007f' });
  expect(JSON.parse(tameJson(json))).toEqual(JSON.parse(json));
  expect(tameJson(json)).toBe('{"text":"\\u009b31m\\u202eabc\\u007f"}');
});

it('aligns columns', () => {
  expect(
    table(
      [
        ['name', 'size'],
        ['a', '10'],
        ['abcdef', '2'],
      ],
      new Set([0]),
    ),
  ).toEqual(['name    size', 'a         10', 'abcdef     2']);
});
