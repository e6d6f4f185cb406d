/**
 * The command line as a child process, for tests: what is built in dist, with directories and handlers of the test's own.
 */
import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, realpathSync, rmSync, watch, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { onTestFinished } from 'vitest';

export const CLI = fileURLToPath(new URL('../../dist/src/ops/cli.js', import.meta.url));

export interface Ended {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface Given {
  readonly cwd?: string;
  readonly stdin?: string | Uint8Array;
  readonly env?: Readonly<Record<string, string>>;
}

export interface Started {
  readonly child: ChildProcessWithoutNullStreams;
  /** When the process and its streams have ended. */
  readonly ended: Promise<Ended>;
}

/** Starts `millrace ...args`; standard input stays open. */
export function start(args: readonly string[], given: Given = {}): Started {
  // Whether vitest shows colours is nothing to the child.
  const { FORCE_COLOR: _, NO_COLOR: __, ...env } = process.env;
  const child = spawn(process.execPath, [CLI, ...args], {
    cwd: given.cwd,
    env: { ...env, ...given.env },
    stdio: 'pipe',
  });
  // A child that ends early does not read all of its input.
  child.stdin.on('error', () => {});
  let stdout = '';
  let stderr = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    stdout += text;
  });
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text;
  });
  const ended = once(child, 'close').then(([code, signal]) => {
    return { code: code as number | null, signal: signal as NodeJS.Signals | null, stdout, stderr };
  });
  return { child, ended };
}

/** Runs `millrace ...args` to its end on the given input. */
export function millrace(args: readonly string[], given: Given = {}): Promise<Ended> {
  const { child, ended } = start(args, given);
  child.stdin.end(given.stdin ?? '');
  return ended;
}

/** A directory that goes away with the test. */
export function scratch(): string {
  const dir = realpathSync(mkdtempSync(join(tmpdir(), 'millrace-test-')));
  onTestFinished(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

/** Writes a handler module; returns its path. */
export function handler(dir: string, source: string, name = 'handler.mjs'): string {
  const path = join(dir, name);
  writeFileSync(path, source);
  return path;
}

export interface Result {
  readonly line: number;
  readonly input: unknown;
  readonly result: unknown;
}

/** Results in the order of their lines. */
export function results(text: string): Result[] {
  return text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Result)
    .sort((a, b) => a.line - b.line);
}

export function resultsIn(path: string): Result[] {
  return results(readFileSync(path, 'utf8'));
}

/** The numbers from 1 to `count`, a line each. */
export function numbers(count: number): string {
  return Array.from({ length: count }, (_, index) => `${index + 1}\n`).join('');
}

/** The whole lines of a file; what stands behind the last line end is torn. */
export function linesIn(path: string): string[] {
  return existsSync(path) ? readFileSync(path, 'utf8').split('\n').slice(0, -1) : [];
}

/** Resolves when a file that exists holds at least `count` whole lines, or `ended` comes first. */
export function holds(path: string, count: number, ended: Promise<unknown>): Promise<void> {
  return new Promise((resolve) => {
    const look = (): void => {
      if (linesIn(path).length < count) return;
      watcher.close();
      resolve();
    };
    const watcher = watch(path, look);
    void ended.then(() => {
      watcher.close();
      resolve();
    });
    look();
  });
}
