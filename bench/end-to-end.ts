/**
 * What a job costs from enqueue to ack, durable (fsync), 64-byte payloads, everything on the main thread beside the
 * broker's own two threads: one promise a job, batches of 1000, one in flight, 64 in flight; memory a live job.
 */
import { open } from '../src/index.js';
import {
  type Case,
  machine,
  median,
  percentile,
  rawCommits,
  sampled,
  short,
  spread,
  table,
  withDirectory,
} from './harness.js';

const PAYLOAD = new Uint8Array(64).fill(120);
const SAMPLES = Number(process.env.MILLRACE_BENCH_SAMPLES ?? 5);
const JOBS = Number(process.env.MILLRACE_BENCH_JOBS ?? 1_000_000);

const cases: Case[] = [
  {
    name: 'enqueue, one promise a job',
    run: () =>
      withDirectory(async (dir) => {
        const broker = await open(dir);
        const queue = broker.queue<Uint8Array>('bench', { codec: 'bytes' });
        const from = performance.now();
        let waiting: Promise<unknown>[] = [];
        for (let i = 0; i < JOBS; i++) {
          waiting.push(queue.enqueue(PAYLOAD));
          if (waiting.length === 10_000) {
            await Promise.all(waiting);
            waiting = [];
          }
        }
        await Promise.all(waiting);
        const seconds = (performance.now() - from) / 1000;
        const { flushes } = broker.stats();
        await broker.close();
        return { 'jobs/s': JOBS / seconds, 'jobs a flush': JOBS / flushes };
      }),
  },
  {
    name: 'end to end, batches of 1000',
    run: () =>
      withDirectory(async (dir) => {
        const broker = await open(dir);
        const queue = broker.queue<Uint8Array>('bench', { codec: 'bytes' });
        const batch = new Array<Uint8Array>(1000).fill(PAYLOAD);
        const from = performance.now();
        let sent = 0;
        let done = 0;
        const produce = async (): Promise<void> => {
          while (sent < JOBS) {
            sent += 1000;
            await queue.enqueueMany(batch);
          }
        };
        const producers = [produce(), produce(), produce(), produce()];
        while (done < JOBS) {
          const leases = await queue.claim({ max: 1000, wait: 10_000 });
          for (const lease of leases) if (lease.ack()) done++;
        }
        await Promise.all(producers);
        await broker.close();
        const seconds = (performance.now() - from) / 1000;
        return { 'jobs/s': JOBS / seconds };
      }),
  },
  {
    name: 'enqueue, one in flight',
    run: () =>
      withDirectory(async (dir) => {
        const broker = await open(dir);
        const queue = broker.queue<Uint8Array>('bench', { codec: 'bytes' });
        const us = new Float64Array(2000);
        for (let i = 0; i < us.length; i++) {
          const from = performance.now();
          await queue.enqueue(PAYLOAD);
          us[i] = (performance.now() - from) * 1000;
        }
        await broker.close();
        const raw = rawCommits(dir, 2000, 192).sort();
        const aside = rawCommits(dir, 2000, 192, 1 << 20).sort();
        us.sort();
        return {
          'p50 us': percentile(us, 0.5),
          'p99 us': percentile(us, 0.99),
          'raw p50 us': percentile(raw, 0.5),
          'raw p50 us, length set aside': percentile(aside, 0.5),
          'above raw us': percentile(us, 0.5) - percentile(raw, 0.5),
        };
      }),
  },
  {
    name: 'end to end, 64 in flight',
    run: () =>
      withDirectory(async (dir) => {
        const broker = await open(dir);
        const queue = broker.queue<Uint8Array, undefined>('bench', { codec: 'bytes' });
        const worker = queue.process(() => undefined, { concurrency: 64 });
        const count = Math.min(JOBS, 200_000);
        const from = performance.now();
        const one = async (): Promise<void> => {
          for (let i = 0; i < count / 64; i++) await queue.run(PAYLOAD);
        };
        await Promise.all(Array.from({ length: 64 }, one));
        const seconds = (performance.now() - from) / 1000;
        await worker.close();
        await broker.close();
        return { 'jobs/s': count / seconds };
      }),
  },
  {
    name: 'memory of a live job',
    run: () =>
      withDirectory(async (dir) => {
        const broker = await open(dir);
        const queue = broker.queue<Uint8Array>('bench', { codec: 'bytes' });
        const batch = new Array<Uint8Array>(1000).fill(PAYLOAD);
        const rss = async (): Promise<number> => {
          for (let i = 0; i < 5; i++) {
            global.gc?.();
            await new Promise((resolve) => setTimeout(resolve, 50));
          }
          return process.memoryUsage().rss;
        };
        // The first lap touches the ring, which is no job's.
        for (let i = 0; i < 100; i++) await queue.enqueueMany(batch);
        const before = await rss();
        for (let i = 0; i < 1000; i++) await queue.enqueueMany(batch);
        const after = await rss();
        await broker.close();
        return { 'bytes a job': (after - before) / 1e6 };
      }),
  },
];

const only = process.argv[2];
const chosen = only === undefined ? cases : cases.filter(({ name }) => name.includes(only));
const found = await sampled(import.meta.url, chosen, SAMPLES);
const rows: string[][] = [];
for (const [name, figures] of found) {
  for (const [figure, values] of figures) rows.push([name, figure, short(median(values)), spread(values)]);
}
process.stdout.write(`${machine()}\n\n${table(['case', 'figure', 'median', 'spread'], rows)}\n`);
