// What does a checksum of one record cost, and from which size on does the native add-on pay? CRC32C of 32 to 4096
// bytes in shared memory: ours over words and over bytes, fast-crc32c as it loaded here (over a Buffer made for the
// range, as a caller needs it), and its JavaScript fallback. Run: node dist/bench/crc.js

import { createRequire } from 'node:module';
import { performance } from 'node:perf_hooks';
import { Bench } from 'tinybench';
import { crc32c, crc32cWords } from '../native-free/crc32c.js';

const require = createRequire(import.meta.url);
interface Crc {
  calculate(bytes: Buffer): number;
}
const loaded = require('fast-crc32c') as Crc;
const fallback = require('fast-crc32c/impls/js_crc32c.js') as Crc;

const BATCH = 1000;
const REGION_BYTES = 256 * 1024;
const memory = new SharedArrayBuffer(REGION_BYTES);
const words = new Int32Array(memory);
const bytes = new Uint8Array(memory);
for (let i = 0; i < words.length; i++) words[i] = Math.imul(i + 1, 0x9e3779b1);

/**
 * Each checks BATCH records that lie side by side, so that the source is read round the region and not from one warm
 * line. One loop each, for a shared one would call through a pointer and never inline.
 */
const variants: Record<string, (size: number) => number> = {
  words: (size) => {
    let sink = 0;
    for (let i = 0, at = 0; i < BATCH; i++, at = next(at, size)) sink ^= crc32cWords(words, at >> 2, (at + size) >> 2);
    return sink;
  },
  bytes: (size) => {
    let sink = 0;
    for (let i = 0, at = 0; i < BATCH; i++, at = next(at, size)) sink ^= crc32c(bytes, at, at + size);
    return sink;
  },
  'fast-crc32c': (size) => {
    let sink = 0;
    for (let i = 0, at = 0; i < BATCH; i++, at = next(at, size))
      sink ^= loaded.calculate(Buffer.from(memory, at, size));
    return sink;
  },
  'its fallback': (size) => {
    let sink = 0;
    for (let i = 0, at = 0; i < BATCH; i++, at = next(at, size))
      sink ^= fallback.calculate(Buffer.from(memory, at, size));
    return sink;
  },
};

function next(at: number, size: number): number {
  return at + 2 * size > REGION_BYTES ? 0 : at + size;
}

const sizes = [32, 64, 104, 128, 192, 256, 1024, 4096];
const rows: Record<string, Record<string, string>> = {};
for (const size of sizes) {
  const sinks = new Set<number>();
  // tinybench adds up the durations it is told, and those are a record each: a fifth of a second in all.
  const bench = new Bench({ time: 200 / BATCH, warmupTime: 50 / BATCH });
  bench.addEventListener('warning', (event) => {
    throw new Error(`the clock is too coarse for ${event.task?.name}`);
  });
  for (const [name, run] of Object.entries(variants)) {
    bench.add(name, () => {
      const start = performance.now();
      sinks.add(run(size));
      return { overriddenDuration: (performance.now() - start) / BATCH };
    });
  }
  await bench.run();
  const row: Record<string, string> = {};
  let first = 0;
  for (const task of bench.tasks) {
    if (task.result.state !== 'completed') throw new Error(`${task.name} ended as ${task.result.state}`);
    const ns = task.result.latency.p50 * 1e6;
    first ||= ns;
    row[task.name] = `${ns.toFixed(0)} ns (x${(ns / first).toFixed(2)})`;
  }
  if (sinks.size !== 1) throw new Error('the implementations disagree');
  rows[`${size} bytes`] = row;
}

const names = Object.keys(variants);
const line = (cells: string[]) => cells.map((cell) => cell.padStart(18)).join('');
console.log(line(['', ...names]));
for (const [label, row] of Object.entries(rows)) console.log(line([label, ...names.map((name) => row[name])]));
const native = loaded.calculate !== fallback.calculate;
console.log(`fast-crc32c ${native ? 'is native here' : 'fell back to JavaScript'}; medians, Node ${process.version}`);
