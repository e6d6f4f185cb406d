/** What the README and the page about testing show compiles, runs, and does what it says. */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { CLI, resultsIn, scratch } from './command.js';

const ROOT = fileURLToPath(new URL('../../', import.meta.url));
const README = readFileSync(join(ROOT, 'README.md'), 'utf8');
const TESTING = readFileSync(join(ROOT, 'src', 'testing', 'TESTING.md'), 'utf8');

interface Block {
  readonly language: string;
  readonly code: string;
}

function blocks(page: string): Block[] {
  return [...page.matchAll(/^```(\w+)\n([\s\S]*?)^```$/gm)].map(([, language, code]) => ({
    language: language!,
    code: code!,
  }));
}

/** A project that has millrace installed, with a page's files in it. */
function project(page = README): string {
  const dir = scratch();
  mkdirSync(join(dir, 'node_modules', '.bin'), { recursive: true });
  symlinkSync(ROOT, join(dir, 'node_modules', 'millrace'));
  for (const name of ['@types', 'typescript']) {
    symlinkSync(join(ROOT, 'node_modules', name), join(dir, 'node_modules', name));
  }
  symlinkSync('../typescript/bin/tsc', join(dir, 'node_modules', '.bin', 'tsc'));
  // npm makes an executable of it; tsc does not.
  writeFileSync(join(dir, 'node_modules', '.bin', 'millrace'), `#!/bin/sh\nexec node '${CLI}' "$@"\n`, { mode: 0o755 });
  writeFileSync(join(dir, 'package.json'), '{"type":"module"}\n');
  for (const { code } of blocks(page)) {
    const name = /^\/\/ ([\w.]+)/.exec(code)?.[1];
    if (name !== undefined) writeFileSync(join(dir, name), code);
  }
  return dir;
}

/** Runs a page's shell block that starts with `start`. */
function shell(dir: string, start: string, page = README): string {
  const block = blocks(page).find(({ language, code }) => language === 'sh' && code.startsWith(start));
  expect(block, `a shell block that starts with ${start}`).toBeDefined();
  const { status, stdout, stderr } = spawnSync('sh', ['-ec', block!.code.replaceAll('npx ', 'node_modules/.bin/')], {
    cwd: dir,
    encoding: 'utf8',
  });
  expect({ status, stderr: status === 0 ? '' : stderr + stdout }).toEqual({ status: 0, stderr: '' });
  return stdout;
}

it('says hello', () => {
  const dir = project();
  const sha256 = createHash('sha256')
    .update(readFileSync(join(dir, 'package.json')))
    .digest('hex');
  expect(shell(dir, 'npx tsc')).toBe(`{\n  sha256: '${sha256}'\n}\n`);
});

it('squares', () => {
  const dir = project();
  expect(shell(dir, 'seq ')).toBe('');
  const results = resultsIn(join(dir, 'squares.jsonl'));
  expect(results).toHaveLength(100_000);
  expect(results[2]).toEqual({ line: 3, input: 3, result: 9 });
  expect(README).toContain(JSON.stringify(results[2]));
});

it('links to what is there, and names the scripts that are there', () => {
  for (const [, link] of README.matchAll(/\]\(([^)]+)\)/g)) expect(existsSync(join(ROOT, link!))).toBe(true);
  const { scripts } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { scripts: object };
  expect(Object.keys(scripts)).toEqual(expect.arrayContaining(['start', 'test', 'build']));
});

it('shows how to test', () => {
  expect(shell(project(TESTING), 'npx tsc', TESTING)).toBe('all as promised\n');
});
