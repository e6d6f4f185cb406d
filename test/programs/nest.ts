/** A thread that does not attach but starts one that does: it claims a job and is ended when the outer one is told. */
import { parentPort, Worker, workerData } from 'node:worker_threads';
import { attach, type BrokerHandle } from 'millrace';

const given = workerData as BrokerHandle & { readonly inner?: BrokerHandle };
if (given.inner !== undefined) {
  const leases = await attach(given.inner).queue('jobs').claim({ wait: 10_000 });
  parentPort!.postMessage(leases.length);
  setInterval(() => {}, 1000);
} else {
  const inner = new Worker(new URL(import.meta.url), { workerData: { inner: given } });
  inner.on('message', (claimed) => parentPort!.postMessage(claimed));
  parentPort!.on('message', () => inner.terminate());
}
