/**
 * Publishing: one payload to every queue that a topic leads to, under one reservation, so in one batch: all of them or
 * none. Which queues those are the scheduler knows; each thread remembers its answers until a binding changes.
 */
import { add, load } from '../../native-free/atomics.js';
import { Word } from '../../native-free/layout.js';
import { nameOf } from '../../native-free/names.js';
import { Level, type RecordType } from '../../native-free/record.js';
import { MillraceError, shown } from '../errors.js';
import { type EnqueueOptions, record } from '../options.js';
import { Question, type RouteQuestion } from '../schedule/questions.js';
import { Job } from './job.js';
import type { Port } from './port.js';
import type { Queue } from './queue.js';
import type { QueueCore } from './queue-core.js';
import { checkReservation, submit } from './submit.js';

const TOPIC_BYTES_MAX = 255;
const ROUTES_KEPT = 4096;

export class Publisher {
  readonly #port: Port;
  readonly #queueOf: (name: string) => Queue<unknown>;
  readonly #routes = new Map<string, readonly Queue<unknown>[]>();
  #version = -1;

  constructor(port: Port, queueOf: (name: string) => Queue<unknown>) {
    this.#port = port;
    this.#queueOf = queueOf;
  }

  /** Resolves when the jobs are durable, one a queue; with none when no binding matches, which `stats` counts. */
  async publish(topic: string, payload: unknown, options: EnqueueOptions): Promise<Job[]> {
    const port = this.#port;
    port.check('publish');
    record('publish', options);
    const queues = await this.#route(checkedWords('topic', topic, false));
    port.check('publish');
    if (queues.length === 0) {
      add(port.shared.control, Word.UNROUTED, 1);
      return [];
    }
    const { encoder } = port;
    encoder.clear();
    const nowMs = port.wallMs();
    const slots = queues.map((queue) => {
      const slot = encoder.slots;
      queue.append(payload, options, nowMs);
      return slot;
    });
    checkReservation(port, 'publish', slots.length);
    return submit(port, slots.length, () => slots.map((slot) => new Job(port, port.firstId + slot, port.end, false)));
  }

  /** Resolves when the binding is durable, or gone for good, and every publish that is asked for from then on sees it. */
  async change(
    type: typeof RecordType.BIND | typeof RecordType.UNBIND,
    pattern: string,
    core: QueueCore,
  ): Promise<void> {
    const port = this.#port;
    const words = checkedWords('pattern', pattern, true);
    core.declare(false);
    const at = port.outbox.append(type, Level.FSYNC, 0, core.id, 0, port.wallMs(), 0);
    port.outbox.payloadText(at, words);
    port.outbox.finish(at);
    await port.ask(Question.SYNC, 0, core.id);
  }

  async #route(topic: string): Promise<readonly Queue<unknown>[]> {
    const { shared } = this.#port;
    const version = load(shared.control, Word.BINDINGS);
    if (version !== this.#version || this.#routes.size >= ROUTES_KEPT) {
      this.#routes.clear();
      this.#version = version;
    }
    const known = this.#routes.get(topic);
    if (known !== undefined) return known;
    const { bytes } = await this.#port.ask(Question.ROUTE, 0, 0, { topic } satisfies RouteQuestion);
    const ids = bytes === undefined ? [] : [...new Int32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4)];
    const queues = ids.map((id) => this.#queueOf(nameOf(shared, id)));
    if (version === this.#version) this.#routes.set(topic, queues);
    return queues;
  }
}

/** Words of text with dots between them, 255 bytes in all. `*` and `#` stand alone, in patterns only. */
function checkedWords(what: 'topic' | 'pattern', value: unknown, isPattern: boolean): string {
  const refuse = (why: string): never => {
    throw new MillraceError('ERR_MILLRACE_NAME_INVALID', `cannot use ${what} ${shown(value)}: ${why}`, {
      [what]: value,
    });
  };
  if (typeof value !== 'string' || !value.isWellFormed()) return refuse('it is not well-formed text');
  const bytes = Buffer.byteLength(value);
  if (bytes > TOPIC_BYTES_MAX) return refuse(`it is ${bytes} bytes, the limit is ${TOPIC_BYTES_MAX}`);
  // biome-ignore lint/suspicious/noControlCharactersInRegex: refusing them is the point.
  if (/[\u0000-\u001f\u007f-\u009f]/.test(value)) return refuse('it holds a control character');
  for (const word of value.split('.')) {
    if (word === '') return refuse('a word of it is empty');
    if (!/[*#]/.test(word)) continue;
    if (!isPattern) return refuse('* and # are for patterns');
    if (word.length > 1) return refuse('* and # stand for words, not for parts of one');
  }
  return value;
}
