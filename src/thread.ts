/**
 * Threads, the only door to them: starting millrace's own, and learning when any thread of the process has exited.
 *
 * Node tells the thread that started a worker, by the `worker` event of its `process`, about every worker it starts;
 * that is how attached threads are watched without their help. Importing this module is enough to listen.
 * A thread nobody here started (nested workers, workers older than the import) is looked up in /proc on Linux.
 */
import { existsSync, readlinkSync } from 'node:fs';
import process from 'node:process';
import { threadId, Worker } from 'node:worker_threads';

export { threadId };

const exits = new Set<(thread: number, code: number) => void>();
const observed = new Set<number>();

process.on('worker', (worker: Worker) => {
  const thread = worker.threadId;
  observed.add(thread);
  worker.once('exit', (code) => {
    observed.delete(thread);
    for (const listener of exits) listener(thread, code);
  });
});

/** Calls `listener` with the id and code of every thread that exits, until the returned function is called. */
export function onThreadExit(listener: (thread: number, code: number) => void): () => void {
  exits.add(listener);
  return () => exits.delete(listener);
}

/** Whether this thread will be told when that one exits. */
export function isObserved(thread: number): boolean {
  return thread === threadId || observed.has(thread);
}

/** The operating system's number of the calling thread, 0 where there is none to be had. */
export function systemThread(): number {
  try {
    return Number(readlinkSync('/proc/thread-self').split('/').pop());
  } catch {
    return 0;
  }
}

/** False only when the system says that no such thread of this process exists. */
export function systemThreadExists(thread: number): boolean {
  return thread === 0 || existsSync(`/proc/self/task/${thread}`);
}

/** One of millrace's own threads. It never holds the process open: pending work does. */
export class ServiceThread {
  readonly worker: Worker;
  readonly exited: Promise<number>;

  constructor(entry: URL, workerData: unknown, name: string) {
    this.worker = new Worker(entry, { workerData, name, stdin: false });
    this.worker.unref();
    this.exited = new Promise((resolve) => this.worker.once('exit', resolve));
  }

  /** The thread's next message. Rejects when it fails or exits before. */
  message<T>(): Promise<T> {
    return new Promise((resolve, reject) => {
      this.worker.ref();
      const done = (settle: () => void): void => {
        this.worker.off('message', onMessage).off('error', onError).off('exit', onExit);
        this.worker.unref();
        settle();
      };
      const onMessage = (value: T): void => done(() => resolve(value));
      const onError = (error: Error): void => done(() => reject(error));
      const onExit = (code: number): void => done(() => reject(new Error(`the thread exited with code ${code}`)));
      this.worker.on('message', onMessage).on('error', onError).on('exit', onExit);
    });
  }

  send(value: unknown): void {
    this.worker.postMessage(value);
  }

  /** Waits for the thread to end; terminates it after `timeoutMs`. True: it ended by itself. */
  async join(timeoutMs: number): Promise<boolean> {
    this.worker.ref();
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<false>((resolve) => {
      timer = setTimeout(resolve, Math.min(timeoutMs, 2 ** 31 - 1), false);
    });
    const ended = await Promise.race([this.exited.then(() => true), late]);
    clearTimeout(timer);
    if (!ended) await this.worker.terminate();
    return ended;
  }
}
