/** What a broker tells those who listen: on its own thread and on attached ones. */
import type { Broker, JobEvent } from 'millrace';
import { describe, expect, it } from 'vitest';
import { applied, opened, timed, until } from '../brokers.js';
import { attached } from '../threads.js';

const NAMES = ['dead', 'failed', 'completed', 'expired'] as const;

function heard(broker: Broker): [string, JobEvent][] {
  const events: [string, JobEvent][] = [];
  for (const name of NAMES) broker.on(name, (event) => events.push([name, event]));
  return events;
}

describe('events', () => {
  it('tell of each job that completes, fails, dies or expires, in that order, with what is known', async () => {
    const { broker, clock } = await timed();
    const events = heard(broker);
    const queue = broker.queue<string>('jobs', { attempts: 2, backoff: { base: 0 }, visibility: 1000 });
    await applied(broker);
    const { id } = await queue.enqueue('x');
    (await queue.claim())[0]!.fail(Object.assign(new TypeError('first'), { code: 'E_OWN' }));
    (await queue.claim({ wait: 5000 }))[0]!.fail(new Error('last'));
    const done = await queue.enqueue('y');
    (await queue.claim({ wait: 5000 }))[0]!.ack();
    const late = await queue.enqueue('z');
    const [lease] = await queue.claim({ wait: 5000 });
    expect(lease!.id).toBe(late.id);
    clock.advance(1000);
    await until('the last is told', () => events.length === 5);
    expect(events.map(([name, event]) => [name, event.id])).toEqual([
      ['failed', id],
      ['dead', id],
      ['completed', done.id],
      ['expired', late.id],
      ['failed', late.id],
    ]);
    expect(events.every(([, event]) => event.queue === 'jobs')).toBe(true);
    expect(events[0]![1].error).toMatchObject({ name: 'TypeError', message: 'first', code: 'E_OWN' });
    expect(events[1]![1]).toMatchObject({ reason: 'attempts', error: { message: 'last' } });
    expect(events[1]![1].error).toBeInstanceOf(Error);
    expect(events[4]![1].error!.message).toContain('expired');
  });

  it('come to every thread that listens, and to none that does not any more', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs');
    const [listener, other] = [await attached(broker), await attached(broker)];
    await listener.tell('listen', 'completed');
    const mine: number[] = [];
    const listen = (event: JobEvent): void => void mine.push(event.id);
    broker.on('completed', listen);
    await applied(broker);
    const ids: number[] = [];
    for (let i = 0; i < 10; i++) {
      ids.push((await queue.enqueue(i)).id);
      (await queue.claim({ wait: 5000 }))[0]!.ack();
    }
    await until('both have heard', () => mine.length === 10 && listener.events.length === 10);
    expect(mine).toEqual(ids);
    expect(listener.events).toEqual(ids.map((id) => ['completed', 'jobs', id]));
    expect(other.events).toEqual([]);
    broker.off('completed', listen);
    await new Promise((resolve) => setImmediate(resolve));
    await queue.enqueue('unheard');
    (await queue.claim({ wait: 5000 }))[0]!.ack();
    await until('the thread has heard', () => listener.events.length === 11);
    expect(mine).toHaveLength(10);
  });

  it('do not hold back a broker whose listener is slow', async () => {
    const broker = await opened();
    const queue = broker.queue<number>('jobs');
    let heardCount = 0;
    broker.on('completed', () => void heardCount++);
    await applied(broker);
    // This thread reads no event meanwhile: more than the reply ring holds, and more than wait behind it.
    const jobs = await queue.enqueueMany(Array.from({ length: 8000 }, (_, i) => i));
    const leases = [];
    while (leases.length < 8000) leases.push(...(await queue.claim({ max: 4096, wait: 5000 })));
    for (const lease of leases) lease.ack();
    await until('all are done', () => queue.counts().done === jobs.length);
    await until('events have come', () => heardCount >= 1024);
    const { id } = await queue.enqueue(1);
    expect(await queue.get(id)).toMatchObject({ state: 'ready' });
  });

  it('that throw do not stop the broker', async () => {
    const broker = await opened();
    const queue = broker.queue('jobs');
    const thrown: unknown[] = [];
    const caught = (error: unknown): void => void thrown.push(error);
    const others = process.listeners('uncaughtException');
    process.removeAllListeners('uncaughtException');
    process.on('uncaughtException', caught);
    try {
      broker.on('completed', () => {
        throw new Error('the listener’s own');
      });
      await applied(broker);
      await queue.enqueue(1);
      (await queue.claim())[0]!.ack();
      await until('it has thrown', () => thrown.length === 1);
      await queue.enqueue(2);
      (await queue.claim({ wait: 5000 }))[0]!.ack();
      await until('it has thrown again', () => thrown.length === 2);
      expect(thrown[0]).toMatchObject({ message: 'the listener’s own' });
    } finally {
      process.off('uncaughtException', caught);
      for (const other of others) process.on('uncaughtException', other);
    }
  });
});
