/**
 * A thread that attaches to a broker and does what it is told by messages: [number, command, ...arguments]. Leases stay
 * here; the other side names them by job and token.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { attach, type BrokerHandle, type Lease, type QueueOptions } from 'millrace';

const broker = attach(workerData as BrokerHandle);
const leases = new Map<string, Lease>();
type Name = { readonly id: number; readonly token: number };
const held = ({ id, token }: Name): Lease => leases.get(`${id}:${token}`)!;

const commands = {
  queue(name: string, options: QueueOptions) {
    broker.queue(name, options);
  },
  async claim(queue: string, options: object) {
    const claimed = await broker.queue(queue).claim(options);
    for (const lease of claimed) leases.set(`${lease.id}:${lease.token}`, lease);
    return claimed.map(({ id, token, attempt, payload }) => ({ id, token, attempt, payload }));
  },
  ack: (name: Name, result: unknown) => held(name).ack(result),
  ackDurably: (name: Name, result: unknown) => held(name).ackDurably(result),
  fail: (name: Name, message: string, options: object) => held(name).fail(new Error(message), options),
  extend: (name: Name, ms: number) => held(name).extend(ms),
  aborted: (name: Name) => held(name).signal.aborted,
  async enqueue(queue: string, payload: unknown, options: object) {
    const { id, duplicate } = await broker.queue(queue).enqueue(payload, options);
    return { id, duplicate };
  },
  async enqueueMany(queue: string, payloads: unknown[]) {
    return (await broker.queue(queue).enqueueMany(payloads)).map(({ id }) => id);
  },
  publish: async (topic: string, payload: unknown) => (await broker.publish(topic, payload)).length,
  bind: (pattern: string, queue: string) => broker.bind(pattern, queue),
  counts: (queue: string) => broker.queue(queue).counts(),
  get: (queue: string, id: number) => broker.queue(queue).get(id),
  cancel: (queue: string, id: number) => broker.queue(queue).cancel(id),
  listen(...events: ('dead' | 'failed' | 'completed' | 'expired')[]) {
    for (const event of events) broker.on(event, ({ queue, id }) => parentPort!.postMessage([-1, event, queue, id]));
  },
  close: () => broker.close(),
  ackAndExit(name: Name) {
    held(name).ack();
    process.exit(4);
  },
  exit: () => process.exit(3),
  throw() {
    setImmediate(() => {
      throw new Error('told to');
    });
  },
} as Record<string, (...args: never[]) => unknown>;

parentPort!.on('message', async ([number, command, ...args]: [number, string, ...never[]]) => {
  try {
    parentPort!.postMessage([number, 'done', await commands[command]!(...args)]);
  } catch (error) {
    const { message, code } = error as Error & { code?: string };
    parentPort!.postMessage([number, 'failed', { message, code }]);
  }
});
parentPort!.postMessage([0, 'done', undefined]);
