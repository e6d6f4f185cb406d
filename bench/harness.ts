/**
 * What the benches share: fresh processes, medians, a table with ratios, and the machine it was measured on.
 * A bench file is run as `node dist/bench/NAME.js`. It starts itself again, once a sample, with a case's name.
 */
import { execFileSync } from 'node:child_process';
import { closeSync, fdatasyncSync, ftruncateSync, mkdtempSync, openSync, rmSync, writeSync } from 'node:fs';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** One figure of one sample: its name, and the value. */
export type Figures = Readonly<Record<string, number>>;

export interface Case {
  readonly name: string;
  run(): Promise<Figures> | Figures;
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

export function percentile(sorted: Float64Array | readonly number[], part: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))]!;
}

/** A fresh directory beside the project's files (not a memory file system), gone when `use` is done. */
export async function withDirectory<T>(use: (dir: string) => Promise<T> | T): Promise<T> {
  const base = process.env.MILLRACE_BENCH_DIR ?? tmpdir();
  const dir = mkdtempSync(join(base, 'millrace-bench-'));
  try {
    return await use(dir);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

/** Microseconds of `count` appends of `bytes`, each a write and a flush on this thread: the floor. */
export function rawCommits(dir: string, count: number, bytes: number, asideBytes = 0): Float64Array {
  const fd = openSync(join(dir, 'raw'), 'w');
  ftruncateSync(fd, asideBytes);
  fdatasyncSync(fd);
  const buffer = Buffer.alloc(bytes, 7);
  const us = new Float64Array(count);
  for (let i = 0; i < count; i++) {
    const from = performance.now();
    writeSync(fd, buffer, 0, bytes, i * bytes);
    fdatasyncSync(fd);
    us[i] = (performance.now() - from) * 1000;
  }
  closeSync(fd);
  return us;
}

/** Runs every case in `samples` fresh processes, in turn, and returns each figure's samples by case. */
export async function sampled(
  entry: string,
  cases: readonly Case[],
  samples: number,
): Promise<Map<string, Map<string, number[]>>> {
  const wanted = process.env.MILLRACE_BENCH_CASE;
  if (wanted !== undefined) {
    const figures = await cases.find(({ name }) => name === wanted)!.run();
    process.stdout.write(`${JSON.stringify(figures)}\n`);
    process.exit(0);
  }
  const found = new Map<string, Map<string, number[]>>();
  for (let sample = 0; sample < samples; sample++) {
    for (const { name } of cases) {
      const env = { ...process.env, MILLRACE_BENCH_CASE: name };
      const out = execFileSync(process.execPath, [...process.execArgv, fileURLToPath(entry)], {
        env,
        encoding: 'utf8',
      });
      const figures = JSON.parse(out.trim().split('\n').at(-1)!) as Figures;
      const into = found.get(name) ?? new Map<string, number[]>();
      found.set(name, into);
      for (const [figure, value] of Object.entries(figures)) into.set(figure, [...(into.get(figure) ?? []), value]);
    }
  }
  return found;
}

/** Rows of text as an aligned table, numbers to the right. */
export function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const widths = head.map((title, column) => Math.max(title.length, ...rows.map((row) => row[column]!.length)));
  const line = (cells: readonly string[]): string =>
    cells
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[column]!) : cell.padStart(widths[column]!)))
      .join('  ');
  return [line(head), widths.map((width) => '-'.repeat(width)).join('  '), ...rows.map(line)].join('\n');
}

/** A number with about three digits that count. */
export function short(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(2)} M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(0)} k`;
  if (size >= 100) return value.toFixed(0);
  return size >= 10 ? value.toFixed(1) : value.toFixed(2);
}

/** Median, and the spread from the lowest to the highest sample. */
export function spread(values: readonly number[]): string {
  return `${short(Math.min(...values))} .. ${short(Math.max(...values))}`;
}

export function machine(): string {
  const [cpu] = cpus();
  return `${cpu?.model.trim() ?? 'unknown CPU'}, ${cpus().length} cores, Node ${process.versions.node}, ${process.platform}`;
}
