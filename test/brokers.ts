/**
 * Brokers for tests: each in a directory of its own, closed and removed when the test ends. They come from the package
 * by its name, so that what is tested is what ships.
 */
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Broker, type BrokerOptions, type Lease, type MillraceError, open, type Queue } from 'millrace';
import { onTestFinished } from 'vitest';
import { ManualClock } from '../src/clock.js';

const GIVE_UP_MS = 20_000;

/** An empty directory, gone after the test. 'memory': flushes cost nothing there, where the system has such a place. */
export function temporaryDirectory(on: 'disk' | 'memory' = 'disk'): string {
  const parent = on === 'memory' && existsSync('/dev/shm') ? '/dev/shm' : tmpdir();
  const dir = mkdtempSync(join(parent, 'millrace-test-'));
  onTestFinished(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

/** Many brokers come and go in one process here, and the memory of those that are closed is not given back at once. */
const SMALL: BrokerOptions = { memoryBytes: 64 << 20, jobsMax: 200_000 };

/** An open broker, closed after the test if the test has not done it. */
export async function opened(options: BrokerOptions = {}, dir = temporaryDirectory()): Promise<Broker> {
  const broker = await open(dir, { ...SMALL, ...options });
  onTestFinished(() => broker.close({ timeout: 1000 }));
  return broker;
}

/** A broker whose time stands still until `clock.advance`. */
export async function timed(
  options: BrokerOptions = {},
  dir = temporaryDirectory(),
): Promise<{ broker: Broker; clock: ManualClock; dir: string }> {
  const clock = new ManualClock();
  return { broker: await opened({ ...options, clock }, dir), clock, dir };
}

/** The first truthy thing that `look` sees. A bounded wait: it fails, with a name, where it would hang. */
export async function until<T>(what: string, look: () => T | Promise<T>): Promise<T> {
  const end = performance.now() + GIVE_UP_MS;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (performance.now() > end) throw new Error(`it never came true that ${what}`);
    await new Promise<void>((resolve) => setImmediate(resolve));
  }
}

/** The promise, or a failure with a name when it takes too long. */
export async function soon<T>(what: string, promise: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`it took too long that ${what}`)), GIVE_UP_MS);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** What a call throws or rejects with: for tests of what an error says. */
export async function failureOf(act: () => unknown): Promise<MillraceError> {
  try {
    await act();
  } catch (error) {
    return error as MillraceError;
  }
  throw new Error('it worked, where an error was expected');
}

/** Resolves when everything this thread submitted so far is committed, applied and, if ready, offered. */
export async function applied(broker: Broker): Promise<void> {
  // A question is answered in order, behind everything that was submitted before it.
  await broker.queue('applied?').get(0);
}

/** Leases on `count` jobs, however many claims that takes. */
export async function taken<Payload>(queue: Queue<Payload, unknown>, count: number): Promise<Lease<Payload>[]> {
  const leases: Lease<Payload>[] = [];
  await until(`${count} jobs can be claimed`, async () => {
    leases.push(...(await queue.claim({ max: Math.min(4096, count - leases.length) })));
    return leases.length === count;
  });
  return leases;
}
