/** Jobs that are worth nothing when they have not started in time. */
import { type JobEvent, MillraceError } from 'millrace';
import { expect, it } from 'vitest';
import { applied, failureOf, opened, temporaryDirectory, timed, until } from '../brokers.js';

const HOUR_MS = 3_600_000;

it('a job that has not started in time is dead with reason expired, and whoever waits for it is told', async () => {
  const { broker, clock } = await timed();
  const queue = broker.queue<string>('jobs');
  const dead: JobEvent[] = [];
  broker.on('dead', (event) => dead.push(event));
  const job = await queue.enqueue('late', { expiresIn: HOUR_MS, key: 'k' });
  const other = await queue.enqueue('patient');
  const failure = failureOf(() => job.result());
  clock.advance(HOUR_MS - 1);
  await applied(broker);
  expect(queue.counts()).toMatchObject({ ready: 2, dead: 0 });
  clock.advance(1);
  expect(await failure).toMatchObject({ code: 'ERR_MILLRACE_DEAD', reason: 'expired', id: job.id });
  await until('it is told', () => dead.length === 1);
  expect(dead[0]).toMatchObject({ queue: 'jobs', id: job.id, reason: 'expired' });
  expect(queue.counts()).toMatchObject({ ready: 1, dead: 1 });
  expect((await queue.claim({ max: 2 })).map(({ id }) => id)).toEqual([other.id]);
  const [info] = await queue.deadLetters.list({ reason: 'expired' });
  expect(info).toMatchObject({ id: job.id, attempt: 0, payload: 'late' });
  expect((await queue.enqueue('again', { key: 'k' })).duplicate).toBe(false);
});

it('a job that has started does not expire, nor does one that comes back', async () => {
  const { broker, clock } = await timed();
  const queue = broker.queue<string>('jobs', { backoff: { base: 1000, jitter: 'none' }, visibility: 10 * HOUR_MS });
  await queue.enqueue('a', { expiresIn: HOUR_MS });
  const [first] = await queue.claim();
  clock.advance(2 * HOUR_MS);
  await applied(broker);
  expect(first!.held).toBe(true);
  first!.fail(new Error('once more'));
  await until('it waits', () => queue.counts().delayed === 1);
  clock.advance(HOUR_MS);
  const [second] = await queue.claim({ wait: 5000 });
  expect(second!.attempt).toBe(2);
  expect(second!.ack()).toBe(true);
});

it('expires while it is delayed, offered, paused, or out of memory', async () => {
  const { broker, clock } = await timed({ memoryBytes: 1 << 20 });
  const delayed = await broker.queue('delayed').enqueue(1, { delay: 2 * HOUR_MS, expiresIn: HOUR_MS });
  const offering = broker.queue('offered');
  expect(await offering.claim()).toEqual([]);
  const offered = await offering.enqueue(1, { expiresIn: HOUR_MS });
  await broker.queue('paused').pause();
  const paused = await broker.queue('paused').enqueue(1, { expiresIn: HOUR_MS });
  const many = broker.queue<string>('many');
  const text = 'x'.repeat(1000);
  await many.enqueueMany(Array.from({ length: 3000 }, () => ({ payload: text, expiresIn: HOUR_MS })));
  clock.advance(HOUR_MS);
  await until('all of the many are dead', () => many.counts().dead === 3000);
  for (const [name, { id }] of Object.entries({ delayed, offered, paused })) {
    expect(await broker.queue(name).get(id)).toMatchObject({ state: 'dead', reason: 'expired' });
  }
  expect(await offering.claim()).toEqual([]);
  expect((await many.deadLetters.list({ limit: 5 })).map(({ payload }) => payload)).toEqual(new Array(5).fill(text));
});

it('counts on by the wall clock, also when that is set back, through restarts and compactions', async () => {
  const dir = temporaryDirectory();
  let { broker, clock } = await timed({ segmentBytes: 4096 }, dir);
  const at = clock.wallMs();
  await broker.queue('jobs').enqueue('x'.repeat(3000), { expiresIn: HOUR_MS });
  clock.step(-HOUR_MS);
  clock.advance(1.5 * HOUR_MS);
  await applied(broker);
  expect(broker.queue('jobs').counts()).toMatchObject({ ready: 1 });
  for (let life = 0; life < 2; life++) {
    await broker.queue('fill').enqueue('y'.repeat(4000));
    await broker.compact();
    await broker.close();
    ({ broker, clock } = await timed({ segmentBytes: 4096 }, dir));
    // A clock of its own, at the time where the last one stood.
    clock.step(at + HOUR_MS / 2 - clock.wallMs());
    await applied(broker);
    expect(broker.queue('jobs').counts()).toMatchObject({ ready: 1 });
  }
  clock.advance(HOUR_MS / 2);
  await until('it is dead', () => broker.queue('jobs').counts().dead === 1);
});

it.each([0, -1, Number.NaN, '1', 2 ** 60])('expiresIn %s is refused', async (expiresIn) => {
  const queue = (await opened()).queue('jobs');
  const error = await failureOf(() => queue.enqueue(1, { expiresIn: expiresIn as number }));
  expect(error).toBeInstanceOf(MillraceError);
  expect(error).toMatchObject({ code: 'ERR_MILLRACE_OPTION_INVALID', option: 'expiresIn' });
});
