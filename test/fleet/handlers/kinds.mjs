// Does what its payload says, in whatever thread it runs.
import { threadId } from 'node:worker_threads';
import { Dead, Retry } from 'millrace';

function spin(ms) {
  for (const until = performance.now() + ms; performance.now() < until; );
}

const deeds = {
  return: ({ value }) => value,
  thread: () => threadId,
  async wait({ ms, value }) {
    await new Promise((resolve) => setTimeout(resolve, ms));
    return value;
  },
  spin({ ms }) {
    spin(ms);
    return threadId;
  },
  throw({ message }) {
    throw Object.assign(new RangeError(message), { code: 'E_OWN' });
  },
  exit: ({ code }) => process.exit(code),
  async stray({ message }) {
    setImmediate(() => {
      throw new Error(message);
    });
    await new Promise(() => {});
  },
  async rejects({ message }) {
    void Promise.reject(new Error(message));
    await new Promise(() => {});
  },
  hang() {
    for (;;);
  },
  // A tight loop that looks whether it has been cancelled.
  poll(_, job) {
    while (!job.cancelled());
    return 'cancelled';
  },
  // The same, asynchronously.
  async signal(_, job) {
    await new Promise((resolve) => job.signal.addEventListener('abort', resolve, { once: true }));
    throw job.signal.reason;
  },
  retry({ after }, job) {
    if (Date.now() - job.enqueuedAt < after) throw new Retry({ after: 1 });
    return job.attempt;
  },
  dead({ message }) {
    throw new Dead(message);
  },
  job(_, { id, token, attempt, tenant, enqueuedAt, signal, cancelled }) {
    return { id, token, attempt, tenant, enqueuedAt, aborted: signal.aborted, cancelled: cancelled() };
  },
  bigint: () => 1n,
};

export default (payload, job) => deeds[payload.do](payload, job);
