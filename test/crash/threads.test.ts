/**
 * Attached threads that end at random moments - terminated, by process.exit, by a throw - while others enqueue and
 * consume. The rings never stall, nothing that was accepted is lost, and what the dead had leased comes back.
 */
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import type { Broker } from 'millrace';
import { expect, it, onTestFinished } from 'vitest';
import { Question } from '../../src/schedule/questions.js';
import { opened, soon, until } from '../brokers.js';
import { programPath } from '../children.js';
import type { Mortal } from '../programs/mortal.js';
import { attached } from '../threads.js';

const KILLS = Number(process.env.MILLRACE_THREAD_KILLS ?? 200);
const IDS_MAX = 2_000_000;
const [ACCEPTED, ACKED, PROGRESS] = [0, 1, 2];

/** The most that may wait, so that producers do not run ahead of consumers for ever. */
const OPTIONS = { jobsMax: 20_000, ringSlots: 4096, payloadBytesMax: 4096 };

it(
  `${KILLS} threads die, and nobody else notices`,
  async () => {
    const broker = await opened(OPTIONS);
    const queue = broker.queue<number>('jobs', { backoff: { base: 0 }, attempts: 1000, crashes: 255 });
    await queue.enqueue(0);
    const shared: Omit<Mortal, 'handle' | 'role'> = {
      accepted: new Float64Array(new SharedArrayBuffer(IDS_MAX * 8)),
      acked: new Float64Array(new SharedArrayBuffer(IDS_MAX * 8)),
      counts: new Int32Array(new SharedArrayBuffer(64)),
    };
    const completed = new Map<number, number>();
    broker.on('completed', ({ id }) => completed.set(id, (completed.get(id) ?? 0) + 1));
    const start = (role: Mortal['role']): Worker => {
      const worker = new Worker(programPath('mortal'), { workerData: { handle: broker.handle, role, ...shared } });
      worker.on('error', () => {});
      onTestFinished(async () => void (await worker.terminate()));
      return worker;
    };
    const roles = ['produce', 'consume', 'produce', 'consume'] as const;
    const workers = roles.map(start);
    let progress = 0;
    for (let kill = 0; kill < KILLS; kill++) {
      // The moment is a matter of how far they have come, which is never the same twice.
      const wanted = (kill * 7) % 13;
      await until(`there is progress after ${kill} deaths`, () => shared.counts[PROGRESS]! - progress >= wanted);
      progress = shared.counts[PROGRESS]!;
      const victim = kill % 4;
      const gone = new Promise((resolve) => workers[victim]!.once('exit', resolve));
      if (kill % 3 === 0) void workers[victim]!.terminate();
      else workers[victim]!.postMessage(kill % 3 === 1 ? 'exit' : 'throw');
      workers[victim] = start(roles[victim]!);
      await soon('the thread is gone', gone);
      if (kill % 10 === 0) await soon(`a job goes in after ${kill} deaths`, queue.enqueue(kill));
    }
    await Promise.all(workers.map((worker) => worker.terminate()));

    const live = (): number => {
      const { ready, delayed, leased } = queue.counts();
      return ready + delayed + leased;
    };
    await until('everything that is left can be claimed and acked', async () => {
      for (const lease of await queue.claim({ max: 1000 })) lease.ack();
      return live() === 0;
    });
    await audit(broker);
    expect(shared.counts[ACCEPTED]).toBeLessThan(IDS_MAX);
    const accepted = shared.accepted.subarray(0, shared.counts[ACCEPTED]).filter((id) => id !== 0);
    const acked = shared.acked.subarray(0, shared.counts[ACKED]).filter((id) => id !== 0);
    const { enqueued, done, dead, cancelled, jobs } = broker.stats();
    expect({ jobs, dead, cancelled }).toEqual({ jobs: 0, dead: 0, cancelled: 0 });
    expect(done).toBe(enqueued);
    expect([...completed.values()].filter((times) => times !== 1)).toEqual([]);
    // Every one that was accepted is gone from the broker, and nothing but an ack makes it so.
    const still = await Promise.all(Array.from(accepted.subarray(-5000), (id) => queue.get(id)));
    expect(still.filter((job) => job !== undefined)).toEqual([]);
    expect(new Set(acked).size, 'a job was done twice').toBe(acked.length);
    expect(accepted.length).toBeGreaterThan(KILLS * 5);
    expect(broker.stats().threads, 'owner numbers of dead threads are free again').toBe(1);
  },
  60_000 + 600 * KILLS,
);

/** The table's own check: every live row is ready, delayed, leased or settled by a living thread. */
async function audit(broker: Broker): Promise<void> {
  const { bytes } = await broker.port.ask(Question.AUDIT, 0, 0);
  expect(JSON.parse(Buffer.from(bytes!).toString())).toEqual([]);
}

it('the leases of a thread that dies come back at once, with a crash charged and no attempt', async () => {
  const broker = await opened();
  const queue = broker.queue<number>('jobs', { visibility: 4 * 3_600_000 });
  await queue.enqueueMany([1, 2, 3, 4]);
  const thread = await attached(broker);
  const leases = await thread.claim('jobs', { max: 3 });
  expect(await thread.tell('ack', leases[0]!)).toBe(true);
  await thread.get('jobs', 0);
  await thread.worker.terminate();
  await until('they are ready', () => queue.counts().ready === 3);
  const again = await queue.claim({ max: 4 });
  // Behind the one that was ready all the time: what comes back is ready from now on.
  expect(again.map(({ payload, attempt }) => [payload, attempt])).toEqual([
    [4, 1],
    [2, 1],
    [3, 1],
  ]);
  expect((await queue.get(again[0]!.id))!.crashes).toBe(0);
  expect((await queue.get(again[1]!.id))!.crashes).toBe(1);
  expect(again[1]!.token).toBeGreaterThan(leases[1]!.token);
});

it('an ack just before process.exit is not lost with the thread', async () => {
  const broker = await opened();
  const queue = broker.queue<number>('jobs');
  const { id } = await queue.enqueue(1);
  const thread = await attached(broker);
  const [lease] = await thread.claim('jobs');
  thread.tell('ackAndExit', lease).catch(() => {});
  expect(await thread.exited).toBe(4);
  await until('the thread is noticed', () => broker.stats().threads === 1);
  expect(await queue.get(id)).toBeUndefined();
  expect(queue.counts()).toMatchObject({ ready: 0, done: 1 });
});

for (const how of ['exit', 'throw'] as const) {
  it(`a thread that ends by ${how} is noticed`, async () => {
    const broker = await opened();
    const queue = broker.queue<number>('jobs');
    await queue.enqueue(1);
    const thread = await attached(broker);
    expect(await thread.claim('jobs')).toHaveLength(1);
    thread.tell(how).catch(() => {});
    await thread.exited;
    expect(await queue.claim({ wait: 10_000 })).toMatchObject([{ payload: 1, attempt: 1 }]);
  });
}

it('a thread that was started by a thread is noticed', async () => {
  const broker = await opened();
  const queue = broker.queue<number>('jobs');
  await queue.enqueue(1);
  const nest = new Worker(programPath('nest'), { workerData: broker.handle });
  const [claimed] = await soon('the inner thread claims', once(nest, 'message'));
  expect(claimed).toBe(1);
  nest.postMessage('end the inner one');
  expect(await queue.claim({ wait: 10_000 })).toMatchObject([{ payload: 1, attempt: 1 }]);
  await nest.terminate();
});
