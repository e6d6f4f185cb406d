/** Checkpoints: what a run said last of how far it is, for the next one. */
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Broker, Dead, Retry, type RunningJob } from 'millrace';
import { describe, expect, it } from 'vitest';
import { applied, failureOf, opened, temporaryDirectory, until } from '../brokers.js';

const SOON = { backoff: { base: 0 }, resultRetention: 60_000 };

/** Runs one job whose handler does what each run is told; returns what the runs saw. */
async function runs(broker: Broker, ...tasks: ((job: RunningJob) => unknown)[]): Promise<unknown[]> {
  const seen: unknown[] = [];
  const queue = broker.queue('jobs', SOON);
  const worker = queue.process(async (_, job) => {
    seen.push(job.lastCheckpoint);
    return await tasks[seen.length - 1]!(job);
  });
  await queue.run('x');
  await worker.close();
  return seen;
}

describe('a checkpoint', () => {
  it('is seen by the next run, the last one alone, whatever ended the run before', async () => {
    const broker = await opened();
    const seen = await runs(
      broker,
      async (job) => {
        await job.checkpoint({ done: 1 });
        await job.checkpoint({ done: 2 });
        throw new Error('once more');
      },
      () => {
        throw new Retry({ after: 0 });
      },
      async (job) => {
        await job.checkpoint(new Uint8Array([0, 1, 255]));
        throw new Error('once more');
      },
      async (job) => {
        await job.checkpoint(undefined);
        throw new Error('once more');
      },
      () => 'done',
    );
    expect(seen).toEqual([undefined, { done: 2 }, { done: 2 }, new Uint8Array([0, 1, 255]), undefined]);
  });

  it('is no other job’s', async () => {
    const broker = await opened();
    await runs(broker, (job) => job.checkpoint('first job'));
    expect(await runs(broker, () => 1)).toEqual([undefined]);
  });

  it('survives compaction and restarts, also with its job dead', async () => {
    const dir = temporaryDirectory();
    const options = { segmentBytes: 4096 };
    const settings = { attempts: 2, backoff: { base: 0 } };
    let broker = await opened(options, dir);
    const again = async (): Promise<void> => {
      for (let i = 0; i < 2; i++) {
        await broker.queue('fill').enqueue('y'.repeat(4000));
        await broker.compact();
      }
      await broker.close();
      broker = await opened(options, dir);
    };
    const seen: unknown[] = [];
    const run = async (done: () => boolean, act: (job: RunningJob) => unknown): Promise<void> => {
      const worker = broker.queue('jobs', settings).process((_, job) => {
        seen.push(job.lastCheckpoint);
        return act(job);
      });
      await until('it has run', done);
      await worker.close();
    };
    const counts = () => broker.queue('jobs').counts();
    const id = (await broker.queue('jobs', settings).enqueue('x'.repeat(3000))).id;
    await run(
      () => counts().delayed === 1,
      async (job) => {
        await job.checkpoint('a');
        throw new Retry({ after: 1000 });
      },
    );
    await again();
    await run(
      () => counts().dead === 1,
      () => {
        throw new Dead('enough');
      },
    );
    await again();
    expect(await broker.queue('jobs').deadLetters.redrive({ ids: [id] })).toBe(1);
    await again();
    await run(
      () => counts().done === 1,
      () => 'done',
    );
    expect(seen).toEqual([undefined, 'a', 'a']);
  });

  it('of a run that has lost its lease is refused', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs', SOON);
    let late!: RunningJob;
    const worker = queue.process((_, job) => {
      late = job;
      return 1;
    });
    await queue.run(1);
    await worker.close();
    const error = await failureOf(() => late.checkpoint('late'));
    expect(error).toMatchObject({ code: 'ERR_MILLRACE_CANCELLED', id: late.id });
  });

  it('that cannot be stored is refused, and the run goes on', async () => {
    const broker = await opened({ payloadBytesMax: 1000 });
    const codes: string[] = [];
    await runs(broker, async (job) => {
      for (const value of [1n, () => 1, 'x'.repeat(1001)]) {
        codes.push((await failureOf(() => job.checkpoint(value))).code);
      }
      return 'done';
    });
    expect(codes).toEqual([
      'ERR_MILLRACE_PAYLOAD_INVALID',
      'ERR_MILLRACE_PAYLOAD_INVALID',
      'ERR_MILLRACE_PAYLOAD_TOO_LARGE',
    ]);
  });

  it('is there after the process was killed, in worker threads too', async () => {
    const dir = temporaryDirectory();
    const handler = join(dir, 'handler.mjs');
    writeFileSync(
      handler,
      `export default async (steps, job) => {
         for (let step = job.lastCheckpoint ?? 0; step < steps; step++) {
           await job.checkpoint(step + 1);
           if (step % 2 === 1) process.kill(process.pid, 'SIGKILL');
         }
         return job.lastCheckpoint;
       };`,
    );
    const script = join(dir, 'work.mjs');
    writeFileSync(
      script,
      `import { open } from ${JSON.stringify(import.meta.resolve('millrace'))};
       const broker = await open(${JSON.stringify(join(dir, 'data'))});
       const queue = broker.queue('jobs', { crashes: 10 });
       const result = queue.run(5, { key: 'the one', keyRetention: 1e9 });
       queue.process(new URL(${JSON.stringify(`file://${handler}`)}), { threads: 1 });
       console.log(await result);
       await broker.close();`,
    );
    const run = (): string => {
      const { signal, stdout, stderr } = spawnSync(process.execPath, [script], { encoding: 'utf8', timeout: 30_000 });
      return signal ?? (stdout.trim() || stderr);
    };
    expect([run(), run(), run()]).toEqual(['SIGKILL', 'SIGKILL', '4']);
  });

  it('takes no memory when its job is done', async () => {
    const broker = await opened();
    const before = broker.stats().memoryBytes;
    await runs(
      broker,
      async (job) => {
        await job.checkpoint('x');
        throw new Retry({ after: 0 });
      },
      () => 1,
    );
    await applied(broker);
    expect(broker.stats().memoryBytes - before).toBeLessThan(200);
  });
});
