// What does a checksum of one record cost, and from which size on does the native add-on pay? CRC32C of 32 to 4096
// bytes in shared memory: ours over words and over bytes, fast-crc32c as it loaded here (over a Buffer made for the
// range, as a caller needs it), and its JavaScript fallback. Run: node dist/bench/crc.js

import { createRequire } from 'node:module';
import { performance } from 'node:perf_hooks';
import { calculate } from 'fast-crc32c';
import { Bench } from 'tinybench';
import { crc32c, crc32cWords } from '../native-free/crc32c.js';

const require = createRequire(import.meta.url);
const fallback = require('fast-crc32c/impls/js_crc32c.js') as { calculate(bytes: Uint8Array): number };

const BATCH = 1000;
const REGION_BYTES = 256 * 1024;
const memory = new SharedArrayBuffer(REGION_BYTES);
const words = new Int32Array(memory);
const bytes = new Uint8Array(memory);
for (let i = 0; i < words.length; i++) words[i] = Math.imul(i + 1, 0x9e3779b1);

/** Records lie side by side, so that the source is read once round the region and not from one warm line. */
const variants: Record<string, (at: number, size: number) => number> = {
  words: (at, size) => crc32cWords(words, at >> 2, (at + size) >> 2),
  bytes: (at, size) => crc32c(bytes, at, at + size),
  'fast-crc32c': (at, size) => calculate(Buffer.from(memory, at, size)),
  'its fallback': (at, size) => fallback.calculate(Buffer.from(memory, at, size)),
};

let sink = 0;
const sizes = [32, 64, 104, 128, 192, 256, 1024, 4096];
const rows: Record<string, Record<string, string>> = {};
for (const size of sizes) {
  const bench = new Bench({ time: 200, warmupTime: 50 });
  bench.addEventListener('warning', (event) => {
    throw new Error(`the clock is too coarse for ${event.task?.name}`);
  });
  for (const [name, crc] of Object.entries(variants)) {
    // Compiled anew for each variant: a shared loop would call through a pointer and never inline.
    const loop = new Function(
      'crc',
      'limit',
      'size',
      `return (sink) => { for (let i = 0, at = 0; i < ${BATCH}; i++) { sink ^= crc(at, size); at += size; if (at > limit) at = 0; } return sink; }`,
    )(crc, REGION_BYTES - size, size) as (sink: number) => number;
    bench.add(name, () => {
      const start = performance.now();
      sink = loop(sink);
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
  rows[`${size} bytes`] = row;
}

const names = Object.keys(variants);
const line = (cells: string[]) => cells.map((cell) => cell.padStart(18)).join('');
console.log(line(['', ...names]));
for (const [label, row] of Object.entries(rows)) console.log(line([label, ...names.map((name) => row[name])]));
const probe = bytes.subarray(0, 4096);
const native = !calculate.toString().includes('kCRCTable');
console.log(
  `${native ? 'fast-crc32c is native here' : 'fast-crc32c fell back to JavaScript'}; medians, Node ${process.version}`,
);
if (calculate(Buffer.from(probe)) !== crc32c(probe, 0, probe.length)) throw new Error('the implementations disagree');
if (sink === 0.5) console.log(sink);
