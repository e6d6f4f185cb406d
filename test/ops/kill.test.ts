/** `millrace run` under `kill -9`: what it promises to whoever starts it again. */
import { randomInt } from 'node:crypto';
import { copyFileSync, existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect, it } from 'vitest';
import { handler, holds, linesIn, millrace, numbers, resultsIn, scratch, start } from './command.js';

const LINES = 12_000;
const KILLS = 15;
const KILLS_MIN = 10;
const TIMEOUT_MS = 240_000;

/**
 * A handler that takes a moment, appends its number to the file `runs` in one write, and returns. In the environment
 * KILL_AT, the process kills itself at that run of a thread.
 */
function tracing(dir: string): string {
  return handler(
    dir,
    `import { createHash } from 'node:crypto';
     import { appendFileSync } from 'node:fs';
     let runs = 0;
     export default (value) => {
       let hash = String(value);
       for (let round = 0; round < 100; round++) hash = createHash('sha256').update(hash).digest('hex');
       appendFileSync(${JSON.stringify(join(dir, 'runs'))}, value + '\\n');
       if (++runs === Number(process.env.KILL_AT)) process.kill(process.pid, 'SIGKILL');
       return { square: value * value };
     };`,
  );
}

/** A generator of numbers in [0, 1) from a seed (mulberry32). */
function seeded(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/**
 * A module for the process to load first: when this much of the results has been written, it kills itself in the middle
 * of the next write, leaving a torn line more often than not.
 */
function tearing(dir: string): string {
  return handler(
    dir,
    `import fs from 'node:fs';
     import { syncBuiltinESMExports } from 'node:module';
     import { isMainThread } from 'node:worker_threads';
     const { writeSync, fstatSync } = fs;
     let left = Number(process.env.TEAR_AT);
     if (isMainThread && left > 0) {
       fs.writeSync = (fd, bytes, ...where) => {
         if (!(bytes instanceof Uint8Array) || !fstatSync(fd).isFile()) return writeSync(fd, bytes, ...where);
         if (left < bytes.length) {
           writeSync(fd, bytes, 0, left);
           process.kill(process.pid, 'SIGKILL');
         }
         left -= bytes.length;
         return writeSync(fd, bytes, ...where);
       };
       syncBuiltinESMExports();
     }`,
    'tearing.mjs',
  );
}

it(
  'goes on after kill -9 at any moment: one result a line, and none is computed again that was there',
  async () => {
    const seed = Number(process.env.MILLRACE_SEED ?? randomInt(2 ** 31));
    const random = seeded(seed);
    const dir = scratch();
    const out = join(dir, 'out.jsonl');
    const runs = join(dir, 'runs');
    const args = ['run', tracing(dir), '--dir', join(dir, 'data'), '--out', out, '--threads', '2'];
    const tear = tearing(dir);
    const input = numbers(LINES);
    writeFileSync(runs, '');
    writeFileSync(out, '');
    /** At each kill: the results that were there, and how many runs had been begun. */
    const kills: { readonly there: readonly number[]; readonly begun: number }[] = [];
    let torn = 0;

    for (let kill = 0; kill < KILLS; kill++) {
      // By progress, not by time: in the middle of a write of results, of a run, or wherever a signal from outside lands.
      const kind = (['write', 'run', 'write', 'run', 'outside'] as const)[kill % 5]!;
      const more = 1 + Math.floor(random() ** 2 * 800);
      const { child, ended } = start(args, {
        env: {
          NODE_OPTIONS: `--import=${pathToFileURL(tear).href}`,
          TEAR_AT: kind === 'write' ? String(more * 150) : '',
          KILL_AT: kind === 'run' ? String(more) : '',
        },
      });
      child.stdin.end(input);
      if (kind === 'outside') {
        await holds(runs, linesIn(runs).length + 1, ended);
        child.kill('SIGKILL');
      }
      const { signal } = await ended;
      if (signal !== 'SIGKILL') break;
      const there = linesIn(out).map((line) => (JSON.parse(line) as { line: number }).line);
      torn += readFileSync(out, 'utf8').endsWith('\n') ? 0 : 1;
      kills.push({ there, begun: linesIn(runs).length });
    }
    const last = await millrace(args, { stdin: input });

    expect(last, `seed ${seed}`).toMatchObject({ code: 0, stdout: '' });
    const found = resultsIn(out);
    expect(found.map(({ line }) => line)).toEqual(Array.from({ length: LINES }, (_, index) => index + 1));
    for (const { line, input: value, result } of found)
      expect([value, result]).toEqual([line, { square: line * line }]);
    const begun = linesIn(runs).map(Number);
    for (const [index, kill] of kills.entries()) {
      const again = new Set(begun.slice(kill.begun));
      expect(
        kill.there.filter((line) => again.has(line)),
        `seed ${seed}: computed again after kill ${index}`,
      ).toEqual([]);
    }
    expect(kills.length, `seed ${seed}: the run was over too soon`).toBeGreaterThanOrEqual(KILLS_MIN);
    expect(torn, `seed ${seed}: no write was torn`).toBeGreaterThan(0);
    expect(kills.at(-1)!.there.length).toBeGreaterThan(0);
    expect(kills.at(-1)!.there.length).toBeLessThan(LINES);
  },
  TIMEOUT_MS,
);

it('gives the results that the directory holds when the results file is gone, without a run', async () => {
  const dir = scratch();
  const out = join(dir, 'out.jsonl');
  const args = ['run', tracing(dir), '--dir', join(dir, 'data'), '--out', out];
  const input = numbers(300);
  expect(await millrace(args, { stdin: input })).toMatchObject({ code: 0 });
  copyFileSync(out, join(dir, 'first'));
  const runs = linesIn(join(dir, 'runs'));
  expect(runs).toHaveLength(300);
  rmSync(out);

  const second = await millrace(args, { stdin: input });

  expect(second).toMatchObject({ code: 0 });
  expect(second.stderr).toContain('0 lines');
  expect(second.stderr).toContain('300 done before');
  expect(resultsIn(out)).toEqual(resultsIn(join(dir, 'first')));
  expect(linesIn(join(dir, 'runs'))).toEqual(runs);
});

it('writes every result again on standard output, without a run, when there is only a directory', async () => {
  const dir = scratch();
  const args = ['run', tracing(dir), '--dir', join(dir, 'data')];
  const first = await millrace(args, { stdin: numbers(100) });
  const second = await millrace(args, { stdin: numbers(100) });

  expect(first.code).toBe(0);
  expect(second.code).toBe(0);
  expect(second.stdout.split('\n').sort()).toEqual(first.stdout.split('\n').sort());
  expect(linesIn(join(dir, 'runs'))).toHaveLength(100);
});

it('keeps its jobs beside the results file after a kill, and removes them when all is done', async () => {
  const dir = scratch();
  const out = join(dir, 'out.jsonl');
  const args = ['run', tracing(dir), '--out', out, '--threads', '1'];
  writeFileSync(join(dir, 'runs'), '');
  const { child, ended } = start(args);
  child.stdin.end(numbers(2000));
  await holds(join(dir, 'runs'), 200, ended);
  child.kill('SIGKILL');
  expect((await ended).signal).toBe('SIGKILL');
  expect(existsSync(`${out}.millrace`)).toBe(true);

  expect(await millrace(args, { stdin: numbers(2000) })).toMatchObject({ code: 0 });

  expect(resultsIn(out)).toHaveLength(2000);
  expect(existsSync(`${out}.millrace`)).toBe(false);
});

it('tries a line that takes the process down behind all others', async () => {
  const dir = scratch();
  const out = join(dir, 'out.jsonl');
  writeFileSync(out, '');
  const source = `
    import { readFileSync, watch } from 'node:fs';
    const others = () => readFileSync(${JSON.stringify(out)}, 'utf8').split('\\n').length > 19;
    export default async (value) => {
      if (value > 1) return value;
      if (process.env.LAST) {
        await new Promise((resolve) => {
          const watcher = watch(${JSON.stringify(out)}, () => others() && resolve());
          if (others()) resolve();
        });
      }
      process.kill(process.pid, 'SIGKILL');
    };`;
  const args = ['run', handler(dir, source), '--dir', join(dir, 'data'), '--out', out, '--threads', '1'];
  const given = { stdin: numbers(20) };
  // Each of these dies at the first line.
  for (let time = 1; time <= 3; time++) expect((await millrace(args, given)).signal).toBe('SIGKILL');
  expect(resultsIn(out)).toEqual([]);

  // It is known by now, and would wait for ever if it did not come last.
  expect((await millrace(args, { ...given, env: { LAST: 'yes' } })).signal).toBe('SIGKILL');

  expect(resultsIn(out).map(({ line }) => line)).toEqual(Array.from({ length: 19 }, (_, index) => index + 2));
});
