/**
 * The broker: opening and closing a directory, and the same broker from another thread.
 * `open` owns the log writer and the scheduler; `attach` only has a port of its own.
 */

import { randomUUID } from 'node:crypto';
import { EventEmitter } from 'node:events';
import { resolve as resolvePath } from 'node:path';
import { wake, wakeOwners } from '../../native-free/agent.js';
import { load, store } from '../../native-free/atomics.js';
import {
  allocateShared,
  BrokerState,
  Cell,
  OWNERS,
  Owner,
  OwnerState,
  OwnerWord,
  QueueFlag,
  QueueWord,
  Shared,
  type SharedBuffers,
  Word,
} from '../../native-free/layout.js';
import { nameOf } from '../../native-free/names.js';
import { RecordType } from '../../native-free/record.js';
import { type Clock, clockOver, SystemClock } from '../clock.js';
import { type ErrorCode, MillraceError, shown } from '../errors.js';
import { Fleet } from '../fleet/fleet.js';
import type { BoundHandler, QueueDefinition } from '../fleet/handle.js';
import { type Handler, LocalWorker, type Worker } from '../fleet/worker.js';
import { useChecksum } from '../log/checksum.js';
import { type DirectoryLock, lockDirectory } from '../log/lock.js';
import { ClaimMarks, clearMarks } from '../log/marks.js';
import type { Recovery } from '../log/recovery.js';
import { DiskStorage, type StorageModule } from '../log/storage.js';
import { POISON_CODES } from '../log/writer.js';
import type { StartWriter, WriterReply, WriterThreadData } from '../log/writer-thread.js';
import {
  type BrokerOptions,
  type BrokerSettings,
  brokerSettings,
  type EnqueueOptions,
  INTERVAL_MS_MAX,
  type ProcessOptions,
  type QueueOptions,
  queueName,
  record,
  span,
} from '../options.js';
import { EVENT_OVERRUN, EVENTS, type EventName, eventBit, Question, type StoredError } from '../schedule/questions.js';
import type { SchedulerReply, SchedulerThreadData } from '../schedule/scheduler-thread.js';
import { isObserved, onThreadExit, ServiceThread, systemThreadExists } from '../thread.js';
import type { Job } from './job.js';
import { markDead, markThreadDead, Port } from './port.js';
import { Publisher } from './publisher.js';
import { Queue } from './queue.js';
import { QueueCore } from './queue-core.js';
import { revivedError } from './settle.js';

/** What another thread of this process needs: pass it as workerData or by postMessage. */
export interface BrokerHandle {
  readonly id: string;
  readonly dir: string;
  readonly buffers: SharedBuffers;
  readonly settings: BrokerSettings;
  readonly clock: SharedArrayBuffer | undefined;
  readonly storage: StorageModule | undefined;
}

export interface BrokerStats {
  /** Jobs that are ready, delayed, leased, dead, or done and still kept. */
  readonly jobs: number;
  readonly enqueued: number;
  readonly done: number;
  readonly retried: number;
  readonly dead: number;
  readonly expired: number;
  readonly cancelled: number;
  /** Batches written, flushes issued, records and bytes in them, since the broker was opened. */
  readonly batches: number;
  readonly flushes: number;
  readonly records: number;
  readonly bytes: number;
  /** Records replayed when the broker was opened. */
  readonly recovered: number;
  /** Segment files of the log, their bytes, and how often the log was compacted. */
  readonly segments: number;
  readonly logBytes: number;
  readonly compactions: number;
  /** Position up to which the log is known to be durable. */
  readonly synced: number;
  /** Bytes of payloads in memory. */
  readonly memoryBytes: number;
  /** Slots of the submit ring in use, and how many there are. */
  readonly ringUsed: number;
  readonly ringSlots: number;
  readonly threads: number;
  readonly epoch: number;
  /** What long checksums go through: the add-on of fast-crc32c, or JavaScript. */
  readonly checksum: 'native' | 'javascript';
  /** Publishes that no binding matched. */
  readonly unrouted: number;
  /** 1 while the disk is full. */
  readonly diskFull: number;
}

/** What a compaction did: segment files, and bytes of batches in them. */
export interface CompactionReport {
  readonly segmentsBefore: number;
  readonly segmentsAfter: number;
  readonly bytesBefore: number;
  readonly bytesAfter: number;
}

export interface JobEvent {
  readonly queue: string;
  readonly id: number;
  readonly reason?: string;
  readonly error?: Error;
}

export interface BrokerEvents {
  dead: [JobEvent];
  failed: [JobEvent];
  completed: [JobEvent];
  expired: [JobEvent];
  error: [Error];
  poisoned: [MillraceError];
}

export interface CloseOptions {
  /** Milliseconds to wait for running jobs and for the log. Default 30,000. */
  readonly timeout?: number;
}

/** The threads and the lock that belong to the broker that `open` gave. */
interface Ownership {
  readonly writer: ServiceThread;
  readonly scheduler: ServiceThread;
  readonly lock: DirectoryLock;
}

export class Broker extends EventEmitter<BrokerEvents> {
  readonly handle: BrokerHandle;
  /** This thread's port: for the package's own parts. */
  readonly port: Port;
  readonly #shared: Shared;
  readonly #cores = new Map<string, QueueCore>();
  readonly #queues = new Map<string, Queue<never, never>>();
  readonly #workers = new Set<Worker>();
  readonly #checksum: 'native' | 'javascript';
  readonly #publisher: Publisher;
  #ownership: Ownership | undefined;
  #stop: () => void = () => {};
  #closing: Promise<void> | undefined;

  constructor(handle: BrokerHandle, shared: Shared, clock: Clock, random: (() => number) | undefined) {
    super();
    this.handle = handle;
    this.#shared = shared;
    this.#checksum = useChecksum({ nativeFree: handle.settings.nativeFree });
    this.port = new Port(shared, clock, handle.settings, random);
    if (handle.storage === undefined) this.port.marks = new ClaimMarks(handle.dir, this.port.owner, this.port.epoch);
    this.port.onEvent = (event, about, row, id, bytes) => {
      if (event !== EVENT_OVERRUN) return this.#onEvent(event, about, id, bytes);
      for (const worker of this.#workers) if (worker instanceof Fleet) worker.overrun(about, row, id);
    };
    this.#publisher = new Publisher(this.port, (name) => this.queue(name));
    this.port.onPoison = (error) => {
      this.#tell('poisoned', error);
    };
    // Node adds the listener after this event.
    const soon = (): void => queueMicrotask(() => this.#listen());
    const any = this as EventEmitter;
    any.on('newListener', soon);
    any.on('removeListener', soon);
  }

  /** For `open` and `attach` alone: what is to be closed with the broker. */
  own(ownership: Ownership | undefined, stop: () => void): void {
    this.#ownership = ownership;
    this.#stop = stop;
  }

  /**
   * The queue of that name. The same object for the same name; options given again replace the earlier ones.
   * Throws ERR_MILLRACE_NAME_INVALID, _OPTION_INVALID, _CLOSED.
   */
  queue<Payload = unknown, Result = unknown>(
    definition: QueueDefinition<Payload, Result> | string,
    options?: QueueOptions<Payload>,
  ): Queue<Payload, Result> {
    const defined = typeof definition === 'object' && definition !== null;
    const name = queueName(defined ? definition.name : definition);
    const given = options ?? (defined ? definition.options : undefined);
    const known = this.#queues.get(name) as Queue<Payload, Result> | undefined;
    const core = this.core(name, given as QueueOptions<never> | undefined);
    if (known !== undefined) {
      if (given !== undefined) known.configure(given as QueueOptions<never>);
      return known;
    }
    const queue = new Queue<Payload, Result>(core, given?.schema, (of, handler, settings) =>
      this.#start(of, handler, settings),
    );
    this.#queues.set(name, queue as never);
    return queue;
  }

  /** What `queue` is made of: for the package's own parts. */
  core(name: string, options: QueueOptions<never> | undefined): QueueCore {
    this.port.check(`use queue ${shown(name)}`);
    let core = this.#cores.get(name);
    if (core === undefined) {
      core = new QueueCore(this.port, queueName(name), options, this.handle.settings.level);
      this.#cores.set(name, core);
      if (options !== undefined) core.declare(true);
    }
    return core;
  }

  /**
   * Serves several queues: handlers bound to their definitions run on this thread; a module that exports an array of
   * them by default runs in worker threads.
   */
  process(handlers: readonly BoundHandler[] | URL | string, settings: ProcessOptions = {}): Worker {
    this.port.check('process queues');
    record('process queues', settings);
    if (typeof handlers === 'string' || handlers instanceof URL) return this.#fleet(handlers, undefined, settings);
    if (!Array.isArray(handlers) || !handlers.every(isBound)) {
      const option = 'handlers';
      const allowed = 'a URL, a path or an array of handle(definition, handler)';
      throw new MillraceError(
        'ERR_MILLRACE_OPTION_INVALID',
        `cannot process queues: ${option} is ${shown(handlers)}, allowed is ${allowed}`,
        { option },
      );
    }
    const workers = (handlers as readonly BoundHandler[]).map(({ definition, handler }) =>
      this.queue(definition).process(handler as never, settings),
    );
    return joined(workers);
  }

  /**
   * Enqueues a payload into every queue with a matching binding, all or none; a queue gets it once. Resolves with one job
   * a queue when they are durable, and with none when no binding matches (`stats().unrouted`).
   * Rejects as `enqueue` does, and with ERR_MILLRACE_NAME_INVALID. Options apply to each job; `key` is refused.
   */
  publish(topic: string, payload: unknown, options: EnqueueOptions = {}): Promise<Job[]> {
    return this.#publisher.publish(topic, payload, options);
  }

  /**
   * Binds a queue to the topics that match a pattern: words with dots between them, `*` for one word, `#` for any number.
   * Resolves when that is durable; it lasts until `unbind`. Rejects with ERR_MILLRACE_NAME_INVALID.
   */
  async bind(pattern: string, queueName: string): Promise<void> {
    await this.#publisher.change(RecordType.BIND, pattern, this.core(queueName, undefined));
  }

  /** Takes a binding back; resolves when that is durable, also when there was none. */
  async unbind(pattern: string, queueName: string): Promise<void> {
    await this.#publisher.change(RecordType.UNBIND, pattern, this.core(queueName, undefined));
  }

  /** Names of the queues that have been used. */
  queues(): string[] {
    const names: string[] = [];
    const count = load(this.#shared.control, Word.QUEUES);
    for (let id = 1; id <= count; id++) {
      if ((this.#shared.queues[id * QueueWord.WORDS + QueueWord.FLAGS]! & QueueFlag.DECLARED) === 0) continue;
      names.push(nameOf(this.#shared, id));
    }
    return names;
  }

  /**
   * Rewrites the log so that it holds little more than what is alive. Goes on by itself whenever dead bytes outweigh live
   * ones; nobody has to call this, and nobody stops meanwhile. Rejects with ERR_MILLRACE_NO_SPACE when the disk is full.
   */
  async compact(): Promise<CompactionReport> {
    this.port.check('compact');
    const before = this.#extent();
    const { status } = await this.port.ask(Question.COMPACT, 0, 0);
    if (status === 0) throw new MillraceError('ERR_MILLRACE_NO_SPACE', 'cannot compact: the disk is full');
    const after = this.#extent();
    return {
      segmentsBefore: before.segments,
      segmentsAfter: after.segments,
      bytesBefore: before.bytes,
      bytesAfter: after.bytes,
    };
  }

  #extent(): { segments: number; bytes: number } {
    const { cells } = this.#shared;
    return {
      segments: cells[Cell.SEGMENT_NEWEST]! - cells[Cell.SEGMENT_FIRST]! + 1,
      bytes: cells[Cell.POSITION]! - cells[Cell.LOG_START]!,
    };
  }

  /** Plain numbers, from any thread, at the cost of reading them. */
  stats(): BrokerStats {
    const { cells, control, owners } = this.#shared;
    let threads = 0;
    for (let owner: number = Owner.FIRST; owner < OWNERS; owner++) {
      if (owners[owner * OwnerWord.WORDS + OwnerWord.STATE] === OwnerState.ALIVE) threads++;
    }
    return {
      jobs: cells[Cell.LIVE]!,
      enqueued: cells[Cell.ENQUEUED]!,
      done: cells[Cell.DONE]!,
      retried: cells[Cell.RETRIED]!,
      dead: cells[Cell.DEAD]!,
      expired: cells[Cell.EXPIRED]!,
      cancelled: cells[Cell.CANCELLED]!,
      batches: cells[Cell.BATCHES]!,
      flushes: cells[Cell.FLUSHES]!,
      records: cells[Cell.RECORDS]!,
      bytes: cells[Cell.BYTES]!,
      recovered: cells[Cell.RECOVERED]!,
      segments: this.#extent().segments,
      logBytes: this.#extent().bytes,
      compactions: cells[Cell.COMPACTIONS]!,
      synced: cells[Cell.SYNCED]!,
      memoryBytes: cells[Cell.ARENA_BYTES]!,
      ringUsed: this.port.ring.used(),
      ringSlots: this.#shared.sizes.ringSlots,
      threads,
      epoch: control[Word.EPOCH]!,
      checksum: this.#checksum,
      unrouted: load(control, Word.UNROUTED),
      diskFull: control[Word.DISK_FULL]!,
    };
  }

  /**
   * Takes no more jobs, lets running ones end, flushes, and lets go of the directory. The broker that `open` gave closes
   * for every attached thread; one from `attach` only for its own.
   */
  async close(options: CloseOptions = {}): Promise<void> {
    const timeoutMs = span('close', 'timeout', record('close', options).timeout, 0, INTERVAL_MS_MAX, 30_000);
    this.#closing ??= this.#close(timeoutMs);
    await this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #close(timeoutMs: number): Promise<void> {
    const until = performance.now() + timeoutMs;
    const left = (): number => Math.max(100, until - performance.now());
    this.port.closing = true;
    await Promise.all([...this.#workers].map((worker) => worker.close({ timeout: timeoutMs })));
    const { control } = this.#shared;
    if (load(control, Word.STATE) <= BrokerState.CLOSING && load(control, Word.POISON) === 0) await this.port.drained();
    const ownership = this.#ownership;
    if (ownership !== undefined) {
      store(control, Word.STATE, BrokerState.CLOSING);
      wake(control, Word.WRITER_ASLEEP);
      wake(control, Word.SCHEDULER_ASLEEP);
      await ownership.scheduler.join(left());
      store(control, Word.STATE, BrokerState.CLOSED);
      wake(control, Word.WRITER_ASLEEP);
      await ownership.writer.join(left());
      wakeOwners(this.#shared, 0xff);
    }
    this.#stop();
    this.port.close();
    if (ownership !== undefined && this.handle.storage === undefined) clearMarks(new DiskStorage(), this.handle.dir);
    await ownership?.lock.release();
  }

  #listen(): void {
    if (this.#closing !== undefined) return;
    let bits = 0;
    for (const [index, name] of EVENTS.entries()) if (this.listenerCount(name) > 0) bits |= eventBit(index);
    for (const worker of this.#workers) if (worker instanceof Fleet) bits |= eventBit(EVENT_OVERRUN);
    this.port.listen(bits);
  }

  #start(core: QueueCore, handler: Handler<never, unknown> | URL | string, settings: ProcessOptions): Worker {
    if (typeof handler !== 'function') return this.#fleet(handler, core, settings);
    return this.#track(new LocalWorker(core, handler, settings));
  }

  #fleet(module: URL | string, queue: QueueCore | undefined, settings: ProcessOptions): Worker {
    return this.#track(new Fleet(this, module, queue, settings));
  }

  #track(worker: Worker): Worker {
    this.#workers.add(worker);
    if (worker instanceof Fleet) this.#listen();
    return worker;
  }

  #onEvent(event: number, queue: number, id: number, bytes: Uint8Array | undefined): void {
    const name = EVENTS[event] as EventName;
    const what: JobEvent = { queue: nameOf(this.#shared, queue), id };
    if (name === 'dead') {
      const told = JSON.parse(Buffer.from(bytes!).toString()) as { reason: string; error?: StoredError };
      const error = told.error === undefined ? undefined : revivedError(told.error);
      this.#tell('dead', { ...what, reason: told.reason, error });
    } else if (name === 'failed') {
      this.#tell('failed', { ...what, error: revivedError(JSON.parse(Buffer.from(bytes!).toString()) as StoredError) });
    } else {
      this.#tell(name, what);
    }
  }

  /** What a listener throws is the process's to hear of, and must not stop this thread's port in the middle. */
  #tell<Name extends keyof BrokerEvents>(name: Name, what: BrokerEvents[Name][0]): void {
    try {
      (this as EventEmitter).emit(name, what);
    } catch (error) {
      process.nextTick(() => {
        throw error;
      });
    }
  }
}

function isBound(value: unknown): value is BoundHandler {
  if (typeof value !== 'object' || value === null) return false;
  const { definition, handler } = value as Partial<BoundHandler>;
  return typeof definition === 'object' && definition !== null && typeof handler === 'function';
}

/** Several workers as one. */
function joined(workers: readonly Worker[]): Worker {
  const each = (act: (worker: Worker) => void): void => {
    for (const worker of workers) act(worker);
  };
  return {
    ready: Promise.all(workers.map((worker) => worker.ready)).then(() => {}),
    pause: () => each((worker) => worker.pause()),
    resume: () => each((worker) => worker.resume()),
    close: async (options) => {
      await Promise.all(workers.map((worker) => worker.close(options)));
    },
    stats: () => {
      const sum = { running: 0, completed: 0, failed: 0, threads: 0 };
      each((worker) => {
        const stats = worker.stats();
        for (const key of ['running', 'completed', 'failed', 'threads'] as const) sum[key] += stats[key];
      });
      return sum;
    },
    async [Symbol.asyncDispose]() {
      await this.close();
    },
  };
}

/** No view of bytes can be longer in Node 20. */
const ARENA_BYTES_MAX = 2 ** 32 - 65_536;

/** Bytes of the log in a directory: what a replay may have to hold. */
function logBytes(storage: DiskStorage, dir: string): number {
  let bytes = 0;
  for (const name of storage.list(dir)) {
    if (!name.endsWith('.log')) continue;
    const file = storage.open(`${dir}/${name}`, 'read');
    bytes += file.size();
    file.close();
  }
  return bytes;
}

/**
 * Opens a directory, made if need be, and replays its log. One process, and one broker in it, at a time.
 * Rejects with ERR_MILLRACE_LOCKED (pid), _CORRUPT (file, position, reason), _NEWER_VERSION, _IO, _NO_SPACE,
 * _OPTION_INVALID.
 */
export async function open(dir: string, options: BrokerOptions = {}): Promise<Broker> {
  if (typeof dir !== 'string' || dir === '' || dir.includes('\0')) {
    throw new MillraceError('ERR_MILLRACE_OPTION_INVALID', `cannot open: dir is ${shown(dir)}, allowed is a path`, {
      option: 'dir',
    });
  }
  const settings = brokerSettings(record('open', options));
  const path = resolvePath(dir);
  const lock = await lockDirectory(path).catch((error: unknown) => {
    if (error instanceof MillraceError) throw error;
    const errno = (error as NodeJS.ErrnoException).code;
    throw new MillraceError(
      'ERR_MILLRACE_IO',
      `cannot open ${path}: ${(error as Error).message}`,
      { dir: path, errno },
      error,
    );
  });
  let threads: { writer: ServiceThread; scheduler: ServiceThread } | undefined;
  try {
    const storage =
      options.storage === undefined ? undefined : { ...options.storage, module: String(options.storage.module) };
    const clock: Clock = options.clock ?? new SystemClock();
    const replayBytes = logBytes(new DiskStorage(), path);
    const buffers = allocateShared({
      ringSlots: settings.ringSlots,
      // Jobs that were accepted are replayed whatever jobsMax says now.
      rows: Math.max(settings.jobsMax, Math.ceil(replayBytes / 64)) + 4096,
      arenaBytes: Math.min(
        ARENA_BYTES_MAX,
        Math.ceil(settings.memoryBytes * 1.25) + 4 * replayBytes + 64 * settings.ringSlots + (64 << 20),
      ),
    });
    const shared = new Shared(buffers);
    shared.cells[Cell.MONOTONIC_ZERO_MS] = clock.monotonicMs();
    const handle: BrokerHandle = { id: randomUUID(), dir: path, buffers, settings, clock: clock.shared, storage };
    threads = startThreads(handle);
    const recovery = await serve(threads, shared, settings.ringSlots);
    const broker = new Broker(handle, shared, clock, options.random);
    const watching = watchThreads(shared, broker, threads);
    clock.onChange?.(() => {
      wake(shared.control, Word.SCHEDULER_ASLEEP);
      wake(shared.control, Word.WRITER_ASLEEP);
    });
    broker.own({ ...threads, lock }, watching);
    void recovery;
    return broker;
  } catch (error) {
    await Promise.all([threads?.writer.worker.terminate(), threads?.scheduler.worker.terminate()]);
    await lock.release();
    throw error;
  }
}

function startThreads(handle: BrokerHandle): { writer: ServiceThread; scheduler: ServiceThread } {
  const { buffers, dir, settings, clock, storage } = handle;
  const schedulerData: SchedulerThreadData = {
    buffers,
    dir,
    options: {
      nativeFree: settings.nativeFree,
      segmentBytes: settings.segmentBytes,
      memoryBytes: settings.memoryBytes,
      clock,
      storage,
    },
  };
  const writerData: WriterThreadData = {
    buffers,
    dir,
    options: {
      segmentBytes: settings.segmentBytes,
      batchRecordsMax: settings.batchRecordsMax,
      lingerMs: settings.lingerMs,
      clock,
      storage,
    },
  };
  return {
    scheduler: new ServiceThread(
      new URL('../schedule/scheduler-thread.js', import.meta.url),
      schedulerData,
      'millrace scheduler',
    ),
    writer: new ServiceThread(new URL('../log/writer-thread.js', import.meta.url), writerData, 'millrace log writer'),
  };
}

/** Waits for the replay, gives the run its epoch and ids, and starts the writer: then everything may be used. */
async function serve(
  { writer, scheduler }: { writer: ServiceThread; scheduler: ServiceThread },
  shared: Shared,
  ringSlots: number,
): Promise<Recovery> {
  const found = await scheduler.message<SchedulerReply>();
  if (found.type === 'failed') throw revive(found);
  const { recovery } = found;
  const epoch = recovery.epoch + 1;
  // The ring's positions start at its length; a fresh directory's first job is 1.
  const idBase = Math.max(1, recovery.idHigh) - ringSlots;
  shared.cells[Cell.ID_BASE] = idBase;
  shared.control[Word.EPOCH] = epoch;
  const serving = writer.message<WriterReply>();
  writer.send({ recovery, idBase, epoch } satisfies StartWriter);
  const started = await serving;
  if (started.type === 'failed') throw revive(started);
  store(shared.control, Word.STATE, BrokerState.SERVING);
  return recovery;
}

function revive(failed: { code: string; message: string; facts: Readonly<Record<string, unknown>> }): MillraceError {
  const { code: _, name: __, ...facts } = failed.facts;
  return new MillraceError(failed.code as ErrorCode, failed.message, facts);
}

const LOOK_MS = 1000;

/** Marks owners dead when their threads exit, and poisons the broker when one of its own threads fails. */
function watchThreads(
  shared: Shared,
  broker: Broker,
  threads: { writer: ServiceThread; scheduler: ServiceThread },
): () => void {
  const stopListening = onThreadExit((thread, code) => {
    markThreadDead(shared, thread, code);
  });
  // Threads that nobody here started leave no event: look whether the system still has them.
  const looking = setInterval(() => {
    const seen = load(shared.control, Word.OWNERS_SEEN);
    for (let owner: number = Owner.FIRST; owner <= seen; owner++) {
      const block = owner * OwnerWord.WORDS;
      if (load(shared.owners, block + OwnerWord.STATE) !== OwnerState.ALIVE) continue;
      if (isObserved(load(shared.owners, block + OwnerWord.THREAD) - 1)) continue;
      if (!systemThreadExists(load(shared.owners, block + OwnerWord.SYSTEM_THREAD))) markDead(shared, owner);
    }
  }, LOOK_MS);
  looking.unref();
  for (const { worker } of [threads.writer, threads.scheduler]) {
    const failed = (error: Error): void => {
      if (load(shared.control, Word.POISON) === 0) {
        store(shared.control, Word.POISON, POISON_CODES.indexOf('ERR_MILLRACE_BREACH'));
      }
      wakeOwners(shared, 0xff);
      broker.port.attend();
      if (broker.listenerCount('error') > 0) broker.emit('error', error);
    };
    worker.on('error', failed);
    worker.on('exit', (code) => {
      if (load(shared.control, Word.STATE) === BrokerState.SERVING)
        failed(new Error(`a thread exited with code ${code}`));
    });
  }
  return () => {
    stopListening();
    clearInterval(looking);
  };
}

/** The broker of a handle, for another thread of the same process; synchronous. */
export function attach(handle: BrokerHandle): Broker {
  return attachBroker(handle);
}

export function attachBroker(handle: BrokerHandle): Broker {
  if (typeof handle !== 'object' || handle === null || !(handle.buffers?.control instanceof SharedArrayBuffer)) {
    throw new MillraceError('ERR_MILLRACE_OPTION_INVALID', `cannot attach: ${shown(handle)} is not a broker's handle`);
  }
  const shared = new Shared(handle.buffers);
  if (load(shared.control, Word.STATE) !== BrokerState.SERVING) {
    throw new MillraceError('ERR_MILLRACE_CLOSED', 'cannot attach: the broker is closed');
  }
  const broker = new Broker(handle, shared, clockOver(handle.clock), undefined);
  // The threads that this one starts: nobody else is told when they exit.
  broker.own(
    undefined,
    onThreadExit((thread, code) => markThreadDead(shared, thread, code)),
  );
  return broker;
}
