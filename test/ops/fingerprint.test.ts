/** `millrace fingerprint`: what it counts, and that it goes on as `run` does. */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import fingerprint from '../../src/ops/fingerprint-handler.js';
import { millrace, resultsIn, scratch } from './command.js';

/** A small directory with what directories have. */
function tree(): string {
  const dir = join(scratch(), 'tree');
  mkdirSync(join(dir, 'deep', 'er'), { recursive: true });
  writeFileSync(join(dir, 'empty'), '');
  writeFileSync(join(dir, 'words.txt'), 'one two\nthree\n');
  writeFileSync(join(dir, 'deep', 'zeros'), Buffer.alloc(50_000));
  writeFileSync(join(dir, 'deep', 'er', '\u001b[31mred'), 'x'.repeat(5000));
  symlinkSync('..', join(dir, 'deep', 'loop'));
  return dir;
}

it('counts as wc does', () => {
  const path = join(scratch(), 'file');
  const text = fc.array(fc.constantFrom('a', 'é', ' ', '\n', '\t', '\r', '\v', '\f'), { maxLength: 30 });
  fc.assert(
    fc.property(text, (units) => {
      writeFileSync(path, units.join(''));
      const wc = spawnSync('wc', ['-l', '-w', '-c', path], { encoding: 'utf8', env: { LC_ALL: 'C.UTF-8' } });
      const { lines, words, bytes } = fingerprint(path);
      expect(wc.stdout.trim().split(/\s+/).slice(0, 3).map(Number)).toEqual([lines, words, bytes]);
    }),
    { numRuns: 30 },
  );
});

it('hashes and packs the whole content', () => {
  const path = join(scratch(), 'file');
  const content = Buffer.from('millrace '.repeat(1000));
  writeFileSync(path, content);
  expect(fingerprint(path)).toEqual({
    sha256: createHash('sha256').update(content).digest('hex'),
    bytes: 9000,
    lines: 0,
    words: 1000,
    gzipBytes: gzipSync(content).length,
  });
});

it('sums up every plain file, and follows no links', async () => {
  const { code, stdout } = await millrace(['fingerprint', tree(), '--json']);
  expect(code).toBe(0);
  const summary = JSON.parse(stdout) as Record<string, number> & { largest: { file: string }[] };
  expect(summary).toMatchObject({
    files: 4,
    empty: 1,
    bytes: 55_014,
    lines: 2,
    words: 5,
    ended: 4,
    failed: 0,
    before: 0,
  });
  expect(summary.largest.map(({ file }) => file)).toEqual([
    join('deep', 'zeros'),
    join('deep', 'er', '\u001b[31mred'),
    'words.txt',
    'empty',
  ]);
  // Four jobs, each enqueued and acked, in batches that were flushed.
  expect(summary.records).toBeGreaterThanOrEqual(8);
  expect(summary.batches).toBeGreaterThan(0);
  expect(summary.flushes).toBeGreaterThan(0);
});

it('prints a summary that steers no terminal and has no colours in a pipe', async () => {
  const { code, stdout, stderr } = await millrace(['fingerprint', tree()]);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expect(stdout).toContain('4 (1 empty)');
  expect(stdout).toMatch(/ in \d+ batch(es)?, \d+ flush(es)?, /);
  expect(stdout).toContain('\\u001b[31mred');
  expect(stdout).not.toContain('\u001b');
});

it('fingerprints the node_modules at hand when no directory is named, as npm start does', async () => {
  const dir = scratch();
  mkdirSync(join(dir, 'node_modules'));
  writeFileSync(join(dir, 'node_modules', 'a.js'), 'export {};\n');
  const { code, stdout } = await millrace(['fingerprint'], { cwd: dir });
  expect(code).toBe(0);
  expect(stdout).toContain(join(dir, 'node_modules'));
  const { scripts } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
    scripts: Record<string, string>;
  };
  expect(scripts.start).toMatch(/cli\.js fingerprint$/);
});

it('goes on from a results file, and comes to the same fingerprint', async () => {
  const dir = tree();
  const out = join(dir, '..', 'out');
  const args = ['fingerprint', dir, '--json', '--out', out, '--dir', join(dir, '..', 'data')];
  const first = JSON.parse((await millrace(args)).stdout) as Record<string, unknown>;
  const lines = readFileSync(out, 'utf8').split('\n');
  writeFileSync(out, lines.slice(0, 2).join('\n').concat('\n', lines[2]!.slice(0, 10)));

  const second = JSON.parse((await millrace(args)).stdout) as Record<string, unknown>;

  expect(second).toMatchObject({ files: 4, ended: 0, before: 4, fingerprint: first.fingerprint });
  expect(resultsIn(out).map(({ line }) => line)).toEqual([1, 2, 3, 4]);
});

it('comes to another fingerprint when a byte or a name changes', async () => {
  const dir = tree();
  const taken = async (): Promise<unknown> =>
    (JSON.parse((await millrace(['fingerprint', dir, '--json'])).stdout) as Record<string, unknown>).fingerprint;
  const first = await taken();
  expect(await taken()).toBe(first);
  writeFileSync(join(dir, 'words.txt'), 'one two\nThree\n');
  const second = await taken();
  writeFileSync(join(dir, 'words.md'), 'one two\nThree\n');
  rmSync(join(dir, 'words.txt'));
  expect(new Set([first, second, await taken()]).size).toBe(3);
});

it('does not fingerprint its own directory and results', async () => {
  const dir = tree();
  const args = ['fingerprint', dir, '--json', '--out', join(dir, 'out'), '--dir', join(dir, 'data')];
  expect(JSON.parse((await millrace(args)).stdout)).toMatchObject({ files: 4 });
  expect(JSON.parse((await millrace(args)).stdout)).toMatchObject({ files: 4, before: 4 });
});

it('leaves nothing behind', async () => {
  const dir = tree();
  const tmp = join(dir, '..', 'tmp');
  mkdirSync(tmp);
  expect(await millrace(['fingerprint', dir], { env: { TMPDIR: tmp } })).toMatchObject({ code: 0 });
  expect(readdirSync(tmp)).toEqual([]);
  expect(existsSync(join(dir, '..', 'out'))).toBe(false);
});

it.each([
  ['a directory that is not there', ['/nowhere/at/all'], 3],
  ['a file', [fileURLToPath(import.meta.url)], 2],
  ['two directories', ['a', 'b'], 2],
])('refuses %s', async (_, args, code) => {
  expect(await millrace(['fingerprint', ...args])).toMatchObject({ code, stdout: '' });
});
