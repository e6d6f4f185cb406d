// How many 8-byte items a second pass through the ring from P producer threads to C consumer threads, beside
// MessagePort? Every figure is the median of several fresh processes; every item is counted and summed.
// A thread that finds the ring full or empty spins a little, then parks behind a flag (rules A1, A2 of agent.ts): takers
// are woken by the next item, makers when the ring is half empty.
// Run: node dist/bench/hand-off.js [items] [runs] [log2 of the words of an entry, 2 to 4; default: the ready rings']
//      node dist/bench/hand-off.js one PATH PRODUCERS CONSUMERS CAPACITY BATCH SHIFT ITEMS   (one run, items a second)

import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { cpus } from 'node:os';
import { fileURLToPath } from 'node:url';
import { isMainThread, MessageChannel, type MessagePort, parentPort, Worker, workerData } from 'node:worker_threads';
import { wake } from '../native-free/agent.js';
import { add, load, store, wait } from '../native-free/atomics.js';
import { READY_ENTRY_SHIFT } from '../native-free/layout.js';
import { initialiseRing, Ring, type RingPlace } from '../native-free/ring.js';

const OWNERS = 16;
const LINE = 16;
/** Words of the control block, a line each. */
const At = {
  TAIL: 0,
  HEAD: 16,
  MAKERS_ASLEEP: 32,
  TAKERS_ASLEEP: 48,
  DONE: 64,
  INTENTS: 80,
  WORDS: 80 + OWNERS * LINE,
};
const SPINS = 200;
const SPIN_MS = 50;
const WARM_UP_ITEMS = 200_000;

interface Run {
  readonly path: 'ring' | 'port';
  readonly producers: number;
  readonly consumers: number;
  readonly capacity: number;
  readonly batch: number;
  readonly entryShift: number;
  readonly items: number;
}

interface Part {
  readonly run: Run;
  readonly role: 'maker' | 'taker';
  /** 1, 2, ...: of makers first, then of takers. */
  readonly owner: number;
  readonly control: SharedArrayBuffer;
  readonly entries: SharedArrayBuffer;
  readonly port?: MessagePort;
}

interface Tally {
  readonly count: number;
  readonly sum: number;
}

function placeOf({ run, control, entries }: Part): RingPlace {
  const words = new Int32Array(control);
  return {
    words: new Int32Array(entries),
    entries: 0,
    entryShift: run.entryShift,
    capacity: run.capacity,
    cursors: words,
    tail: At.TAIL,
    head: At.HEAD,
    intents: words,
    intentFirst: At.INTENTS,
    intentStride: LINE,
  };
}

/** Items of one maker: (its number, 0), (its number, 1), ... */
function shareOf(run: Run): number {
  return Math.floor(run.items / run.producers / run.batch) * run.batch;
}

function makeSingly(ring: Ring, part: Part, words: Int32Array): void {
  const count = shareOf(part.run);
  let spins = 0;
  for (let i = 0; i < count; ) {
    if (ring.tryPush(part.owner, i)) {
      i++;
      spins = 0;
      if (load(words, At.TAKERS_ASLEEP) === 1) wake(words, At.TAKERS_ASLEEP);
    } else if (++spins > SPINS) {
      parkMaker(ring, words, 1);
      spins = 0;
    }
  }
}

function makeBatches(ring: Ring, part: Part, words: Int32Array): void {
  const { batch } = part.run;
  const count = shareOf(part.run);
  const pairs = new Int32Array(2 * batch);
  let spins = 0;
  for (let i = 0; i < count; ) {
    for (let k = 0; k < batch; k++) {
      pairs[2 * k] = part.owner;
      pairs[2 * k + 1] = i + k;
    }
    while (!ring.tryPushMany(pairs, batch)) {
      if (++spins <= SPINS) continue;
      parkMaker(ring, words, batch);
      spins = 0;
    }
    i += batch;
    spins = 0;
    if (load(words, At.TAKERS_ASLEEP) === 1) wake(words, At.TAKERS_ASLEEP);
  }
}

function parkMaker(ring: Ring, words: Int32Array, count: number): void {
  store(words, At.MAKERS_ASLEEP, 1);
  if (ring.used() + count <= ring.capacity) return;
  wait(words, At.MAKERS_ASLEEP, 1, SPIN_MS);
}

function parkTaker(ring: Ring, words: Int32Array): void {
  store(words, At.TAKERS_ASLEEP, 1);
  if (ring.used() > 0 || load(words, At.DONE) !== 0) return;
  wait(words, At.TAKERS_ASLEEP, 1, SPIN_MS);
}

function takeSingly(ring: Ring, part: Part, words: Int32Array): Tally {
  let count = 0;
  let sum = 0;
  let spins = 0;
  for (;;) {
    if (ring.tryTake()) {
      count++;
      sum += ring.itemB;
      spins = 0;
      if (load(words, At.MAKERS_ASLEEP) === 1 && 2 * ring.used() <= ring.capacity) wake(words, At.MAKERS_ASLEEP);
    } else if (load(words, At.DONE) === part.run.producers && ring.used() === 0) {
      return { count, sum };
    } else if (++spins > SPINS) {
      parkTaker(ring, words);
      spins = 0;
    }
  }
}

function takeBatches(ring: Ring, part: Part, words: Int32Array): Tally {
  const { batch } = part.run;
  const pairs = new Int32Array(2 * batch);
  let count = 0;
  let sum = 0;
  let spins = 0;
  for (;;) {
    const taken = ring.tryTakeMany(pairs, batch);
    if (taken > 0) {
      count += taken;
      for (let k = 0; k < taken; k++) sum += pairs[2 * k + 1];
      spins = 0;
      if (load(words, At.MAKERS_ASLEEP) === 1 && 2 * ring.used() <= ring.capacity) wake(words, At.MAKERS_ASLEEP);
    } else if (load(words, At.DONE) === part.run.producers && ring.used() === 0) {
      return { count, sum };
    } else if (++spins > SPINS) {
      parkTaker(ring, words);
      spins = 0;
    }
  }
}

function workOnRing(part: Part): Tally | undefined {
  const words = new Int32Array(part.control);
  const ring = new Ring(placeOf(part), part.owner);
  const singly = part.run.batch === 1;
  if (part.role === 'taker') return singly ? takeSingly(ring, part, words) : takeBatches(ring, part, words);
  if (singly) makeSingly(ring, part, words);
  else makeBatches(ring, part, words);
  add(words, At.DONE, 1);
  wake(words, At.TAKERS_ASLEEP);
  return undefined;
}

async function makeMessages(part: Part, port: MessagePort): Promise<void> {
  const { batch } = part.run;
  const count = shareOf(part.run);
  for (let i = 0; i < count; i += batch) {
    if (batch === 1) {
      port.postMessage({ owner: part.owner, item: i });
    } else {
      const items: { owner: number; item: number }[] = [];
      for (let k = 0; k < batch; k++) items.push({ owner: part.owner, item: i + k });
      port.postMessage(items);
    }
    // Messages are not bounded: wait for the taker now and then, or memory grows.
    if (i % 10_000 < batch) {
      port.postMessage(null);
      await once(port, 'message');
    }
  }
  port.close();
}

async function takeMessages(part: Part, port: MessagePort): Promise<Tally> {
  let count = 0;
  let sum = 0;
  const want = shareOf(part.run);
  await new Promise<void>((resolve) => {
    port.on('message', (message: { item: number } | { item: number }[] | null) => {
      if (message === null) {
        port.postMessage(null);
        return;
      }
      if (Array.isArray(message)) {
        count += message.length;
        for (const { item } of message) sum += item;
      } else {
        count++;
        sum += message.item;
      }
      if (count === want) resolve();
    });
  });
  port.close();
  return { count, sum };
}

/** One run in this process. Returns items a second. */
async function measure(run: Run): Promise<number> {
  const control = new SharedArrayBuffer(At.WORDS * 4);
  const entries = new SharedArrayBuffer((run.capacity << run.entryShift) * 4);
  const channels = Array.from({ length: run.producers }, () => new MessageChannel());
  const workers: Worker[] = [];
  for (let i = 0; i < run.producers + run.consumers; i++) {
    const role = i < run.producers ? 'maker' : 'taker';
    const part: Part = { run, role, owner: i + 1, control, entries };
    const port = role === 'maker' ? channels[i].port1 : channels[i - run.producers].port2;
    const workerData = run.path === 'port' ? { ...part, port } : part;
    const transferList = run.path === 'port' ? [port] : [];
    if (i === 0 && run.path === 'ring') initialiseRing(placeOf(part));
    workers.push(new Worker(fileURLToPath(import.meta.url), { workerData, transferList }));
  }
  await Promise.all(workers.map((worker) => once(worker, 'message')));
  const answers = Promise.all(workers.map((worker) => once(worker, 'message') as Promise<[Tally | undefined]>));
  const from = performance.now();
  for (const worker of workers) worker.postMessage('go');
  const tallies = (await answers).map(([tally]) => tally);
  const seconds = (performance.now() - from) / 1000;
  let count = 0;
  let sum = 0;
  for (const tally of tallies) {
    count += tally?.count ?? 0;
    sum += tally?.sum ?? 0;
  }
  const share = shareOf(run);
  if (count !== run.producers * share || sum !== (run.producers * share * (share - 1)) / 2) {
    throw new Error(`${run.path} ${run.producers}P${run.consumers}C: took ${count} items, sum ${sum}`);
  }
  await Promise.all(workers.map((worker) => worker.terminate()));
  return count / seconds;
}

/** Compiles what a thread is about to do, on a ring of its own. */
function warmUp(part: Part): void {
  const run = { ...part.run, producers: 1, consumers: 1, items: WARM_UP_ITEMS };
  const entries = new SharedArrayBuffer(part.entries.byteLength);
  const own = { ...part, run, control: new SharedArrayBuffer(part.control.byteLength), entries };
  const words = new Int32Array(own.control);
  initialiseRing(placeOf(own));
  const ring = new Ring(placeOf(own), 1);
  const pairs = new Int32Array(2 * run.batch);
  for (let i = 0; i < WARM_UP_ITEMS; i += run.batch) {
    if (part.role === 'taker') {
      if (run.batch === 1) ring.tryPush(1, i);
      else ring.tryPushMany(pairs, run.batch);
      store(words, At.DONE, 1);
      workOnRing(own);
    } else {
      run.items = run.batch;
      workOnRing(own);
      ring.tryTakeMany(pairs, run.batch);
    }
  }
}

async function work(part: Part): Promise<void> {
  if (part.run.path === 'ring') warmUp(part);
  parentPort!.postMessage('ready');
  await once(parentPort!, 'message');
  let tally: Tally | undefined;
  if (part.run.path === 'ring') tally = workOnRing(part);
  else if (part.role === 'taker') tally = await takeMessages(part, part.port!);
  else await makeMessages(part, part.port!);
  parentPort!.postMessage(tally);
}

function medianOf(runs: number, run: Run): number {
  const { path, producers, consumers, capacity, batch, entryShift, items } = run;
  const args = [path, producers, consumers, capacity, batch, entryShift, items].map(String);
  const rates: number[] = [];
  for (let i = 0; i < runs; i++) {
    rates.push(Number(execFileSync(process.execPath, [fileURLToPath(import.meta.url), 'one', ...args])));
  }
  rates.sort((a, b) => a - b);
  return rates[runs >> 1];
}

function table(items: number, runs: number, entryShift: number): void {
  const shapes = [
    [1, 1],
    [2, 2],
    [4, 4],
  ];
  const row = (cells: string[]): void =>
    console.log(cells.map((cell, i) => (i === 0 ? cell.padEnd(30) : cell.padStart(16))).join(''));
  const ports = [1, 100].map((batch) =>
    shapes.map(([producers, consumers]) =>
      medianOf(runs, { path: 'port', producers, consumers, capacity: 0, batch, entryShift, items: items / 10 }),
    ),
  );
  const print = (name: string, rates: number[]): void =>
    row([name, ...rates.map((rate, i) => `${(rate / 1e6).toFixed(2)} x${(rate / ports[0][i]).toFixed(1)}`)]);
  console.log(`${cpus().length} x ${cpus()[0].model}, Node ${process.versions.node}, medians of ${runs} processes`);
  row([`M items/s, x one message`, ...shapes.map(([producers, consumers]) => `${producers}P${consumers}C`)]);
  for (const capacity of [1024, 65_536]) {
    for (const batch of [1, 16]) {
      const rates = shapes.map(([producers, consumers]) =>
        medianOf(runs, { path: 'ring', producers, consumers, capacity, batch, entryShift, items }),
      );
      print(`ring of ${capacity}${batch === 1 ? '' : `, by ${batch}`}`, rates);
    }
  }
  print('MessagePort, one a message', ports[0]);
  print('MessagePort, arrays of 100', ports[1]);
}

if (!isMainThread) {
  await work(workerData as Part);
} else if (process.argv[2] === 'one') {
  const [producers, consumers, capacity, batch, entryShift, items] = process.argv.slice(4).map(Number);
  const path = process.argv[3] === 'port' ? 'port' : 'ring';
  console.log(await measure({ path, producers, consumers, capacity, batch, entryShift, items }));
} else {
  table(
    Number(process.argv[2] ?? 4_000_000),
    Number(process.argv[3] ?? 5),
    Number(process.argv[4] ?? READY_ENTRY_SHIFT),
  );
}
