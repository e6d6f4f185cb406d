/**
 * A machine on which the production sources of the ring and the agent run as virtual threads, one access at a time.
 *
 * A thread's operation is an ordinary function. It is started anew for every step: accesses it has made before are
 * answered from its log, the next one is performed, and the one after that throws it out again (search by re-execution,
 * after VeriSoft). So production code needs no generators and no callbacks: only its atomics and arrays are exchanged.
 *
 * V1  All that tells two situations apart is in `state`. Copying an old `state` back is going back in time.
 * V2  From operation to operation a thread keeps its registers and the head it saw last, and nothing else.
 * V3  A refused operation is tried again only once a word that it read has changed.
 * V4  Loads of a word that only the thread itself writes are no steps: they commute with everything.
 * V5  A loop's round forgets the rounds before it, but for the head it saw; a round in which nothing it read has
 *     changed, and in which it changed nothing, would be repeated for ever and so blocks. (Walks check V2 and V5.)
 */
import type { RingPlace } from '../../native-free/ring.js';
import { type Access, KIND_NAMES, Kind, Next, type Oracle, type Program, Status, Violation } from './program.js';

/** Words of one thread in `state`. */
const Field = {
  STATUS: 0,
  /** A word that this round has read was changed since. */
  DIRTY: 1,
  HEAD_SEEN: 2,
  HEAD_NEXT: 3,
  WAITS_ON: 4,
  WITNESS: 5,
  /** One bit for each word that this round, or the refused one before, has read. */
  READ_LOW: 6,
  READ_HIGH: 7,
  LAST: 8,
  /** 1 + where in the log the loop began. */
  LOOP_FROM: 9,
  /** 1 + where in the log stands a load of the head before the loop. */
  HEAD_FROM: 10,
  LOGGED: 11,
  REGISTERS: 12,
} as const;
const REGISTERS = 4;
const LOG = Field.REGISTERS + REGISTERS;
const LOG_MAX = 200;
const THREAD_WORDS = LOG + LOG_MAX;
const MEMORY_MAX = 64;

/** Thrown through production code to stop it: no error, so that no stack is collected millions of times. */
const PAUSE = { pause: true };

export class Machine {
  state = new Int32Array(0);
  programs: readonly Program[] = [];
  oracle!: Oracle;
  /** For walks and traces: called after each access, and when an operation has returned, before it is settled. */
  observer: ((access: Access) => void) | undefined;
  returned: ((thread: number, outcome: number) => void) | undefined;

  readonly #regions = new Map<object, ReadonlyMap<number, number>>();
  readonly #names: string[] = [];
  #words = 0;
  #bookAt = 0;
  #headAt = -1;
  #privateAt = -1;

  #thread = 0;
  #block = 0;
  #cursor = 0;
  #mayStep = false;
  #building = false;
  #shadow: readonly Access[] | undefined;

  /** Model memory that production code takes for an Int32Array with these words. */
  region(words: number | readonly number[], label: (index: number) => string): Int32Array {
    const indexes = typeof words === 'number' ? Array.from({ length: words }, (_, index) => index) : words;
    const addresses = new Map(indexes.map((index, i) => [index, this.#words + i]));
    this.#words += indexes.length;
    this.#names.push(...indexes.map(label));
    const traps: ProxyHandler<object> = {
      get: (_, index) => this.#access(Kind.READ, this.address(proxy, Number(index)), 0, 0),
      set: (_, index, value: number) => {
        this.#access(Kind.WRITE, this.address(proxy, Number(index)), value | 0, 0);
        return true;
      },
    };
    const proxy = new Proxy({}, traps) as Int32Array;
    this.#regions.set(proxy, addresses);
    return proxy;
  }

  /** Call once all regions are there. `bookWords` are the oracle's, from `bookAt` on. */
  start(programs: readonly Program[], oracle: Oracle, bookWords: number): void {
    if (this.#words > MEMORY_MAX) throw new Error(`a machine has ${MEMORY_MAX} words, not ${this.#words}`);
    this.programs = programs;
    this.oracle = oracle;
    this.#bookAt = this.#words + programs.length * THREAD_WORDS;
    this.state = new Int32Array(this.#bookAt + bookWords);
  }

  /** What a ring's threads remember of the head (V2), and the word that only thread n writes, at `privateAt` + n (V4). */
  follow(place: RingPlace, privateAt: number): void {
    this.#headAt = this.address(place.cursors, place.head);
    this.#privateAt = privateAt;
    for (let thread = 0; thread < this.programs.length; thread++) {
      const head = this.programs[thread]!.remembersHead ? this.state[this.#headAt]! : 0;
      this.state[this.#blockOf(thread) + Field.HEAD_SEEN] = head;
      this.state[this.#blockOf(thread) + Field.HEAD_NEXT] = head;
    }
  }

  get bookAt(): number {
    return this.#bookAt;
  }

  address(words: Int32Array, index: number): number {
    const address = this.#regions.get(words)!.get(index);
    if (address === undefined) throw new Violation(`an access to word ${index} of a region that has none`);
    return address;
  }

  nameOf(address: number): string {
    return this.#names[address]!;
  }

  describe({ thread, kind, address, value, result }: Access): string {
    const writes = kind !== Kind.LOAD && kind !== Kind.READ && kind !== Kind.NOTIFY && kind !== Kind.WAIT;
    const what = `${KIND_NAMES[kind]} ${this.nameOf(address)}${writes ? ` := ${value}` : ''}`;
    return `${this.programs[thread]!.name}: ${what} -> ${result}`;
  }

  status(thread: number): number {
    return this.state[this.#blockOf(thread)]!;
  }

  register(thread: number, index: number): number {
    return this.state[this.#blockOf(thread) + Field.REGISTERS + index]!;
  }

  setRegister(thread: number, index: number, value: number): void {
    this.state[this.#blockOf(thread) + Field.REGISTERS + index] = value;
  }

  /** Makes a ring as its thread left it: its constructor's look at the head finds the head seen last (V2). */
  withRing<T>(thread: number, make: () => T): T {
    this.#block = this.#blockOf(thread);
    this.#building = true;
    const made = make();
    this.#building = false;
    return made;
  }

  /** Runs one access of a thread, and its operation's end when that was the last. */
  step(thread: number): void {
    const { state } = this;
    const block = this.#blockOf(thread);
    this.#thread = thread;
    this.#block = block;
    this.#cursor = 0;
    this.#mayStep = true;
    const program = this.programs[thread]!;
    let outcome: number;
    try {
      outcome = program.operate();
    } catch (pause) {
      if (pause !== PAUSE) throw pause;
      return;
    }
    this.returned?.(thread, outcome);
    const next = program.settle(outcome);
    if (next === Next.FINISH) {
      state[block] = Status.FINISHED;
      this.#forget(block);
      return;
    }
    if (!program.remembersHead) state[block + Field.HEAD_NEXT] = 0;
    state[block + Field.HEAD_SEEN] = state[block + Field.HEAD_NEXT]!;
    if (next === Next.RETRY) {
      if (program.witness !== undefined && state[block + Field.WITNESS] === 0) {
        throw new Violation(`${program.name} was refused without a reason`);
      }
      if (state[block + Field.DIRTY] === 0) state[block] = Status.BLOCKED;
    }
    if (state[block] !== Status.BLOCKED) this.#unread(block);
    state[block + Field.WITNESS] = 0;
    state[block + Field.LAST] = 0;
    state[block + Field.LOOP_FROM] = 0;
    state[block + Field.HEAD_FROM] = 0;
    state[block + Field.LOGGED] = 0;
  }

  /** Looks, after a step, whose refusal would now be right. */
  watch(): void {
    const { programs, state } = this;
    for (let thread = 0; thread < programs.length; thread++) {
      const program = programs[thread]!;
      if (program.witness === undefined) continue;
      const block = this.#blockOf(thread);
      if (state[block] !== Status.RUNNING || state[block + Field.WITNESS] === 1) continue;
      if (program.witness()) state[block + Field.WITNESS] = 1;
    }
  }

  kill(thread: number): void {
    const block = this.#blockOf(thread);
    this.state[block] = Status.DEAD;
    this.#forget(block);
    this.oracle.killed(thread);
  }

  /** Changes a word from outside of any program. */
  change(address: number, value: number): void {
    if (this.state[address] !== value) this.#touched(address);
    this.state[address] = value;
  }

  /** Runs an operation again on a list of its accesses; throws when it makes any others. */
  rerun(accesses: readonly Access[], operate: () => number): number {
    this.#shadow = accesses;
    this.#cursor = 0;
    try {
      const outcome = operate();
      if (this.#cursor !== accesses.length) throw new Violation('run again, an operation made fewer accesses');
      return outcome;
    } finally {
      this.#shadow = undefined;
    }
  }

  /** Folds all of `state` that means anything into two words (X1). */
  fold(into: Uint32Array): void {
    into[0] = 0x9e3779b9;
    into[1] = 0x7f4a7c15;
    this.#foldWords(into, 0, this.#words);
    for (let thread = 0; thread < this.programs.length; thread++) {
      const block = this.#blockOf(thread);
      this.#foldWords(into, block, block + LOG + this.state[block + Field.LOGGED]!);
    }
    this.#foldWords(into, this.#bookAt, this.state.length);
  }

  /** What the door `native-free/atomics` offers, on this machine's memory. */
  readonly atomics = {
    load: (words: Int32Array, index: number): number => this.#access(Kind.LOAD, this.address(words, index), 0, 0),
    store: (words: Int32Array, index: number, value: number): void => {
      this.#access(Kind.STORE, this.address(words, index), value | 0, 0);
    },
    compareExchange: (words: Int32Array, index: number, expected: number, value: number): number =>
      this.#access(Kind.EXCHANGE, this.address(words, index), value | 0, expected | 0),
    add: (words: Int32Array, index: number, value: number): number =>
      this.#access(Kind.ADD, this.address(words, index), value, 0),
    or: (words: Int32Array, index: number, bits: number): number =>
      this.#access(Kind.OR, this.address(words, index), bits, 0),
    and: (words: Int32Array, index: number, bits: number): number =>
      this.#access(Kind.AND, this.address(words, index), bits, 0),
    notify: (words: Int32Array, index: number): number => this.#access(Kind.NOTIFY, this.address(words, index), 0, 0),
    wait: (words: Int32Array, index: number, expected: number, timeoutMs: number): void => {
      if (timeoutMs !== Infinity)
        throw new Violation('nothing may wait with a limit: the model would miss a lost wake-up');
      this.#access(Kind.WAIT, this.address(words, index), 0, expected);
    },
  };

  #access(kind: number, address: number, value: number, expected: number): number {
    if (this.#shadow !== undefined) return this.#shadowed(kind, address, value);
    const { state } = this;
    const block = this.#block;
    if (this.#building) return state[block + Field.HEAD_SEEN]!;
    const program = this.programs[this.#thread]!;
    let logged = state[block + Field.LOGGED]!;
    if (this.#cursor < logged) return state[block + LOG + this.#cursor++]!;
    if ((kind !== Kind.LOAD && kind !== Kind.READ) || address !== this.#privateAt + this.#thread) {
      if (!this.#mayStep) throw PAUSE;
      this.#mayStep = false;
    }
    if (address === program.loopAt && (kind === Kind.LOAD || kind === Kind.READ))
      logged = this.#round(program, address, logged);
    if (logged === LOG_MAX) throw new Violation(`${program.name} makes no end of accesses`);
    const result = this.#perform(kind, address, value, expected);
    if (this.observer !== undefined) this.observer({ thread: this.#thread, kind, address, value, result });
    if (state[block] === Status.PARKED) throw PAUSE;
    if (kind === Kind.LOAD && address === this.#headAt && state[block + Field.LOOP_FROM] === 0) {
      state[block + Field.HEAD_FROM] = logged + 1;
    }
    state[block + Field.LAST] = address;
    state[block + LOG + logged] = result;
    state[block + Field.LOGGED] = logged + 1;
    this.#cursor = logged + 1;
    return result;
  }

  /** A loop begins its next round (V5). Returns how much of the log is left. */
  #round(program: Program, address: number, logged: number): number {
    const { state } = this;
    const block = this.#block;
    const from = state[block + Field.LOOP_FROM]! - 1;
    if (from < 0) {
      state[block + Field.LOOP_FROM] = logged + 1;
      return logged;
    }
    if (from === logged) return logged;
    // A taker also loads the head to see whether it is still the same; that follows an access to a stamp.
    if (!program.reserves && state[block + Field.LAST] !== address) return logged;
    const turns = state[block + Field.DIRTY] === 0 && state[block + Field.HEAD_SEEN] === state[block + Field.HEAD_NEXT];
    state[block + Field.HEAD_SEEN] = state[block + Field.HEAD_NEXT]!;
    const headFrom = state[block + Field.HEAD_FROM]!;
    if (headFrom > 0) state[block + LOG + headFrom - 1] = state[block + Field.HEAD_NEXT]!;
    state[block + Field.LOGGED] = from;
    if (turns) {
      state[block] = Status.BLOCKED;
      throw PAUSE;
    }
    this.#unread(block);
    return from;
  }

  #perform(kind: number, address: number, value: number, expected: number): number {
    const { state } = this;
    const block = this.#block;
    const before = state[address]!;
    let after = before;
    if (address < 32) state[block + Field.READ_LOW]! |= 1 << address;
    else state[block + Field.READ_HIGH]! |= 1 << (address - 32);
    switch (kind) {
      case Kind.LOAD:
        if (address === this.#headAt && this.programs[this.#thread]!.reserves) state[block + Field.HEAD_NEXT] = before;
        return before;
      case Kind.READ:
        return before;
      case Kind.STORE:
      case Kind.WRITE:
        after = value;
        break;
      case Kind.EXCHANGE:
        if (before !== expected) return before;
        after = value;
        break;
      case Kind.ADD:
        after = (before + value) | 0;
        break;
      case Kind.OR:
        after = before | value;
        break;
      case Kind.AND:
        after = before & value;
        break;
      case Kind.NOTIFY:
        return this.#notify(address);
      default:
        if (before === expected) {
          state[block] = Status.PARKED;
          state[block + Field.WAITS_ON] = address;
        }
        return 0;
    }
    this.change(address, after);
    this.oracle.written(this.#thread, kind, address, before, after);
    return kind === Kind.STORE || kind === Kind.WRITE ? 0 : before;
  }

  /** Whoever is parked on the word goes on: its wait returns. */
  #notify(address: number): number {
    const { state } = this;
    let woken = 0;
    for (let thread = 0; thread < this.programs.length; thread++) {
      const block = this.#blockOf(thread);
      if (state[block] !== Status.PARKED || state[block + Field.WAITS_ON] !== address) continue;
      state[block] = Status.RUNNING;
      state[block + Field.WAITS_ON] = 0;
      state[block + LOG + state[block + Field.LOGGED]!++] = 0;
      woken++;
    }
    return woken;
  }

  /** A word changes: whoever was refused, or turned in a loop, after reading it may go on (V3, V5). */
  #touched(address: number): void {
    const { state } = this;
    const low = address < 32 ? 1 << address : 0;
    const high = address < 32 ? 0 : 1 << (address - 32);
    for (let thread = 0; thread < this.programs.length; thread++) {
      const block = this.#blockOf(thread);
      if (((state[block + Field.READ_LOW]! & low) | (state[block + Field.READ_HIGH]! & high)) === 0) continue;
      if (state[block] === Status.RUNNING) {
        state[block + Field.DIRTY] = 1;
      } else if (state[block] === Status.BLOCKED) {
        state[block] = Status.RUNNING;
        this.#unread(block);
      }
    }
  }

  #shadowed(kind: number, address: number, value: number): number {
    const access = this.#shadow![this.#cursor++];
    if (access === undefined || access.kind !== kind || access.address !== address || access.value !== value) {
      throw new Violation(`run again, an operation went another way: ${KIND_NAMES[kind]} ${this.nameOf(address)}`);
    }
    return access.result;
  }

  #unread(block: number): void {
    this.state[block + Field.DIRTY] = 0;
    this.state[block + Field.READ_LOW] = 0;
    this.state[block + Field.READ_HIGH] = 0;
  }

  #forget(block: number): void {
    this.state.fill(0, block + 1, block + Field.REGISTERS);
  }

  #foldWords(into: Uint32Array, from: number, to: number): void {
    const { state } = this;
    let a = into[0]!;
    let b = into[1]!;
    for (let at = from; at < to; at++) {
      const word = state[at]!;
      a = Math.imul(a ^ word, 0x85ebca6b);
      a ^= a >>> 13;
      b = Math.imul(((b << 5) | (b >>> 27)) ^ word, 0xc2b2ae35);
      b ^= b >>> 16;
    }
    into[0] = a;
    into[1] = b;
  }

  #blockOf(thread: number): number {
    return this.#words + thread * THREAD_WORDS;
  }
}
