/** How much a run holds at once, whatever its input. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect, it, onTestFinished } from 'vitest';
import type { DurableMap, Input } from '../../src/ops/durable-map.js';
import { handler, scratch } from './command.js';

/** From dist: its threads start from what is built. */
const built = new URL('../../dist/src/ops/durable-map.js', import.meta.url).href;
const { DurableMap: Built } = (await import(built)) as typeof import('../../src/ops/durable-map.js');

/** A map whose handlers return when the test says `go`. */
async function held(): Promise<{ map: DurableMap; go: () => void; done: number[] }> {
  const dir = scratch();
  const gate = join(dir, 'gate');
  writeFileSync(gate, '');
  const path = handler(
    dir,
    `import { readFileSync, watch } from 'node:fs';
     const open = new Promise((resolve) => {
       const look = () => readFileSync(${JSON.stringify(gate)}, 'utf8') === 'open' && (watcher.close(), resolve());
       const watcher = watch(${JSON.stringify(gate)}, look);
       look();
     });
     export default () => open;`,
  );
  const done: number[] = [];
  const options = { dir: join(dir, 'data'), keeps: true, queue: 'q', threads: 1, attempts: 1, timeoutMs: undefined };
  const map = await Built.open(
    { ...options, handler: pathToFileURL(path) },
    { done: ({ number }) => void done.push(number), failed: (_, reason) => expect.fail(reason) },
  );
  const go = (): void => writeFileSync(gate, 'open');
  onTestFinished(async () => {
    go();
    await map.close();
  });
  return { map, go, done };
}

function input(number: number, bytes: number): Input {
  return { number, value: number, json: String(number), bytes };
}

/** Several turns of the event loop, and of the broker. */
async function turns(map: DurableMap): Promise<void> {
  for (let turn = 0; turn < 3; turn++) {
    await map.broker.queue('q').get(1);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/** How many of these are taken before one has to wait. */
async function taken(map: DurableMap, bytes: number, most: number): Promise<{ count: number; last: Promise<void> }> {
  for (let number = 1; number <= most; number++) {
    const last = map.push(input(number, bytes));
    // More turns than any push takes that does not wait for a job to end.
    const first = await Promise.race([last.then(() => 'taken'), turns(map).then(() => 'waits')]);
    if (first === 'waits') return { count: number - 1, last };
  }
  return { count: most, last: Promise.resolve() };
}

it('takes 4,096 inputs at once, and the next when one has ended', async () => {
  const { map, go, done } = await held();
  const { count, last } = await taken(map, 10, 5000);
  expect(count).toBe(4096);
  go();
  await last;
  await map.idle();
  expect(done).toHaveLength(4097);
});

it('takes 64 MiB of inputs at once, and a larger one alone', async () => {
  const { map, go, done } = await held();
  const { count, last } = await taken(map, 8 << 20, 20);
  expect(count).toBe(8);
  const larger = last.then(() => map.push(input(100, 65 << 20)));
  go();
  await larger;
  await map.idle();
  expect(done).toHaveLength(10);
});
