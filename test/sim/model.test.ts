/**
 * Model-based: commands against a broker of one thread (`life.ts`) and against a map of jobs, which have to agree on
 * every job after every command. MILLRACE_SEED and MILLRACE_PATH replay what a failure prints, MILLRACE_MODEL_RUNS says
 * how many runs there are.
 */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { wake } from '../../native-free/agent.js';
import { LeaseState, Word } from '../../native-free/layout.js';
import type { Lease } from '../../src/client/lease.js';
import { trySettle } from '../../src/client/settle.js';
import { ManualClock } from '../../src/clock.js';
import { leaseState } from '../../src/schedule/lease.js';
import { Question } from '../../src/schedule/questions.js';
import { DiskStopped, MemoryStorage } from '../log/memory-storage.js';
import { Chance } from './chance.js';
import { type Client, Life, settled } from './life.js';

const RUNS = Number(process.env.MILLRACE_MODEL_RUNS ?? 2000);
const COMMANDS = 100;
const SEED = Number(process.env.MILLRACE_SEED ?? 20_261_201);
const HOUR_MS = 3_600_000;
const QUEUE = {
  attempts: 3,
  crashes: 2,
  visibility: 1000,
  backoff: { base: 100, max: 1000, jitter: 'none' },
} as const;
const SETTINGS = {
  ringSlots: 512,
  segmentBytes: 4096,
  asideBytes: 500,
  batchRecordsMax: 1000,
  lingerMs: 0,
  memoryBytes: 4096,
  jobsMax: 1000,
};

interface ModelJob {
  readonly id: number;
  readonly text: string;
  readonly priority: number;
  readonly enqueuedAt: number;
  state: 'ready' | 'delayed' | 'leased' | 'dead';
  attempts: number;
  crashes: number;
  runAt: number;
  /** Its time is one that somebody asked for, or that of a retry: not that of its enqueue. */
  waits: boolean;
  holder: number;
  deadlineMs: number;
}

interface Taken {
  readonly lease: Lease;
  readonly client: number;
}

type Step = readonly [kind: (typeof KINDS)[number], a: number, b: number];

const KINDS = [
  'enqueue',
  'claim',
  'ack',
  'stale',
  'foreign',
  'fail',
  'extend',
  'tick',
  'jump',
  'crash',
  'crashInRecovery',
  'compact',
  'killThread',
  'reopen',
] as const;

class World {
  readonly jobs = new Map<number, ModelJob>();
  readonly clock = new ManualClock();
  readonly chance = new Chance(7);
  disk = new MemoryStorage();
  life!: Life;
  clients: Client[] = [];
  held: Taken[] = [];
  over: Taken[] = [];
  enqueued = 0;

  /** False: the disk stopped at that operation, before the broker was open. */
  async tryOpen(stopAt: number): Promise<boolean> {
    try {
      if (stopAt < Number.POSITIVE_INFINITY) this.disk.stopAt(stopAt);
      this.life = new Life(this.disk, this.clock, SETTINGS, this.chance.next);
    } catch (error) {
      if (error instanceof DiskStopped) return false;
      throw error;
    } finally {
      this.disk.fault = undefined;
    }
    await this.begin();
    return true;
  }

  async open(): Promise<void> {
    expect(await this.tryOpen(Number.POSITIVE_INFINITY)).toBe(true);
  }

  async begin(): Promise<void> {
    this.clients = [];
    this.held = [];
    this.over = [];
    for (const index of [0, 1]) await this.attach(index);
    // Leases are gone with the process, and what waits for the wall clock is sorted in anew.
    const wallMs = this.clock.wallMs();
    for (const job of this.jobs.values()) {
      if (job.state === 'dead') continue;
      job.state = job.waits && job.runAt > wallMs ? 'delayed' : 'ready';
      // One that ran again at the time of its enqueue: its image does not tell a retry from a job that never ran.
      if (job.waits && job.runAt === job.enqueuedAt) job.state = this.isDelayed(job.id) ? 'delayed' : 'ready';
    }
  }

  isDelayed(id: number): boolean {
    return this.life.rows().some((row) => row.id === id && row.state === 'delayed');
  }

  async attach(index: number): Promise<void> {
    const client = this.life.attach(`client ${index}`);
    this.clients[index] = client;
    client.queue('jobs', QUEUE);
    client.cores.get('jobs')!.group();
    await this.quiesce();
  }

  /** Lets everybody work until nobody has anything to do; no time passes. */
  async quiesce(): Promise<void> {
    const { writer, scheduler, clients } = this.life;
    for (let steps = 0; ; steps++) {
      if (steps > 5000) throw new Error('it never comes to rest');
      const woken = clients.filter(({ runnable }) => runnable);
      if (steps > 0 && !writer.runnable && !scheduler.runnable && woken.length === 0) return;
      while (scheduler.runnable || writer.runnable) {
        if (writer.runnable) writer.step();
        if (scheduler.runnable) scheduler.step();
      }
      for (const client of woken) client.step();
      await settled();
    }
  }

  /** What `clock.onChange` does in a broker. */
  stir(): void {
    wake(this.life.shared.control, Word.SCHEDULER_ASLEEP);
    wake(this.life.shared.control, Word.WRITER_ASLEEP);
  }

  // What the model does when time has passed.

  expire(): void {
    const wallMs = this.clock.wallMs();
    for (const job of this.jobs.values()) {
      if (job.state === 'leased' && this.clock.monotonicMs() >= job.deadlineMs) this.failed(job, 0);
      if (job.state === 'delayed' && job.runAt <= wallMs) job.state = 'ready';
    }
  }

  /** An attempt failed: it runs again after its backoff, or is dead. */
  failed(job: ModelJob, delayMs: number): void {
    job.attempts++;
    this.again(job, job.attempts >= QUEUE.attempts, delayMs || backoffOf(job.attempts));
  }

  again(job: ModelJob, isDead: boolean, delayMs: number): void {
    if (isDead) {
      job.state = 'dead';
      return;
    }
    job.runAt = this.clock.wallMs() + delayMs;
    job.waits = true;
    job.state = delayMs > 0 ? 'delayed' : 'ready';
  }

  /** The job that has to be claimed next. */
  first(): ModelJob | undefined {
    const ready = [...this.jobs.values()].filter(({ state }) => state === 'ready');
    return ready.sort((a, b) => a.priority - b.priority || a.runAt - b.runAt || a.id - b.id)[0];
  }

  /** The model's job of a lease, while that is held. */
  jobOf({ lease, client }: Taken): ModelJob | undefined {
    const job = this.jobs.get(lease.id);
    return job?.state === 'leased' && job.holder === client ? job : undefined;
  }

  agrees(): void {
    const { lease } = this.life.shared;
    const real = this.life.rows().map(({ row, id, text, state, attempts, crashes, runAt }) => {
      const isLeased = state === 'offered' && leaseState(lease[row]!) === LeaseState.LEASED;
      const shown = state === 'offered' ? (isLeased ? 'leased' : 'ready') : state;
      return lineOf({ id, text, state: shown, attempts, crashes, runAt });
    });
    const model = Array.from(this.jobs.values(), lineOf);
    if (real.sort().join() !== model.sort().join()) expect(real).toEqual(model);
  }
}

function lineOf(job: Pick<ModelJob, 'id' | 'text' | 'attempts' | 'crashes' | 'runAt'> & { state: string }): string {
  const { id, text, state, attempts, crashes, runAt } = job;
  return `${id} ${state} ${attempts} attempts ${crashes} crashes ${state === 'dead' ? '' : runAt} ${text}`;
}

function backoffOf(attempts: number): number {
  return Math.min(QUEUE.backoff.max, QUEUE.backoff.base * 2 ** (attempts - 1));
}

/** One command; `a` and `b` choose among what there is. */
class Command {
  constructor(readonly step: Step) {}

  async run(world: World): Promise<void> {
    const [kind, a, b] = this.step;
    executed[kind]++;
    await this.#run(world, kind, a, b);
    await world.quiesce();
    world.agrees();
  }

  async #run(world: World, kind: Step[0], a: number, b: number): Promise<void> {
    const index = a % 2;
    const queue = world.clients[index]!.queue('jobs');
    const nowMs = world.clock.monotonicMs();
    switch (kind) {
      case 'enqueue': {
        const payload = { n: world.enqueued++, pad: 'x'.repeat(b * 4) };
        const delay = [0, 0, 50, 700][a % 4]!;
        const priority = (b % 3) - 1;
        const promise = queue.enqueue(payload, delay > 0 ? { delay, priority } : { priority });
        await world.quiesce();
        const { id } = await promise;
        const runAt = world.clock.wallMs() + delay;
        const state = delay > 0 ? 'delayed' : 'ready';
        const text = JSON.stringify(payload);
        const fresh = {
          enqueuedAt: runAt - delay,
          attempts: 0,
          crashes: 0,
          waits: delay > 0,
          holder: 0,
          deadlineMs: 0,
        };
        world.jobs.set(id, { id, text, priority, state, runAt, ...fresh });
        return;
      }
      case 'claim': {
        const leases = queue.tryClaim();
        const job = world.first();
        expect(leases.map(({ id, attempt, crashes }) => ({ id, attempt, crashes }))).toEqual(
          job === undefined ? [] : [{ id: job.id, attempt: job.attempts + 1, crashes: job.crashes }],
        );
        if (job === undefined) return;
        Object.assign(job, { state: 'leased', holder: index, deadlineMs: nowMs + QUEUE.visibility });
        for (const taken of world.held) if (taken.lease.id === job.id) world.over.push(taken);
        world.held = world.held.filter(({ lease }) => lease.id !== job.id);
        world.held.push({ lease: leases[0]!, client: index });
        return;
      }
      case 'ack':
      case 'fail':
      case 'extend': {
        const taken = world.held[b % (world.held.length || 1)];
        if (taken === undefined) return;
        const job = world.jobOf(taken);
        const { lease } = taken;
        if (kind === 'extend') {
          expect(lease.extend(1 + b * 20)).toBe(job !== undefined);
          if (job !== undefined) job.deadlineMs = nowMs + 1 + b * 20;
          return;
        }
        const isDead = kind === 'fail' && a % 5 === 0;
        const worked = kind === 'ack' ? lease.ack() : lease.fail('failed', isDead ? { dead: true } : {});
        expect(worked).toBe(job !== undefined);
        world.held.splice(world.held.indexOf(taken), 1);
        world.over.push(taken);
        if (job === undefined) return;
        if (kind === 'ack') world.jobs.delete(job.id);
        else if (isDead) Object.assign(job, { state: 'dead', attempts: job.attempts + 1 });
        else world.failed(job, 0);
        return;
      }
      case 'stale': {
        const taken = world.over[b % (world.over.length || 1)];
        if (taken === undefined) return;
        expect([taken.lease.ack(), taken.lease.fail(), taken.lease.extend(5000), taken.lease.held]).toEqual(
          Array(4).fill(false),
        );
        return;
      }
      case 'foreign': {
        const taken = world.held[b % (world.held.length || 1)];
        if (taken === undefined) return;
        const { row, word, id, queue: of, level } = taken.lease;
        for (const other of [word + 8, word - 8]) {
          const forged = { row, word: other, id, queue: of, level };
          expect(trySettle(world.clients[index]!.port, forged)).toBe(false);
        }
        return;
      }
      case 'tick':
        world.clock.advance([1, 10, 100, 999, 1000, 5000][a % 6]!);
        world.stir();
        return world.expire();
      case 'jump':
        world.clock.step([-HOUR_MS, HOUR_MS, -50, 50][a % 4]!);
        world.stir();
        return world.expire();
      case 'crash':
        world.disk = a % 2 === 0 ? world.disk.restarted() : world.disk.crash();
        return world.open();
      case 'crashInRecovery':
        for (let n = 1 + (b % 9); ; n += 3) {
          world.disk = a % 2 === 0 ? world.disk.restarted() : world.disk.crash();
          if (await world.tryOpen(n)) return;
        }
      case 'compact': {
        let isDone = false;
        const promise = world.clients[index]!.port.ask(Question.COMPACT, 0, 0).finally(() => {
          isDone = true;
        });
        await world.quiesce();
        while (!isDone) {
          world.clock.advance(1);
          world.stir();
          world.expire();
          await world.quiesce();
        }
        expect((await promise).status).toBe(1);
        return;
      }
      case 'killThread': {
        world.life.kill(world.clients[index]!, 1);
        for (const job of world.jobs.values()) {
          if (job.state !== 'leased' || job.holder !== index) continue;
          job.crashes++;
          world.again(job, job.crashes >= QUEUE.crashes, 0);
        }
        world.held = world.held.filter(({ client }) => client !== index);
        world.over = world.over.filter(({ client }) => client !== index);
        await world.quiesce();
        return world.attach(index);
      }
      case 'reopen':
        world.life.close();
        world.disk = world.disk.crash();
        return world.open();
    }
  }

  toString(): string {
    return this.step.join(' ');
  }
}

const executed = Object.fromEntries(KINDS.map((kind) => [kind, 0])) as Record<Step[0], number>;

const weights: Record<Step[0], number> = {
  enqueue: 20,
  claim: 22,
  ack: 10,
  stale: 5,
  foreign: 4,
  fail: 10,
  extend: 5,
  tick: 10,
  jump: 4,
  crash: 0.3,
  crashInRecovery: 0.3,
  compact: 1.5,
  killThread: 2,
  reopen: 0.3,
};

const command = fc
  .tuple(
    fc.oneof(...KINDS.map((kind) => ({ arbitrary: fc.constant(kind), weight: Math.round(weights[kind] * 10) }))),
    fc.nat(59),
    fc.nat(99),
  )
  .map((step) => new Command(step));

it(`agrees with a map of jobs, ${RUNS} runs of ${COMMANDS} commands, seed ${SEED}`, {
  timeout: RUNS * 1000,
}, async () => {
  // As many on average: shrinking has to be free to leave some out.
  const commands = fc.array(command, { maxLength: Math.round(2.2 * COMMANDS), size: 'max' });
  const property = fc.asyncProperty(commands, async (steps) => {
    const world = new World();
    await world.open();
    for (const step of steps) await step.run(world);
  });
  const path = process.env.MILLRACE_PATH;
  await fc.assert(property, { seed: SEED, numRuns: RUNS, ...(path === undefined ? {} : { path, endOnFailure: true }) });
  const total = Object.values(executed).reduce((sum, count) => sum + count, 0);
  const counts = Object.entries(executed).map(([kind, count]) => `${kind} ${count}`);
  console.log(`model: seed ${SEED}, runs ${RUNS}, commands: ${counts.join(', ')}; disagreements 0 of ${total}`);
});
