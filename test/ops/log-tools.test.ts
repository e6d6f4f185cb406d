/** `millrace verify`, `repair` and `dump`: what they say of logs that are sound, torn, damaged, in use, or not there. */
import { createHash } from 'node:crypto';
import { cpSync, readdirSync, readFileSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { open } from 'millrace';
import { describe, expect, it } from 'vitest';
import { millrace, scratch } from './command.js';

/** A process that holds several large brokers cannot start another. */
const SMALL = { segmentBytes: 4096, memoryBytes: 1 << 20, jobsMax: 1000, ringSlots: 4096, payloadBytesMax: 4096 };
const TEXT = '\u001b[31mred\u202e';

/** A directory with 40 jobs in several segments: some acked, one failed, one queue paused, one binding. */
async function directory(): Promise<string> {
  const dir = join(scratch(), 'data');
  const broker = await open(dir, SMALL);
  const queue = broker.queue('jobs');
  await broker.bind('a.*', 'jobs');
  await broker.queue('other').pause();
  for (let n = 0; n < 40; n++) await queue.enqueue({ n, text: TEXT }, n === 7 ? { key: 'k7', tenant: 'acme' } : {});
  for (const lease of await queue.claim({ max: 5 })) await lease.ackDurably({ done: true });
  (await queue.claim())[0]!.fail(new Error('no good'));
  await broker.queue('bytes', { codec: 'bytes' }).enqueue(new Uint8Array([0, 255, 7]));
  await broker.close();
  return dir;
}

function segments(dir: string): string[] {
  return readdirSync(dir)
    .filter((name) => name.endsWith('.log'))
    .sort();
}

function contents(dir: string): Record<string, string> {
  const hash = (name: string): string =>
    createHash('sha256')
      .update(readFileSync(join(dir, name)))
      .digest('hex');
  return Object.fromEntries(readdirSync(dir).map((name) => [name, hash(name)]));
}

/** Flips a bit in the middle of a segment. */
function damage(dir: string, name: string, at = statSync(join(dir, name)).size >> 1): void {
  const bytes = readFileSync(join(dir, name));
  bytes[at]! ^= 4;
  writeFileSync(join(dir, name), bytes);
}

describe('verify', () => {
  it('says what is in a sound log, to people and as JSON, and changes nothing', async () => {
    const dir = await directory();
    const before = contents(dir);
    const text = await millrace(['verify', dir]);
    expect(text).toMatchObject({ code: 0, stderr: '' });
    expect(text.stdout).toMatch(/\n {2}sound\n/);
    expect(text.stdout).toMatch(/ENQUEUE +41\n/);
    const json = await millrace(['verify', dir, '--json']);
    expect(JSON.parse(json.stdout)).toMatchObject({
      dir,
      verdict: 'sound',
      records: { ENQUEUE: 41, ACK: 5, RETRY: 1, PAUSE: 1, BIND: 1, QUEUE: 3 },
      segments: segments(dir).map((file) => ({ file })),
    });
    expect(contents(dir)).toEqual(before);
  });

  it('calls a torn end torn, and damage corrupt with file, position and reason', async () => {
    const dir = await directory();
    const torn = join(scratch(), 'torn');
    cpSync(dir, torn, { recursive: true });
    const last = segments(torn).at(-1)!;
    truncateSync(join(torn, last), statSync(join(torn, last)).size - 5);
    writeFileSync(join(torn, 'watermark'), '');
    const found = await millrace(['verify', torn, '--json']);
    expect(found.code).toBe(0);
    expect(JSON.parse(found.stdout)).toMatchObject({ verdict: 'torn', file: last });
    damage(dir, segments(dir)[1]!);
    const before = contents(dir);
    const corrupt = await millrace(['verify', dir, '--json']);
    expect(corrupt.code).toBe(5);
    expect(JSON.parse(corrupt.stdout)).toMatchObject({
      verdict: 'corrupt',
      file: segments(dir)[1],
      position: expect.any(Number),
      offset: expect.any(Number),
      reason: expect.stringContaining('damage'),
    });
    expect((await millrace(['verify', dir])).stdout).toContain('corrupt: ');
    expect(contents(dir)).toEqual(before);
  });

  it.each(['verify', 'dump', 'repair'])(
    '%s refuses a directory in use, one that is not there, and wrong calls',
    async (name) => {
      const dir = await directory();
      const broker = await open(dir, SMALL);
      const used = await millrace([name, dir]);
      await broker.close();
      expect(used).toMatchObject({ code: 4, stdout: '' });
      expect(used.stderr).toContain(`it is in use by process ${process.pid}`);
      expect(await millrace([name, join(dir, 'nothing')])).toMatchObject({ code: 3, stdout: '' });
      for (const args of [[], [dir, dir], [join(dir, 'lock')], [''], [dir, '--bogus']]) {
        expect({ args, code: (await millrace([name, ...args])).code }).toEqual({ args, code: 2 });
      }
    },
  );
});

describe('dump', () => {
  it('prints every record as a line of JSON, oldest first', async () => {
    const dir = await directory();
    const { code, stdout } = await millrace(['dump', dir]);
    const records = stdout
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as Record<string, unknown>);
    expect(code).toBe(0);
    expect(records[0]).toMatchObject({ type: 'EPOCH' });
    const positions = records.map(({ position }) => position as number);
    expect(positions).toEqual([...positions].sort((a, b) => a - b));
    const jobs = records.filter(({ type }) => type === 'ENQUEUE');
    expect(jobs[7]).toMatchObject({ payload: { n: 7, text: TEXT }, key: 'k7', tenant: 'acme', attemptsMax: 20 });
    expect(jobs.at(-1)).toMatchObject({ payload: { base64: 'AP8H' } });
    expect(records.filter(({ type }) => type === 'ACK')[0]).toMatchObject({ id: jobs[0]!.id, result: { done: true } });
    expect(records.find(({ type }) => type === 'RETRY')).toMatchObject({ attempts: 1, error: { message: 'no good' } });
    expect(records.find(({ type }) => type === 'BIND')).toMatchObject({ value: 'a.*' });
  });

  it('prints what stands before the damage, and says where that is', async () => {
    const dir = await directory();
    damage(dir, segments(dir)[1]!);
    const { code, stdout, stderr } = await millrace(['dump', dir]);
    expect(code).toBe(5);
    expect(stdout.split('\n').length).toBeGreaterThan(10);
    expect(stderr).toContain(`the log ends at ${segments(dir)[1]}`);
  });
});

describe('repair', () => {
  it('leaves a log alone that opens', async () => {
    const dir = await directory();
    const before = contents(dir);
    expect(await millrace(['repair', dir, '--accept-loss'])).toMatchObject({ code: 0 });
    expect(contents(dir)).toEqual(before);
  });

  it('says what would be lost, does it when that is accepted, and keeps the original', async () => {
    const dir = await directory();
    damage(dir, segments(dir)[1]!);
    const before = contents(dir);
    const asked = await millrace(['repair', dir]);
    expect(asked.code).toBe(5);
    expect(asked.stdout).toMatch(/lost: .* of which still readable: \d+ records, \d+ jobs\n/);
    expect(contents(dir)).toEqual(before);

    const records = (await millrace(['dump', dir])).stdout.trimEnd().split('\n');
    const kept = records.map((line) => JSON.parse(line) as { type: string; id: number });
    const done = await millrace(['repair', dir, '--accept-loss']);
    expect(done).toMatchObject({ code: 0, stderr: '' });
    const { lock: _, ...files } = before;
    expect(contents(`${dir}.corrupt-1`)).toEqual(files);
    expect((await millrace(['verify', dir])).code).toBe(0);

    const broker = await open(dir, SMALL);
    const queue = broker.queue<{ n: number }>('jobs');
    const ids = kept.filter(({ type }) => type === 'ENQUEUE').map(({ id }) => id);
    const leases = await queue.claim({ max: 100 });
    expect(leases.map(({ id }) => id)).toEqual(ids);
    expect(leases.map(({ payload }) => payload.n)).toEqual(ids.map((_, n) => n));
    // No id of a lost job is given out again.
    const lost = /jobs ([\d, ]+)/.exec(asked.stdout)![1]!.split(',').map(Number);
    expect((await queue.enqueue({ n: -1 })).id).toBeGreaterThan(Math.max(...lost));
    await broker.close();
  });

  it('mends damage in any segment, and a second copy gets a name of its own', async () => {
    const dir = await directory();
    for (let copy = 1; copy <= segments(dir).length; copy++) {
      const name = segments(dir).at(-1)!;
      damage(dir, name, 100);
      expect((await millrace(['repair', dir, '--accept-loss'])).stdout).toContain(`${dir}.corrupt-${copy}\n`);
      const broker = await open(dir, SMALL);
      await broker.queue('jobs').enqueue('x');
      await broker.close();
    }
  });

  it('cannot mend a log whose beginning is missing', async () => {
    const dir = await directory();
    damage(dir, segments(dir)[0]!, 20);
    const before = contents(dir);
    expect((await millrace(['repair', dir, '--accept-loss'])).code).toBe(1);
    expect(contents(dir)).toEqual(before);
  });
});
