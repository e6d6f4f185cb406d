/**
 * `scene NAME DIR`: a program that does one thing with a broker and then has nothing more to do. What is tested is
 * whether, when and with what it ends.
 */
import { writeSync } from 'node:fs';
import { Worker } from 'node:worker_threads';
import { attach, type Broker, open } from 'millrace';

const say = (word: string): void => void writeSync(1, `${word}\n`);
const [name, dir] = process.argv.slice(2);

/** What has to be true of a process whose brokers are closed. */
function left(): string {
  // A pipe that is written to, and the channel of messages, were there before.
  const resources = process.getActiveResourcesInfo().filter((kind) => !/Pipe|TTY|FSReq|Immediate/.test(kind));
  return `left: ${resources.join(' ') || 'nothing'}`;
}

const scenes: Record<string, (broker: Broker) => unknown> = {
  'nothing pending': async (broker) => {
    await broker.queue('jobs').enqueue(1);
    say('enqueued');
  },
  'a pending enqueue': (broker) => {
    broker
      .queue('jobs')
      .enqueue(1)
      .then(() => say('durable'));
    say('not waited for');
  },
  'a pending enqueue of many': (broker) => {
    const queue = broker.queue('jobs');
    const jobs = Array.from({ length: 5000 }, (_, i) => queue.enqueue(i));
    Promise.all(jobs).then(() => say('durable'));
  },
  'a pending ask': (broker) => {
    broker
      .queue('jobs')
      .get(1)
      .then((info) => say(`told ${info}`));
  },
  'an ack that is not waited for': async (broker) => {
    const queue = broker.queue('jobs');
    await queue.enqueue(1);
    const [lease] = await queue.claim({ wait: 5000 });
    lease!.ack();
    say('acked');
  },
  'a job that is not waited for': (broker) => {
    const queue = broker.queue('jobs');
    for (let i = 0; i < 3; i++) queue.tryEnqueue(i);
    say('submitted');
  },
  'a thread’s ack that is not waited for': async (broker) => {
    await broker.queue('jobs').enqueue(1);
    new Worker(new URL('./scene.js', import.meta.url), { argv: ['attached', 'ack'], workerData: broker.handle });
  },
  'a listener': async (broker) => {
    broker.on('completed', () => {});
    await broker.queue('jobs').enqueue(1);
    say('listening');
  },
  'a lease with a signal': async (broker) => {
    await broker.queue('jobs').enqueue(1);
    const [lease] = await broker.queue('jobs').claim({ wait: 5000 });
    lease!.signal.addEventListener('abort', () => {});
    say('held');
  },
  'a claim that waits': (broker) => {
    const queue = broker.queue('jobs');
    queue.claim({ wait: Number.POSITIVE_INFINITY }).then(async ([lease]) => {
      say(`claimed ${lease!.payload}`);
      await lease!.ackDurably();
    });
    setTimeout(() => void queue.enqueue('late'), 50).unref();
    // Only the waiting claim holds the process: without it the timer would never fire.
  },
  'a worker': (broker) => {
    const queue = broker.queue<string>('jobs');
    const worker = queue.process(async (payload) => {
      say(`ran ${payload}`);
      setImmediate(async () => {
        await worker.close();
        say('closed');
      });
    });
    setTimeout(() => void queue.enqueue('late'), 50).unref();
  },
  closed: async (broker) => {
    const queue = broker.queue('jobs');
    queue.process(() => 1, { concurrency: 3 });
    broker.on('completed', () => {});
    await queue.run(1);
    await broker.close();
    say(left());
  },
  'closed with a fleet and threads': async (broker) => {
    const queue = broker.queue<number, number>('jobs');
    queue.process(new URL('./handler.js', import.meta.url), { threads: 2 });
    say(`result ${await queue.run(21)}`);
    const thread = new Worker(new URL('./scene.js', import.meta.url), {
      argv: ['attached', ''],
      workerData: broker.handle,
    });
    await new Promise((resolve) => thread.once('exit', resolve));
    await broker.close();
    say(left());
  },
  'closed twice, opened again': async (broker) => {
    await Promise.all([broker.close(), broker.close()]);
    await using again = await open(dir!);
    const { id } = await again.queue('jobs').enqueue(1);
    say(`${(await again.queue('jobs').get(id))!.state}`);
  },
  'the main thread may not wait': async (broker) => {
    const queue = broker.queue<number, number>('jobs');
    queue.process((n) => n + 1, { concurrency: 4 });
    await Promise.all(Array.from({ length: 500 }, (_, i) => queue.run(i)));
    await queue.enqueueMany(Array.from({ length: 500 }, (_, i) => ({ payload: i, delay: 1 })));
    await queue.pause();
    await queue.resume();
    await queue.get(1);
    await queue.deadLetters.list();
    queue.tryClaim();
    queue.counts();
    await broker.close();
    say('never waited');
  },
  'process.exit in the middle': async (broker) => {
    const queue = broker.queue<number>('jobs');
    await queue.enqueueMany([1, 2, 3]);
    void queue.enqueue(4);
    say('exits');
    process.exit(5);
  },
  'an exception in the middle': async (broker) => {
    await broker.queue('jobs').enqueue(1);
    setImmediate(() => {
      throw new Error('uncaught');
    });
    await new Promise(() => {});
  },
};

if (name === 'attached') {
  const { workerData } = await import('node:worker_threads');
  const broker = attach(workerData as never);
  if (dir === 'ack') (await broker.queue('jobs').claim({ wait: 5000 }))[0]!.ack();
  else await broker.queue('jobs').enqueue(1);
  // Ends by itself, without a close.
} else {
  // The ring is small, so that most of them wait for room.
  const few = { ringSlots: 256, payloadBytesMax: 1024 };
  const late = { linger: 200 };
  if (name === 'the main thread may not wait') {
    Atomics.wait = () => {
      say('the main thread waited');
      process.exit(1);
    };
  }
  const options = name === 'a pending enqueue of many' ? few : name === 'a pending enqueue' ? late : {};
  await scenes[name!]!(await open(dir!, options));
}
