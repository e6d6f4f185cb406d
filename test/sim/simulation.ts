/**
 * The deterministic simulation: lives of one directory, one behind the other, with everything that can go wrong in
 * between, decided by a seed. Which agent steps next, what clients do, when time passes, what the disk does, who dies.
 *
 * Each seed also draws a profile: sizes of ring and segments, which faults there are at all, how fast each agent is
 * beside the others. So rare states (a full ring, a scheduler far behind, a log of twenty segments) are common in some.
 */
import { load, store } from '../../native-free/atomics.js';
import { Cell, LeaseState, OwnerWord, QueueFlag, QueueWord, Word } from '../../native-free/layout.js';
import { Level } from '../../native-free/record.js';
import { Ring } from '../../native-free/ring.js';
import type { Lease } from '../../src/client/lease.js';
import { trySettle } from '../../src/client/settle.js';
import { ManualClock } from '../../src/clock.js';
import { MillraceError } from '../../src/errors.js';
import type { Durability, EnqueueOptions, QueueOptions } from '../../src/options.js';
import { leaseState, withState } from '../../src/schedule/lease.js';
import { Question } from '../../src/schedule/questions.js';
import { DiskStopped, errno, MemoryStorage, type Sector } from '../log/memory-storage.js';
import { Chance, TraceHash } from './chance.js';
import { type Ending, type Entry, type Held, History } from './history.js';
import { type Client, DIR, Life, type LifeSettings, type RowView, settled } from './life.js';

const QUEUES = ['a', 'b'] as const;
const KEYS = ['k', 'l'] as const;
const HOUR_MS = 3_600_000;
const YEARS_MS = 10 * 365 * 24 * HOUR_MS;
const VISIBILITY_MS = 2000;
const LIVES_MAX = 6;
const CLIENTS_MAX = 4;
const FINAL_STEPS_MAX = 30_000;

export const FAULTS = ['eio', 'nospace', 'thread', 'kill', 'power', 'stop', 'recovery', 'close', 'clock'] as const;
export type FaultKind = (typeof FAULTS)[number];

export interface Report {
  readonly seed: number;
  readonly hash: string;
  readonly steps: number;
  readonly lives: number;
  readonly accepted: number;
  readonly leases: number;
  readonly done: number;
  readonly dead: number;
  readonly cancelled: number;
  readonly faults: Readonly<Record<FaultKind, number>>;
}

type Act =
  | 'enqueue'
  | 'enqueueMany'
  | 'tryEnqueue'
  | 'claim'
  | 'settle'
  | 'stale'
  | 'cancel'
  | 'get'
  | 'result'
  | 'pause'
  | 'resume'
  | 'compact';

interface Profile {
  readonly settings: LifeSettings;
  readonly queue: QueueOptions<never>;
  readonly levels: readonly Durability[];
  readonly steps: number;
  readonly agents: {
    readonly writer: number;
    readonly scheduler: number;
    readonly attend: number;
    readonly act: number;
  };
  readonly acts: Readonly<Record<Act, number>>;
  readonly faults: Readonly<Record<FaultKind, number>>;
  readonly payloadBytes: number;
  readonly passing: number;
}

function drawProfile(chance: Chance): Profile {
  const some = (weight: number): number => (chance.is(0.5) ? weight : 0);
  const speed = (): number => chance.of([1, 4, 12]);
  return {
    settings: {
      ringSlots: chance.of([64, 64, 128, 512]),
      segmentBytes: chance.of([2048, 4096, 16_384]),
      asideBytes: chance.of([0, 700]),
      batchRecordsMax: chance.of([1, 4, 1000]),
      lingerMs: chance.of([0, 0, 5]),
      memoryBytes: chance.of([2048, 1 << 20]),
      jobsMax: chance.of([6, 40, 1000]),
    },
    queue: {
      attempts: chance.of([1, 2, 4]),
      crashes: chance.of([1, 2, 3]),
      visibility: VISIBILITY_MS,
      backoff: { base: chance.of([0, 100, 1000]), max: 5000, jitter: chance.of(['full', 'none'] as const) },
      resultRetention: chance.of([0, 0, 500]),
    },
    levels: chance.of([['fsync'], ['fsync'], ['fsync', 'os'], ['fsync', 'os', 'memory']] as const),
    steps: chance.of([80, 160, 320]),
    agents: { writer: speed(), scheduler: speed(), attend: speed(), act: chance.of([2, 6]) },
    acts: {
      enqueue: 10,
      enqueueMany: some(3),
      tryEnqueue: some(3),
      claim: chance.of([4, 10]),
      settle: chance.of([6, 14]),
      stale: 1,
      cancel: some(2),
      get: some(1),
      result: some(1),
      pause: some(0.4),
      resume: 1,
      compact: some(1.5),
    },
    faults: {
      eio: some(0.06),
      nospace: some(0.15),
      thread: some(0.4),
      kill: some(0.08),
      power: some(0.08),
      stop: some(0.12),
      recovery: some(0.5),
      close: some(0.06),
      clock: some(0.2),
    },
    payloadBytes: chance.of([10, 300]),
    passing: chance.of([0.4, 2]),
  };
}

/** Runs one seed to its end. Throws what is wrong, naming the seed. */
export async function simulate(seed: number, trace?: (line: string) => void): Promise<Report> {
  const simulation = new Simulation(seed, trace);
  try {
    return await simulation.run();
  } catch (error) {
    throw new Error(`seed ${seed}, step ${simulation.steps}: ${(error as Error).message}`, { cause: error });
  }
}

class Simulation {
  steps = 0;
  readonly #seed: number;
  readonly #trace: ((line: string) => void) | undefined;
  readonly #hash = new TraceHash();
  readonly #chance: Chance;
  readonly #profile: Profile;
  readonly #clock = new ManualClock();
  readonly #history = new History();
  readonly #faults = Object.fromEntries(FAULTS.map((kind) => [kind, 0])) as Record<FaultKind, number>;
  /** What each client of this life holds, and the leases that are over for it. */
  readonly #held = new Map<Client, Held[]>();
  readonly #stale: Held[] = [];
  readonly #claiming = new Set<Client>();
  #disk = new MemoryStorage();
  #life!: Life;
  #lives = 0;
  #names = 0;
  #leases = 0;
  /** Promises of living clients that have not settled: claims that wait apart. */
  #pending = new Set<{ readonly client: Client; readonly what: string }>();
  #isStopped = false;
  #hasFailed = false;
  #roomSteps = 0;
  /** Disk operations when the log was found poisoned. */
  #poisonedAt = -1;
  #isEnding = false;
  #wrong: unknown;

  constructor(seed: number, trace: ((line: string) => void) | undefined) {
    this.#seed = seed;
    this.#trace = trace;
    this.#chance = new Chance(Math.imul(seed, 0x9e3779b1) ^ 0x5bd1e995);
    this.#profile = drawProfile(this.#chance);
  }

  async run(): Promise<Report> {
    this.#note('profile', JSON.stringify(this.#profile));
    await this.#open('close');
    while (this.steps < this.#profile.steps) await this.#step();
    await this.#end();
    const { entries, accepted, cancelled, done } = this.#history;
    let certain = 0;
    for (const sum of done.values()) certain += sum.certain;
    return {
      seed: this.#seed,
      hash: this.#hash.toString(),
      steps: this.steps,
      lives: this.#lives,
      accepted,
      leases: this.#leases,
      done: certain,
      dead: entries.filter(({ end }) => end === 'dead').length,
      cancelled,
      faults: this.#faults,
    };
  }

  #note(who: string, what: string): void {
    const line = `${this.steps} ${who}: ${what}`;
    this.#hash.add(line);
    this.#trace?.(line);
  }

  // One step of the world

  async #step(): Promise<void> {
    this.steps++;
    const { agents, faults, passing } = this.#profile;
    const life = this.#life;
    const woken = life.clients.filter(({ runnable }) => runnable);
    const next = this.#chance.weighted<string>({
      writer: life.writer.runnable ? agents.writer : 0,
      scheduler: life.scheduler.runnable ? agents.scheduler : 0,
      attend: woken.length * agents.attend,
      act: life.clients.length * agents.act,
      attach: life.clients.length < CLIENTS_MAX ? (life.clients.length === 0 ? 5 : 0.3) : 0,
      pass: passing,
      clock: faults.clock,
      eio: this.#disk.fault === undefined ? faults.eio : 0,
      nospace: this.#areDeclared() ? faults.nospace : 0,
      thread: life.clients.length > 0 ? faults.thread : 0,
      kill: faults.kill,
      power: faults.power,
      stop: this.#disk.fault === undefined ? faults.stop : 0,
      close: faults.close,
      reopen: life.isPoisoned ? 3 : 0,
    });
    await this.#does(next, woken);
    if (this.#roomSteps > 0 && --this.#roomSteps === 0) this.#disk.capacity = Number.POSITIVE_INFINITY;
    if (this.#isStopped) await this.#reopen(this.#chance.is(0.5) ? 'kill' : 'power', 'stop');
  }

  /** On a disk that is full from the first job of a queue on, the queue's declaration may come behind its jobs. */
  #areDeclared(): boolean {
    const { shared } = this.#life;
    return [1, 2].every((id) => (shared.queues[id * QueueWord.WORDS + QueueWord.FLAGS]! & QueueFlag.DECLARED) !== 0);
  }

  async #does(next: string, woken: readonly Client[]): Promise<void> {
    const life = this.#life;
    const chance = this.#chance;
    switch (next) {
      case 'writer':
        this.#note('writer', `${life.writer.step()}`);
        break;
      case 'scheduler':
        this.#note('scheduler', `${life.scheduler.step()}`);
        break;
      case 'attend': {
        const client = chance.of(woken);
        this.#note(client.name, 'attends');
        client.step();
        break;
      }
      case 'act':
        this.#act(chance.of(life.clients));
        break;
      case 'attach':
        this.#attach();
        break;
      case 'pass': {
        const ms = chance.of([1, 10, 100, 1000, VISIBILITY_MS + 1, 6000]);
        this.#pass(ms);
        break;
      }
      case 'clock': {
        const ms = chance.of([-HOUR_MS, HOUR_MS, YEARS_MS]);
        this.#faults.clock++;
        this.#note('clock', `steps by ${ms}`);
        this.#clock.step(ms);
        break;
      }
      case 'eio':
        this.#arm(chance.below(6));
        break;
      case 'nospace':
        this.#disk.capacity = this.#used() + chance.below(1500);
        this.#roomSteps = 20 + chance.below(80);
        this.#faults.nospace++;
        this.#note('disk', `has room for ${this.#disk.capacity} bytes`);
        break;
      case 'thread':
        this.#kill(chance.of(life.clients));
        break;
      case 'stop': {
        const n = 1 + chance.below(8);
        this.#stopAt(n);
        this.#note('disk', `stops at operation ${n}`);
        break;
      }
      case 'kill':
      case 'power':
        if (this.#lives >= LIVES_MAX) break;
        await this.#reopen(next, next);
        return;
      case 'close':
        if (this.#lives >= LIVES_MAX || life.isPoisoned || this.#disk.fault !== undefined || this.#roomSteps > 0) break;
        await this.#reopen('close', 'close');
        return;
      case 'reopen':
        await this.#reopen(chance.is(0.5) ? 'kill' : 'power', chance.is(0.5) ? 'kill' : 'power');
        return;
      default:
        throw new Error(`nobody does ${next}`);
    }
    await settled();
    this.#look();
  }

  #look(): void {
    if (this.#wrong !== undefined) throw this.#wrong;
    this.#history.wallMax = Math.max(this.#history.wallMax, this.#clock.wallMs());
    if (!this.#life.isPoisoned) return;
    if (this.#poisonedAt < 0) {
      this.#poisonedAt = this.#changes();
      this.#note('log', 'is poisoned');
      if (!this.#hasFailed && !this.#isStopped) throw new Error('poisoned, and the disk had not failed');
    } else if (this.#changes() !== this.#poisonedAt) {
      const last = this.#disk.operations.at(-1)!;
      throw new Error(`after the log was poisoned: ${last.kind} of ${last.name}`);
    }
  }

  /** Operations that change the disk. */
  #changes(): number {
    return this.#disk.operations.filter(({ kind }) => kind !== 'open').length;
  }

  #pass(ms: number): void {
    this.#note('clock', `${ms} ms pass`);
    this.#clock.advance(ms);
  }

  // The disk

  #used(): number {
    let bytes = 0;
    for (const name of this.#disk.list(DIR)) bytes += this.#disk.bytes(`${DIR}/${name}`).length;
    return bytes;
  }

  /** The n-th operation from now fails, once. */
  #arm(n: number): void {
    const disk = this.#disk;
    const at = disk.operations.length + n;
    disk.fault = (operation) => {
      if (operation.index !== at) return;
      disk.fault = undefined;
      this.#hasFailed = true;
      this.#faults.eio++;
      this.#note('disk', `EIO: ${operation.kind} of ${operation.name}`);
      throw errno('EIO');
    };
  }

  /** The n-th operation from now and everything after it does not happen. */
  #stopAt(n: number): void {
    const disk = this.#disk;
    const at = disk.operations.length + n - 1;
    disk.fault = (operation) => {
      if (operation.index < at) return;
      this.#isStopped = true;
      throw new DiskStopped(`stopped before ${operation.kind} of ${operation.name}`);
    };
  }

  #crashed(ending: Ending): MemoryStorage {
    const chance = this.#chance;
    this.#disk.fault = undefined;
    if (ending !== 'power') return this.#disk.restarted();
    const kinds: readonly Sector[] = chance.of([
      ['durable'],
      ['live'],
      ['durable', 'live'],
      ['durable', 'live', 'zero', 'ones'],
    ]);
    return this.#disk.crash(() => chance.of(kinds), chance.is(0.5) ? 'live' : 'durable');
  }

  // Lives

  /** Ends this life and begins the next. */
  async #reopen(ending: Ending, kind: FaultKind): Promise<void> {
    this.#faults[kind]++;
    this.#note('broker', ending === 'close' ? 'closes' : `ends by ${ending}`);
    if (ending === 'close') {
      for (const client of this.#life.clients) client.port.outbox.trySubmit();
      this.#life.close();
    }
    this.#disk.fault = undefined;
    this.#history.died(this.#life);
    this.#disk = this.#crashed(ending);
    await this.#open(ending);
  }

  async #open(ended: Ending): Promise<void> {
    const chance = this.#chance;
    let ending = ended;
    this.#held.clear();
    this.#stale.length = 0;
    this.#claiming.clear();
    this.#pending.clear();
    for (;;) {
      this.#isStopped = false;
      this.#hasFailed = false;
      this.#poisonedAt = -1;
      this.#roomSteps = 0;
      if (chance.is(this.#profile.faults.recovery) && !this.#isEnding) {
        if (chance.is(0.7)) this.#stopAt(1 + chance.below(14));
        else this.#arm(chance.below(14));
      }
      try {
        this.#life = new Life(this.#disk, this.#clock, this.#profile.settings, chance.next);
        break;
      } catch (error) {
        if (!this.#isStopped && !this.#hasFailed) throw error;
        if (this.#hasFailed && !(error instanceof MillraceError && error.code === 'ERR_MILLRACE_IO')) throw error;
        this.#faults.recovery++;
        const again = chance.is(0.5) ? 'kill' : 'power';
        if (again === 'power') ending = 'power';
        this.#note('broker', `did not open: ${(error as Error).message}; ${again}`);
        this.#disk = this.#crashed(again);
      }
    }
    this.#disk.fault = undefined;
    this.#lives++;
    this.#history.recovered(this.#life, ending);
    const { records, batches, cut } = this.#life.recovery;
    this.#note(
      'broker',
      `opens: ${records} records in ${batches} batches${cut === undefined ? '' : `, cut ${cut.bytes} bytes`}`,
    );
    await settled();
  }

  // Clients

  #attach(): Client {
    const client = this.#life.attach(`client ${++this.#names}`);
    this.#note(client.name, 'attaches');
    this.#held.set(client, []);
    return client;
  }

  /** A thread dies: anywhere between two instructions of an enqueue, a claim or an ack, or between those. */
  #kill(client: Client): void {
    const chance = this.#chance;
    const { shared } = this.#life;
    const { owner, ring } = client.port;
    const manner = chance.of(['idle', 'reserved', 'taken', 'claiming', 'leased', 'settled'] as const);
    this.#note(client.name, `dies, ${manner}`);
    this.#faults.thread++;
    const held = this.#held.get(client)!;
    if (manner === 'reserved') ring.tryReserve(1 + chance.below(3));
    if (manner === 'settled' && held.length > 0 && !this.#life.isPoisoned)
      trySettle(client.port, chance.of(held).lease);
    if (manner === 'taken' || manner === 'claiming' || manner === 'leased') {
      const core = chance.of([...client.cores.values(), undefined]);
      const group = core === undefined ? -1 : load(shared.queues, core.block + QueueWord.GROUP) - 1;
      if (
        core !== undefined &&
        group >= 0 &&
        new Ring(shared.readyPlace(group), owner).tryTakeMany(core.taken, 1) === 1
      ) {
        const row = core.taken[0]!;
        const word = core.taken[1]!;
        const claiming = withState(word, LeaseState.CLAIMING);
        store(shared.owners, client.block + OwnerWord.CLAIMING, row + 1);
        if (
          manner !== 'taken' &&
          Atomics.compareExchange(shared.lease, row, word, claiming) === word &&
          manner === 'leased'
        ) {
          shared.holder[row] = owner;
          shared.terms[row] = 0;
          store(shared.deadline, row, (client.port.monotonicMs() + VISIBILITY_MS) | 0);
          store(shared.lease, row, withState(word, LeaseState.LEASED));
          this.#history.claimedUnseen(Buffer.from(this.#life.jobs.payload(row)).toString());
        }
      }
    }
    this.#life.kill(client, 1);
    this.#history.killed(client);
    this.#held.delete(client);
    this.#claiming.delete(client);
    for (const entry of this.#history.entries)
      if (entry.outcome === 'pending' && this.#by.get(entry) === client) entry.outcome = 'unknown';
    for (const promise of [...this.#pending]) if (promise.client === client) this.#pending.delete(promise);
  }

  readonly #by = new Map<Entry, Client>();

  /** Follows a promise of a client: what comes of it is noted. */
  #follow<T>(
    client: Client,
    what: string,
    promise: Promise<T>,
    settle: (value: T) => string,
    refuse?: (code: string) => void,
  ): void {
    const token = { client, what };
    this.#pending.add(token);
    this.#guard(
      promise.then(
        (value) => {
          this.#pending.delete(token);
          this.#note(client.name, `${what}: ${settle(value)}`);
        },
        (error: unknown) => {
          if (!(error instanceof MillraceError)) throw error;
          this.#pending.delete(token);
          this.#note(client.name, `${what}: ${error.code}`);
          refuse?.(error.code);
        },
      ),
    );
  }

  #act(client: Client): void {
    const act = this.#chance.weighted(this.#profile.acts);
    try {
      this.#acts(client, act);
    } catch (error) {
      // Nothing can be asked of a broker that is poisoned.
      if (!(error instanceof MillraceError && error.code === 'ERR_MILLRACE_IO' && this.#life.isPoisoned)) throw error;
      this.#note(client.name, `${act}: ${error.code}`);
    }
  }

  #acts(client: Client, act: Act): void {
    const chance = this.#chance;
    const name = chance.of(QUEUES);
    const queue = client.queue(name, chance.is(0.3) ? this.#profile.queue : undefined);
    switch (act) {
      case 'enqueue':
        return this.#enqueue(client, name, 1);
      case 'enqueueMany':
        return this.#enqueue(client, name, 2 + chance.below(3));
      case 'tryEnqueue':
        return this.#tryEnqueue(client, name);
      case 'claim':
        return this.#claim(client, name);
      case 'settle': {
        const held = this.#held.get(client)!;
        if (held.length > 0) this.#settle(chance.of(held));
        return;
      }
      case 'stale': {
        const mine = this.#stale.filter((one) => one.client === client);
        if (mine.length === 0) return;
        const held = chance.of(mine);
        if (held.lease.ack()) throw new Error(`a stale ack of job ${held.entry.serial} was taken`);
        if (held.lease.extend(1000)) throw new Error(`a stale lease of job ${held.entry.serial} was extended`);
        this.#note(client.name, `stale ack of job ${held.entry.serial}: false`);
        return;
      }
      case 'cancel': {
        const entry = this.#known(name);
        if (entry === undefined) return;
        entry.isCancelAsked = true;
        const done = (worked: boolean): string => {
          this.#history.cancelledFor(entry, worked);
          return `${worked}`;
        };
        return this.#follow(client, `cancels job ${entry.serial}`, queue.cancel(entry.id!), done);
      }
      case 'get': {
        const entry = this.#known(name);
        if (entry === undefined) return;
        return this.#follow(client, `looks at job ${entry.serial}`, queue.get(entry.id!), (info) => {
          if (info === undefined) return 'gone';
          if (JSON.stringify(info.payload) !== entry.text) throw new Error(`job ${entry.serial} looks like another`);
          return `${info.state}, ${info.attempt} attempts, ${info.crashes} crashes`;
        });
      }
      case 'result': {
        const entry = this.#known(name);
        if (entry === undefined) return;
        return this.#follow(client, `waits for job ${entry.serial}`, queue.result(entry.id!), (value) =>
          JSON.stringify(value ?? null),
        );
      }
      case 'pause':
        return this.#follow(client, `pauses ${name}`, queue.pause(), () => 'done');
      case 'resume':
        return this.#follow(client, `resumes ${name}`, queue.resume(), () => 'done');
      case 'compact':
        return this.#follow(client, 'compacts', client.port.ask(Question.COMPACT, 0, 0), ({ status }) => `${status}`);
    }
  }

  #known(queue: string): Entry | undefined {
    const known = this.#history.entries.filter((entry) => entry.queue === queue && entry.outcome === 'accepted');
    return known.length === 0 ? undefined : this.#chance.of(known.slice(-20));
  }

  #drawItem(client: Client, name: string, keyed: boolean): { entry: Entry; options: EnqueueOptions } {
    const chance = this.#chance;
    const { settings } = client.cores.get(name)!;
    const wallMs = this.#clock.wallMs();
    const options = {
      durability: chance.of(this.#profile.levels),
      ...(chance.is(0.2) ? { delay: chance.of([1, 500, 3000, HOUR_MS / 2]) } : {}),
      ...(chance.is(0.3) ? { priority: chance.below(3) - 1 } : {}),
      ...(chance.is(0.2) ? { attempts: 1 + chance.below(3) } : {}),
      ...(keyed && chance.is(0.2) ? { key: chance.of(KEYS), keyRetention: chance.of([0, 0, 400]) } : {}),
    };
    const facts = {
      queue: name,
      level: { fsync: Level.FSYNC, os: Level.OS, memory: Level.MEMORY }[options.durability],
      attemptsMax: options.attempts ?? settings.attempts,
      crashesMax: settings.crashes,
      key: options.key ?? '',
      runAt: options.delay === undefined ? 0 : wallMs + options.delay,
    };
    const pad = 'x'.repeat(chance.below(this.#profile.payloadBytes));
    const entry = this.#history.enqueued(facts, (n) => ({ n, pad }));
    this.#by.set(entry, client);
    return { entry, options };
  }

  #enqueue(client: Client, name: string, count: number): void {
    const items = Array.from({ length: count }, () => this.#drawItem(client, name, count === 1));
    const queue = client.queue(name);
    const serials = items.map(({ entry }) => entry.serial).join(', ');
    this.#note(client.name, `enqueues ${serials} ${JSON.stringify(items.map(({ options }) => options))}`);
    const refuse = (code: string): void => {
      for (const { entry } of items) {
        if (code === 'ERR_MILLRACE_OUTCOME_UNKNOWN') entry.outcome = 'unknown';
        else this.#history.refuse(entry);
      }
    };
    if (count === 1) {
      const [{ entry, options }] = items as [(typeof items)[0]];
      this.#follow(
        client,
        `enqueued ${serials}`,
        queue.enqueue(JSON.parse(entry.text), options),
        ({ id, duplicate }) => {
          this.#history.accept(entry, id, duplicate);
          return duplicate ? `a duplicate of id ${id}` : `id ${id}`;
        },
        refuse,
      );
      return;
    }
    const many = items.map(({ entry, options }) => ({ payload: JSON.parse(entry.text), ...options }));
    const accept = (jobs: { id: number; duplicate: boolean }[]): string => {
      for (const [i, { id }] of jobs.entries()) this.#history.accept(items[i]!.entry, id, false);
      return `ids ${jobs.map(({ id }) => id).join(', ')}`;
    };
    this.#follow(client, `enqueued ${serials}`, queue.enqueueMany(many), accept, refuse);
  }

  #tryEnqueue(client: Client, name: string): void {
    const { entry, options } = this.#drawItem(client, name, false);
    const job = client.queue(name).tryEnqueue(JSON.parse(entry.text), options);
    this.#note(client.name, `tries to enqueue ${entry.serial} ${JSON.stringify(options)}: ${job !== undefined}`);
    if (job === undefined) return this.#history.refuse(entry);
    entry.id = job.id;
    const accept = (): string => {
      this.#history.accept(entry, job.id, false);
      return 'durable';
    };
    this.#follow(client, `enqueued ${entry.serial}`, job.durable, accept, (code) => {
      if (code === 'ERR_MILLRACE_OUTCOME_UNKNOWN') entry.outcome = 'unknown';
      else this.#history.refuse(entry);
    });
  }

  #claim(client: Client, name: string): void {
    const chance = this.#chance;
    const queue = client.queue(name);
    const visibility = chance.is(0.3) ? chance.of([200, 1500, 9000]) : undefined;
    const options = { max: 1 + chance.below(4), ...(visibility === undefined ? {} : { visibility }) };
    const span = (): number => visibility ?? client.cores.get(name)!.settings.visibilityMs;
    const take = (leases: readonly Lease[]): string => {
      this.#leases += leases.length;
      const held = leases.map((lease) => this.#history.claimed(client, lease, name, span()));
      this.#held.get(client)!.push(...held);
      return `jobs ${held.map(({ entry, lease }) => `${entry.serial} (attempt ${lease.attempt}, token ${lease.token})`).join(', ')}`;
    };
    const how = chance.of(['now', 'ask', 'wait'] as const);
    if (how === 'now') {
      this.#note(client.name, `claims from ${name}: ${take(queue.tryClaim(options))}`);
    } else if (how === 'ask') {
      this.#follow(client, `claimed from ${name}`, queue.claim(options), take);
    } else if (!this.#claiming.has(client)) {
      this.#wait(client, name, options, take);
    }
  }

  #wait(client: Client, name: string, options: object, take: (leases: readonly Lease[]) => string): void {
    this.#claiming.add(client);
    this.#note(client.name, `waits for jobs of ${name}`);
    const claim = client.queue(name).claim({ ...options, wait: Number.POSITIVE_INFINITY });
    this.#guard(
      claim.then(
        (leases) => {
          this.#claiming.delete(client);
          this.#note(client.name, `claimed from ${name}: ${take(leases)}`);
        },
        (error: MillraceError) => {
          this.#claiming.delete(client);
          this.#note(client.name, `waited in vain: ${error.code}`);
        },
      ),
    );
  }

  /** What is found wrong while promises go on is thrown by the step they go on behind. */
  #guard(promise: Promise<void>): void {
    promise.catch((error: unknown) => {
      this.#wrong ??= error;
    });
  }

  #settle(held: Held): void {
    const chance = this.#chance;
    const { lease, entry, client } = held;
    const act = chance.weighted({
      ack: 8,
      result: 1,
      durably: 1,
      fail: 3,
      later: 1,
      dead: 0.5,
      back: 1,
      extend: 2,
      watch: 1,
    });
    if (act === 'extend') {
      const ms = chance.of([100, 2000, 20_000]);
      const worked = lease.extend(ms);
      this.#note(client.name, `extends its lease on job ${entry.serial}: ${worked}`);
      this.#history.extended(held, worked, ms);
      if (!worked) this.#drop(held);
      return;
    }
    if (act === 'watch') {
      this.#note(client.name, `watches its lease on job ${entry.serial}: ${lease.signal.aborted}`);
      return;
    }
    if (act === 'durably' && !this.#life.isPoisoned) {
      const promise = lease.ackDurably();
      // The CAS is over when the call returns.
      const worked =
        leaseState(load(this.#life.shared.lease, lease.row)) === LeaseState.SETTLED &&
        !held.isSettled &&
        entry.latest === held;
      this.#history.settled(held, worked, 'acked');
      this.#drop(held);
      return this.#follow(client, `acks job ${entry.serial} durably`, promise, (taken) => {
        if (taken !== worked)
          throw new Error(`an ack of job ${entry.serial} that ${worked ? 'worked' : 'was stale'}: ${taken}`);
        return `${taken}`;
      });
    }
    let worked: boolean;
    if (act === 'ack') worked = lease.ack();
    else if (act === 'result') worked = lease.ack({ of: entry.serial });
    else if (act === 'fail') worked = lease.fail('failed');
    else if (act === 'dead') worked = lease.fail('failed for good', { dead: true });
    else if (act === 'later') worked = lease.fail('failed', { delay: 3000 });
    else worked = lease.giveBack(chance.of([0, 700]));
    this.#note(client.name, `${act} of job ${entry.serial}: ${worked}`);
    this.#history.settled(held, worked, act === 'ack' || act === 'result' ? 'acked' : 'none');
    if (worked && act === 'later') entry.notBefore = this.#clock.wallMs() + 3000;
    this.#drop(held);
  }

  #drop(held: Held): void {
    const list = this.#held.get(held.client)!;
    list.splice(list.indexOf(held), 1);
    this.#stale.push(held);
  }

  // The end

  /** Faults stop: everything has to come to an end, and stay so. */
  async #end(): Promise<void> {
    this.#isEnding = true;
    this.#note('world', 'faults stop');
    this.#disk.fault = undefined;
    this.#disk.capacity = Number.POSITIVE_INFINITY;
    this.#roomSteps = 0;
    if (this.#life.isPoisoned) await this.#reopen('kill', 'kill');
    const last = this.#attach();
    for (const name of QUEUES) {
      last.queue(name, this.#profile.queue);
      this.#follow(last, `resumes ${name}`, last.queue(name).resume(), () => 'done');
    }
    const closers = QUEUES.map((name) => ({ client: this.#attach(), name }));
    for (let idle = 0, count = 0; ; count++) {
      if (count > FINAL_STEPS_MAX) throw new Error(`never comes to an end: ${this.#stateOf()}`);
      this.steps++;
      for (const { client, name } of closers) {
        if (this.#claiming.has(client) || this.#held.get(client)!.length > 0) continue;
        this.#wait(client, name, { max: 4 }, (leases) => {
          this.#leases += leases.length;
          const held = leases.map((lease) => this.#history.claimed(client, lease, name, VISIBILITY_MS));
          this.#held.get(client)!.push(...held);
          return `jobs ${held.map(({ entry }) => entry.serial).join(', ')}`;
        });
      }
      const life = this.#life;
      const woken = life.clients.filter(({ runnable }) => runnable);
      const holding = life.clients.filter((client) => this.#held.get(client)!.length > 0);
      if (life.writer.runnable || life.scheduler.runnable || woken.length > 0 || holding.length > 0) {
        idle = 0;
        const next = this.#chance.weighted({
          writer: life.writer.runnable ? 1 : 0,
          scheduler: life.scheduler.runnable ? 1 : 0,
          attend: woken.length,
          settle: holding.length,
        });
        if (next !== 'settle') await this.#does(next, woken);
        else await this.#finish(this.#chance.of(holding));
        continue;
      }
      await settled();
      if (idle++ === 0) continue;
      if (this.#isQuiet()) break;
      if (this.#tryMakeRoom(last) || this.#tryResume(last)) continue;
      this.#passToNext();
    }
    await this.#check();
  }

  /** Mostly it acks; now and then a lease is left to its time. */
  async #finish(client: Client): Promise<void> {
    const held = this.#held.get(client)![0]!;
    if (this.#chance.is(0.1)) {
      this.#note(client.name, `forgets job ${held.entry.serial}`);
      this.#drop(held);
    } else if (this.#chance.is(0.2)) {
      this.#settle(held);
    } else {
      const worked = held.lease.ack();
      this.#note(client.name, `acks job ${held.entry.serial}: ${worked}`);
      this.#history.settled(held, worked, 'acked');
      this.#drop(held);
    }
    await settled();
    this.#look();
  }

  #isQuiet(): boolean {
    const { control } = this.#life.shared;
    if (this.#pending.size > 0 || control[Word.SUBMIT_TAIL] !== control[Word.SUBMIT_HEAD]) return false;
    return this.#life.rows().every(({ state }) => state === 'dead' || state === 'done');
  }

  /** A pause that was on its way when faults stopped. */
  #tryResume(client: Client): boolean {
    const { queues } = this.#life.shared;
    const paused = QUEUES.filter((name) => {
      const { block } = client.cores.get(name)!;
      return (queues[block + QueueWord.FLAGS]! & QueueFlag.PAUSED) !== 0;
    });
    for (const { what } of this.#pending) if (what.startsWith('resumes')) return false;
    for (const name of paused) this.#follow(client, `resumes ${name}`, client.queue(name).resume(), () => 'done');
    return paused.length > 0;
  }

  /** Dead jobs count as jobs: with nothing but dead ones, enqueues wait until somebody purges them. */
  #tryMakeRoom(client: Client): boolean {
    const rows = this.#life.rows();
    if (this.#pending.size === 0 || rows.length === 0 || rows.some(({ state }) => state !== 'dead')) return false;
    for (const { what } of this.#pending) if (what.startsWith('purges')) return false;
    this.#history.purged();
    for (const name of QUEUES) {
      this.#follow(client, `purges ${name}`, client.queue(name).deadLetters.purge(), (count) => `${count} jobs`);
    }
    return true;
  }

  /** Time goes on to whatever is due next. */
  #passToNext(): void {
    const life = this.#life;
    const nowMs = this.#clock.monotonicMs();
    const live = life.rows().filter(({ state }) => state !== 'dead' && state !== 'done');
    let ms = Math.min(life.writer.dueMs, life.scheduler.dueMs) - nowMs;
    if (live.length > 0 && live.every(({ state }) => state === 'delayed')) {
      ms = Math.max(1, Math.min(...live.map(({ runAt }) => runAt)) - this.#clock.wallMs());
    }
    if (!Number.isFinite(ms)) throw new Error(`stalls: ${this.#stateOf()}`);
    this.#pass(Math.max(1, ms));
  }

  #stateOf(): string {
    const { control } = this.#life.shared;
    const rows = this.#life.rows().map(({ text, state }) => `${(JSON.parse(text) as { n: number }).n} ${state}`);
    const waiting = `pending: ${[...this.#pending]
      .slice(0, 9)
      .map(({ client, what }) => `${client.name} ${what}`)
      .join(', ')}`;
    return `${waiting}, ring ${control[Word.SUBMIT_HEAD]}..${control[Word.COMMITTED]}..${control[Word.SUBMIT_TAIL]}, jobs: ${rows.join(', ')}`;
  }

  async #check(): Promise<void> {
    const life = this.#life;
    const { control, queues, queueCells, cells } = life.shared;
    const history = this.#history;
    history.ended(life);
    const rows = life.rows();
    const expect = (what: string, found: number, wanted: number): void => {
      if (found !== wanted) throw new Error(`at the end ${what} is ${found}, not ${wanted}`);
    };
    expect('JOBS_RESERVED', control[Word.JOBS_RESERVED]!, rows.length);
    expect('LIVE', cells[Cell.LIVE]!, rows.length);
    expect('slots in use', control[Word.SUBMIT_TAIL]! - control[Word.SUBMIT_HEAD]!, 0);
    for (const name of QUEUES) {
      const { block } = life.clients.at(-1)!.queue(name) && life.clients.at(-1)!.cores.get(name)!;
      for (const word of ['LIVE', 'DELAYED', 'LEASED', 'SETTLING'] as const) {
        expect(`${word} of ${name}`, queues[block + QueueWord[word]]!, 0);
      }
      const dead = rows.filter(({ queue, state }) => queue === name && state === 'dead').length;
      expect(`DEAD of ${name}`, queues[block + QueueWord.DEAD]!, dead);
      const { certain, possible } = history.done.get(name) ?? { certain: 0, possible: 0 };
      const done = queueCells[(block + QueueWord.DONE) >>> 1]!;
      if (done < certain || done > certain + possible) {
        throw new Error(`at the end DONE of ${name} is ${done}, not ${certain} to ${certain + possible}`);
      }
    }
    life.close();
    history.died(life);
    this.#disk = this.#disk.crash();
    await this.#open('power');
    // How long those that are done are kept is the clock's to say.
    const idsOf = (views: readonly RowView[]): string => {
      const levelOf = (view: RowView): number => history.entryOf(view.text).level;
      const logged = views.filter((view) => view.state !== 'done' && levelOf(view) !== Level.MEMORY);
      const ids = logged.map(({ id }) => id);
      return ids.sort((a, b) => a - b).join();
    };
    const [kept, lasting] = [idsOf(this.#life.rows()), idsOf(rows)];
    if (kept !== lasting) throw new Error(`after a close there are ${kept}, not ${lasting}`);
    this.#note('world', `ends with the jobs ${kept}`);
  }
}
