/**
 * What a topic lookup costs: five-word topics against 100,000 bindings, some with wildcards; median of single lookups.
 * Run: node dist/bench/topics.js
 */
import { Topics } from '../src/schedule/topics.js';
import { type Case, machine, median, percentile, sampled, short, spread, table } from './harness.js';

const BINDINGS = [1000, 10_000, 100_000];
const LOOKUPS = 200_000;
const SAMPLES = Number(process.env.MILLRACE_BENCH_SAMPLES ?? 5);

const cases: Case[] = BINDINGS.map((bindings) => ({
  name: `${bindings} bindings`,
  run: () => {
    const topics = new Topics();
    const words = (n: number): string[] => [
      `region${n % 10}`,
      `site${n % 100}`,
      `line${n % 1000}`,
      `cell${n}`,
      'event',
    ];
    for (let n = 0; n < bindings; n++) {
      const pattern = words(n);
      if (n % 10 === 1) pattern[n % 5] = '*';
      if (n % 100 === 2) pattern.splice(2, 3, '#');
      topics.bind(pattern.join('.'), 1 + (n % 1000));
    }
    const names = Array.from({ length: 1000 }, (_, i) => words((i * 7919) % bindings).join('.'));
    const us = new Float64Array(LOOKUPS);
    let found = 0;
    for (let i = 0; i < LOOKUPS; i++) {
      const from = performance.now();
      found += topics.match(names[i % names.length]!).length;
      us[i] = (performance.now() - from) * 1000;
    }
    us.sort();
    return { 'p50 us': percentile(us, 0.5), 'p99 us': percentile(us, 0.99), 'queues a topic': found / LOOKUPS };
  },
}));

const found = await sampled(import.meta.url, cases, SAMPLES);
const rows: string[][] = [];
for (const [name, figures] of found) {
  for (const [figure, values] of figures) rows.push([name, figure, short(median(values)), spread(values)]);
}
process.stdout.write(`${machine()}\n\n${table(['case', 'figure', 'median', 'spread'], rows)}\n`);
