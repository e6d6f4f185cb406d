/**
 * What group commit is worth: 200 jobs committed one by one against 10,000 in one commit, as in the queue's origin, on
 * this disk and on modelled ones. The floor beside it: the same bytes by bare write + fdatasync on one thread.
 */
import { open } from '../src/index.js';
import { type Case, machine, median, rawCommits, sampled, short, spread, table, withDirectory } from './harness.js';
import type { ModelledDisk } from './modelled-disk.js';

const PAYLOAD = new Uint8Array(64).fill(120);
const SAMPLES = Number(process.env.MILLRACE_BENCH_SAMPLES ?? 5);
const SINGLES = 200;
const BATCH = 10_000;
/** Milliseconds of a flush; undefined = the real disk. The last is a laptop's full flush. */
const DISKS = [undefined, 0.05, 0.5, 1, 4];

const cases: Case[] = DISKS.map((flushMs) => ({
  name: flushMs === undefined ? 'this disk' : `${flushMs} ms a flush`,
  run: () =>
    withDirectory(async (dir) => {
      const data: ModelledDisk | undefined = flushMs === undefined ? undefined : { flushMs };
      const module = new URL('./modelled-disk.js', import.meta.url);
      const broker = await open(`${dir}/broker`, data === undefined ? {} : { storage: { module, data } });
      const queue = broker.queue<Uint8Array>('bench', { codec: 'bytes' });
      const batch = new Array<Uint8Array>(BATCH).fill(PAYLOAD);
      // Once over, so that the code is compiled and the ring's pages are there.
      for (let i = 0; i < 20; i++) await queue.enqueue(PAYLOAD);
      for (let i = 0; i < 3; i++) await queue.enqueueMany(batch);

      const before = broker.stats().flushes;
      let from = performance.now();
      for (let i = 0; i < SINGLES; i++) await queue.enqueue(PAYLOAD);
      const singlesMs = performance.now() - from;
      const flushes = broker.stats().flushes - before;
      from = performance.now();
      await queue.enqueueMany(batch);
      const batchMs = performance.now() - from;
      await broker.close();
      const raw = flushMs === undefined ? rawCommits(dir, SINGLES, 192).reduce((a, b) => a + b, 0) / 1000 : undefined;
      return {
        [`${SINGLES} single-job commits, ms`]: singlesMs,
        'flushes for them': flushes,
        ...(raw === undefined
          ? {}
          : { 'the same by bare write + fdatasync, ms': raw, 'ratio to bare': singlesMs / raw }),
        [`${BATCH} enqueues in one commit, ms`]: batchMs,
        'jobs/s, batched over single': BATCH / batchMs / (SINGLES / singlesMs),
      };
    }),
}));

const found = await sampled(import.meta.url, cases, SAMPLES);
const rows: string[][] = [];
for (const [name, figures] of found) {
  for (const [figure, values] of figures) rows.push([name, figure, short(median(values)), spread(values)]);
}
process.stdout.write(`${machine()}\n\n${table(['disk', 'figure', 'median', 'spread'], rows)}\n`);
