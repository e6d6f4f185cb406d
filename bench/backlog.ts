/**
 * A backlog that is larger than memory: MILLRACE_BENCH_JOBS jobs (default 5 million) of 1 KiB wait in a broker whose
 * `memoryBytes` is 128 MiB, and are then claimed and acked in batches of 1000. Needs about 1.2 KB of disk a job.
 * Run: node dist/bench/backlog.js
 */
import { open } from '../src/index.js';
import { type Case, machine, median, sampled, short, spread, table, withDirectory } from './harness.js';

const JOBS = Number(process.env.MILLRACE_BENCH_JOBS ?? 5_000_000);
const SAMPLES = Number(process.env.MILLRACE_BENCH_SAMPLES ?? 1);
const BATCH = 1000;
const OPTIONS = { memoryBytes: 128 << 20, jobsMax: JOBS + BATCH };

const cases: Case[] = [
  {
    name: 'jobs of 1 KiB that wait',
    run: () =>
      withDirectory(async (dir) => {
        const broker = await open(dir, OPTIONS);
        const queue = broker.queue<Uint8Array>('bench', { codec: 'bytes' });
        const batch = new Array<Uint8Array>(BATCH).fill(new Uint8Array(1024).fill(120));
        const rss = (): number => process.memoryUsage().rss / 1e6;
        let from = performance.now();
        for (let sent = 0; sent < JOBS; sent += BATCH) await queue.enqueueMany(batch);
        const enqueueSeconds = (performance.now() - from) / 1000;
        const waiting = rss();
        let most = waiting;
        from = performance.now();
        for (let done = 0; done < JOBS; ) {
          for (const lease of await queue.claim({ max: BATCH, wait: 60_000 })) if (lease.ack()) done++;
          most = Math.max(most, rss());
        }
        const drainSeconds = (performance.now() - from) / 1000;
        await broker.close();
        return {
          'enqueued, jobs/s': JOBS / enqueueSeconds,
          'drained, jobs/s': JOBS / drainSeconds,
          'resident when all wait, MB': waiting,
          'resident at most, MB': most,
        };
      }),
  },
];

const found = await sampled(import.meta.url, cases, SAMPLES);
const rows: string[][] = [];
for (const [name, figures] of found) {
  for (const [figure, values] of figures) {
    rows.push([`${short(JOBS)} ${name}`, figure, short(median(values)), spread(values)]);
  }
}
process.stdout.write(`${machine()}\n\n${table(['case', 'figure', 'median', 'spread'], rows)}\n`);
