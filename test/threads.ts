/** Threads attached to a broker that do what they are told: the other side is test/programs/attached. */
import { Worker } from 'node:worker_threads';
import type { Broker, ClaimOptions, Counts, EnqueueOptions, JobInfo } from 'millrace';
import { onTestFinished } from 'vitest';
import { soon } from './brokers.js';
import { programPath } from './children.js';

export interface Claimed {
  readonly id: number;
  readonly token: number;
  readonly attempt: number;
  readonly payload: unknown;
}

export class Attached {
  readonly worker: Worker;
  readonly exited: Promise<number>;
  /** [event, queue, id] of events it listens to. */
  readonly events: [string, string, number][] = [];
  readonly #waiting = new Map<number, { resolve(value: unknown): void; reject(error: Error): void }>();
  #next = 1;

  constructor(broker: Broker) {
    this.worker = new Worker(programPath('attached'), { workerData: broker.handle });
    // Not events.once: that rejects when the thread fails first, and some do on purpose.
    this.exited = new Promise((resolve) => this.worker.once('exit', resolve));
    this.worker.on('error', () => {});
    this.worker.on('message', ([number, outcome, ...values]: [number, string, ...unknown[]]) => {
      if (number === -1) return void this.events.push([outcome, ...values] as [string, string, number]);
      const waiting = this.#waiting.get(number);
      this.#waiting.delete(number);
      if (outcome === 'done') waiting?.resolve(values[0]);
      else waiting?.reject(Object.assign(new Error(), values[0]));
    });
    onTestFinished(async () => void (await this.worker.terminate()));
  }

  /** Resolves when the thread has attached. */
  ready(): Promise<unknown> {
    return soon('the thread attaches', this.#answer(0));
  }

  tell<T>(command: string, ...args: unknown[]): Promise<T> {
    const number = this.#next++;
    const answer = this.#answer(number);
    this.worker.postMessage([number, command, ...args]);
    return soon(`the thread does ${command}`, answer) as Promise<T>;
  }

  claim(queue: string, options: ClaimOptions = {}): Promise<Claimed[]> {
    return this.tell('claim', queue, options);
  }

  enqueue(queue: string, payload: unknown, options?: EnqueueOptions): Promise<{ id: number; duplicate: boolean }> {
    return this.tell('enqueue', queue, payload, options);
  }

  counts(queue: string): Promise<Counts> {
    return this.tell('counts', queue);
  }

  get(queue: string, id: number): Promise<JobInfo | undefined> {
    return this.tell('get', queue, id);
  }

  #answer(number: number): Promise<unknown> {
    return new Promise((resolve, reject) => this.#waiting.set(number, { resolve, reject }));
  }
}

export async function attached(broker: Broker): Promise<Attached> {
  const thread = new Attached(broker);
  await thread.ready();
  return thread;
}
