// What does a timer cost, all in? A million timers with delays of 1 to 1000 ms are inserted, every second one is
// cancelled, the others fire as time moves on by 1 ms a step. Beside the timing wheel: the 4-ary heap of the ready order,
// flatqueue (cancelling by a flag), and setTimeout (processor time, since it must wait for the real clock).
// Run: node dist/bench/wheel.js [timers] [rounds]

import { performance } from 'node:perf_hooks';
import FlatQueue from 'flatqueue';
import { ReadyHeap } from '../native-free/heap.js';
import { TimingWheel } from '../native-free/wheel.js';

const timers = Number(process.argv[2] ?? 1_000_000);
const rounds = Number(process.argv[3] ?? 7);
const NOW_MS = 1_764_000_000_000;
const DELAY_MAX_MS = 1000;

const delays = new Float64Array(timers);
let seed = 1;
for (let i = 0; i < timers; i++) {
  seed = (Math.imul(seed, 1_103_515_245) + 12_345) & 0x7fffffff;
  delays[i] = 1 + ((seed >>> 8) % DELAY_MAX_MS);
}

/** Milliseconds of inserting, cancelling and firing. */
type Phases = readonly [insert: number, cancel: number, fire: number];

function check(fired: number, outOfOrder: number): void {
  if (fired !== timers - Math.ceil(timers / 2) || outOfOrder > 0)
    throw new Error(`fired ${fired}, ${outOfOrder} early`);
}

function wheel(): Phases {
  const shared = (bytes: number) => new SharedArrayBuffer(bytes * timers);
  const columns = {
    when: new Float64Array(shared(8)),
    next: new Int32Array(shared(4)),
    prev: new Int32Array(shared(4)),
  };
  const wheel = new TimingWheel(columns, NOW_MS);
  const t0 = performance.now();
  for (let row = 0; row < timers; row++) wheel.insert(row, NOW_MS + delays[row]);
  const t1 = performance.now();
  for (let row = 0; row < timers; row += 2) wheel.cancel(row);
  const t2 = performance.now();
  let early = 0;
  let nowMs = NOW_MS;
  const fire = (row: number) => {
    if (columns.when[row] !== nowMs) early++;
  };
  let fired = 0;
  for (let ms = 1; ms <= DELAY_MAX_MS; ms++) {
    nowMs = NOW_MS + ms;
    fired += wheel.advance(nowMs, fire);
  }
  const t3 = performance.now();
  check(fired, early);
  return [t1 - t0, t2 - t1, t3 - t2];
}

function heap(): Phases {
  const columns = {
    priority: new Int32Array(timers),
    runAt: new Float64Array(timers),
    id: Float64Array.from({ length: timers }, (_, row) => row),
    position: new Int32Array(timers),
  };
  const heap = new ReadyHeap(columns);
  const t0 = performance.now();
  for (let row = 0; row < timers; row++) {
    columns.runAt[row] = NOW_MS + delays[row];
    heap.push(row);
  }
  const t1 = performance.now();
  for (let row = 0; row < timers; row += 2) heap.remove(row);
  const t2 = performance.now();
  let fired = 0;
  for (let nowMs = NOW_MS + 1; nowMs <= NOW_MS + DELAY_MAX_MS; nowMs++) {
    while (heap.size > 0 && columns.runAt[heap.peek()] <= nowMs) {
      heap.pop();
      fired++;
    }
  }
  const t3 = performance.now();
  check(fired, 0);
  return [t1 - t0, t2 - t1, t3 - t2];
}

function flatqueue(): Phases {
  const queue = new FlatQueue<number>();
  const cancelled = new Uint8Array(timers);
  const t0 = performance.now();
  for (let row = 0; row < timers; row++) queue.push(row, NOW_MS + delays[row]);
  const t1 = performance.now();
  for (let row = 0; row < timers; row += 2) cancelled[row] = 1;
  const t2 = performance.now();
  let fired = 0;
  for (let nowMs = NOW_MS + 1; nowMs <= NOW_MS + DELAY_MAX_MS; nowMs++) {
    while (queue.length > 0 && queue.peekValue()! <= nowMs) if (cancelled[queue.pop()!] === 0) fired++;
  }
  const t3 = performance.now();
  check(fired, 0);
  return [t1 - t0, t2 - t1, t3 - t2];
}

async function timeouts(): Promise<Phases> {
  const cpuMs = () => {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1000;
  };
  const handles: NodeJS.Timeout[] = [];
  let left = timers - Math.ceil(timers / 2);
  let done = () => {};
  const all = new Promise<void>((resolve) => {
    done = resolve;
  });
  const fire = () => {
    if (--left === 0) done();
  };
  const t0 = cpuMs();
  // Long enough that none fires while the others are still being inserted.
  for (let row = 0; row < timers; row++) handles.push(setTimeout(fire, delays[row] + 3000));
  const t1 = cpuMs();
  for (let row = 0; row < timers; row += 2) clearTimeout(handles[row]);
  const t2 = cpuMs();
  await all;
  return [t1 - t0, t2 - t1, cpuMs() - t2];
}

async function median(run: () => Phases | Promise<Phases>, count: number): Promise<Phases> {
  const results: Phases[] = [];
  for (let i = 0; i <= count; i++) {
    const phases = await run();
    if (i > 0 || count === 1) results.push(phases); // the first one compiles
    if (count === 1) break;
  }
  results.sort((a, b) => a[0] + a[1] + a[2] - (b[0] + b[1] + b[2]));
  return results[results.length >> 1];
}

const line = (cells: string[]) => cells.map((cell, i) => (i === 0 ? cell.padEnd(28) : cell.padStart(9))).join('');
console.log(line([`ns a timer (${timers})`, 'insert', 'cancel', 'fire', 'all in', 'ratio']));
let first = 0;
for (const [name, run, count] of [
  ['timing wheel', wheel, rounds],
  ['4-ary heap (ReadyHeap)', heap, rounds],
  ['flatqueue', flatqueue, rounds],
  ['setTimeout (cpu)', timeouts, 1],
] as const) {
  const [insert, cancel, fire] = await median(run, count);
  // Inserting is per timer; cancelling and firing per timer that was cancelled or fired; all in is per timer.
  const allIn = ((insert + cancel + fire) * 1e6) / timers;
  first ||= allIn;
  const cells = [(insert * 1e6) / timers, (cancel * 2e6) / timers, (fire * 2e6) / timers, allIn].map((ns) =>
    ns.toFixed(0),
  );
  console.log(line([name, ...cells, `x${(allIn / first).toFixed(1)}`]));
}
