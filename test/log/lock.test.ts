import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { lockDirectory } from '../../src/log/lock.js';

/** What ships: the children run it, as another program would. */
const BUILT = new URL('../../dist/src/log/lock.js', import.meta.url).href;

let dir: string;
const children: ChildProcess[] = [];

beforeEach(() => {
  dir = fs.mkdtempSync(join(tmpdir(), 'millrace-lock-'));
});

afterEach(async () => {
  // Waited for: a directory that is made next may get the same inode, and the dying still hold the lock of that.
  for (const child of children.splice(0)) {
    if (child.exitCode !== null || child.signalCode !== null) continue;
    const gone = once(child, 'exit');
    child.kill('SIGKILL');
    await gone;
  }
  fs.rmSync(dir, { recursive: true, force: true });
});

interface Answer {
  readonly held: boolean;
  readonly code?: string;
  readonly pid?: number;
}

const PROGRAM = `
  import { lockDirectory } from ${JSON.stringify(BUILT)};
  try {
    await lockDirectory(process.argv[1]);
    process.send({ held: true });
    setInterval(() => {}, 1000);
  } catch (error) {
    process.send({ held: false, code: error.code, pid: error.pid });
  }
`;

async function holder(): Promise<{ child: ChildProcess; answer: Answer }> {
  const child = spawn(process.execPath, ['--input-type=module', '-e', PROGRAM, dir], {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
  children.push(child);
  const [answer] = (await once(child, 'message')) as [Answer];
  return { child, answer };
}

it('is for one: a second in the same process is refused, and has it after the first let go', async () => {
  const first = await lockDirectory(dir);
  await expect(lockDirectory(dir)).rejects.toMatchObject({ code: 'ERR_MILLRACE_LOCKED', pid: process.pid, dir });
  expect(fs.statSync(join(dir, 'lock')).mode & 0o777).toBe(0o600);
  await first.release();
  const second = await lockDirectory(dir);
  await second.release();
});

it('is of the directory, not of its name', async () => {
  const link = `${dir}-link`;
  fs.symlinkSync(dir, link);
  const first = await lockDirectory(dir);
  await expect(lockDirectory(link)).rejects.toMatchObject({ code: 'ERR_MILLRACE_LOCKED' });
  await first.release();
  fs.unlinkSync(link);
});

it('is refused to a worker of the same process, and does not end with the worker that was refused', async () => {
  const first = await lockDirectory(dir);
  const program = `
    const { parentPort, workerData } = require('node:worker_threads');
    import(${JSON.stringify(BUILT)}).then(({ lockDirectory }) => lockDirectory(workerData)).then(
      () => parentPort.postMessage({ held: true }),
      (error) => parentPort.postMessage({ held: false, code: error.code, pid: error.pid }),
    );
  `;
  const worker = new Worker(program, { eval: true, workerData: dir });
  const [answer] = (await once(worker, 'message')) as [Answer];
  expect(answer).toEqual({ held: false, code: 'ERR_MILLRACE_LOCKED', pid: process.pid });
  await worker.terminate();
  await expect(lockDirectory(dir)).rejects.toMatchObject({ code: 'ERR_MILLRACE_LOCKED' });
  await first.release();
});

it('is refused to another process, which learns the pid of the holder', async () => {
  const { child, answer } = await holder();
  expect(answer).toEqual({ held: true });
  await expect(lockDirectory(dir)).rejects.toMatchObject({ code: 'ERR_MILLRACE_LOCKED', pid: child.pid });
  const second = await holder();
  expect(second.answer).toEqual({ held: false, code: 'ERR_MILLRACE_LOCKED', pid: child.pid });
});

it('is free at once when its holder was killed', async () => {
  for (let round = 0; round < 3; round++) {
    const { child, answer } = await holder();
    expect(answer).toEqual({ held: true });
    const gone = once(child, 'exit');
    child.kill('SIGKILL');
    await gone;
    const lock = await lockDirectory(dir);
    await lock.release();
  }
});

it('is not handed over while its holder is stopped', async () => {
  const { child } = await holder();
  child.kill('SIGSTOP');
  for (let i = 0; i < 3; i++) {
    await expect(lockDirectory(dir)).rejects.toMatchObject({ code: 'ERR_MILLRACE_LOCKED', pid: child.pid });
  }
  child.kill('SIGCONT');
  await expect(lockDirectory(dir)).rejects.toMatchObject({ code: 'ERR_MILLRACE_LOCKED', pid: child.pid });
});

it('has one winner in every race', async () => {
  for (let round = 0; round < 200; round++) {
    const results = await Promise.allSettled([lockDirectory(dir), lockDirectory(dir), lockDirectory(dir)]);
    const won = results.filter(({ status }) => status === 'fulfilled');
    expect(won).toHaveLength(1);
    for (const result of results) {
      if (result.status === 'fulfilled') await result.value.release();
      else expect(result.reason).toMatchObject({ code: 'ERR_MILLRACE_LOCKED', pid: process.pid });
    }
  }
});

it('names nobody when the lock file is missing, empty, nonsense or of a process that is gone', async () => {
  const first = await lockDirectory(dir);
  for (const content of ['', 'x\n', '999999999\n', '12', undefined]) {
    if (content === undefined) fs.unlinkSync(join(dir, 'lock'));
    else fs.writeFileSync(join(dir, 'lock'), content);
    const refusal = lockDirectory(dir);
    await expect(refusal).rejects.toMatchObject({ code: 'ERR_MILLRACE_LOCKED', pid: undefined });
    await expect(refusal).rejects.toThrow(/another process/);
  }
  await first.release();
});

it('refuses a symbolic link in place of the lock file, and lets go', async () => {
  const target = join(dir, 'target');
  fs.writeFileSync(target, 'precious');
  fs.symlinkSync(target, join(dir, 'lock'));
  await expect(lockDirectory(dir)).rejects.toThrow(/ELOOP/);
  expect(fs.readFileSync(target, 'utf8')).toBe('precious');
  fs.unlinkSync(join(dir, 'lock'));
  const lock = await lockDirectory(dir);
  await lock.release();
});

it('does not keep a process alive', async () => {
  const program = `import { lockDirectory } from ${JSON.stringify(BUILT)}; await lockDirectory(process.argv[1]);`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', program, dir], { stdio: 'inherit' });
  children.push(child);
  expect(await once(child, 'exit')).toEqual([0, null]);
});

it('is built where the children look for it', () => {
  expect(fs.existsSync(fileURLToPath(BUILT))).toBe(true);
});
