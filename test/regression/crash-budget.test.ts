/**
 * Elsewhere a job that kills its process is run again at every start, for ever; or a killed worker uses up a retry.
 * (user reports 18 and 19.) Here what was running when the process died is charged a crash, apart from its attempts.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { open } from 'millrace';
import { afterEach, beforeEach, expect, it } from 'vitest';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'millrace-test-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

/** Runs one process that works on the queue until nothing is left, or until a job kills it. Returns its signal. */
function work(where: 'function' | 'thread'): string | null {
  const millrace = import.meta.resolve('millrace');
  const handler = join(dir, 'handler.mjs');
  writeFileSync(handler, `export default (job) => { if (job.kill) process.kill(process.pid, 'SIGKILL'); };\n`);
  const script = join(dir, 'work.mjs');
  writeFileSync(
    script,
    `import { open } from ${JSON.stringify(millrace)};
     import handler from './handler.mjs';
     const broker = await open(${JSON.stringify(join(dir, 'data'))});
     const queue = broker.queue('q');
     const worker = queue.process(${where === 'function' ? 'handler' : "new URL('./handler.mjs', import.meta.url), { threads: 2 }"});
     await new Promise((resolve) => {
       const look = setInterval(() => {
         const { ready, delayed, leased, dead, done } = queue.counts();
         if (ready + delayed + leased === 0 && dead + done === 4) resolve(clearInterval(look));
       }, 5);
     });
     await broker.close();`,
  );
  const { signal, status, stderr } = spawnSync(process.execPath, [script], { encoding: 'utf8', timeout: 30_000 });
  if (signal === null && status !== 0) throw new Error(stderr);
  return signal;
}

it.each(['function', 'thread'] as const)(
  'a job whose handler (%s) kills the whole process is dead after three starts, its attempts untouched',
  async (where) => {
    let broker = await open(join(dir, 'data'));
    const poison = await broker.queue('q', { attempts: 1 }).enqueue({ kill: true });
    for (let i = 0; i < 3; i++) await broker.queue('q').enqueue({ kill: false });
    await broker.close();

    let kills = 0;
    while (work(where) === 'SIGKILL') kills++;
    expect(kills).toBe(3);

    broker = await open(join(dir, 'data'));
    const queue = broker.queue('q');
    expect(queue.counts()).toEqual({ ready: 0, delayed: 0, leased: 0, dead: 1, done: 3 });
    const [dead] = await queue.deadLetters.list();
    expect(dead).toMatchObject({ id: poison.id, reason: 'crash', attempt: 0, crashes: 3 });
    await broker.close();
  },
);

it('charges nobody when the process ends in good order, nor a job that had ended by then', async () => {
  const data = join(dir, 'data');
  let broker = await open(data);
  let queue = broker.queue<number>('q', { attempts: 1 });
  const worker = queue.process(() => undefined);
  await Promise.all([1, 2, 3].map((n) => queue.run(n)));
  await worker.close();
  const waiting = await queue.enqueue(4);
  await broker.close();

  broker = await open(data);
  queue = broker.queue<number>('q');
  expect(await queue.get(waiting.id)).toMatchObject({ state: 'ready', attempt: 0, crashes: 0 });
  expect(queue.counts().done).toBe(3);
  await broker.close();
});
