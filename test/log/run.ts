/**
 * One run of the log for tests, all on the test's thread: shared memory, a producer that writes records into the ring
 * as client threads do, the writer driven by `step()`, and a scheduler that only releases what was committed.
 */
import { Encoder } from '../../native-free/encoder.js';
import {
  allocateShared,
  OwnerState,
  OwnerWord,
  reservationSlotsMax,
  SEGMENTS_KEPT,
  Shared,
  Word,
} from '../../native-free/layout.js';
import { bytesOf, idOf, Level, levelOf, type Memory, RecordType, sizeOf, typeOf } from '../../native-free/record.js';
import { initialiseRing, Ring } from '../../native-free/ring.js';
import { type Recovery, recover } from '../../src/log/recovery.js';
import type { Storage } from '../../src/log/storage.js';
import { LogWriter, type LogWriterOptions } from '../../src/log/writer.js';

export const DIR = '/data';
const PRODUCER = 3;
/** The parts of shared memory that the writer never looks at are the same for every run. */
const UNUSED = allocateShared({ ringSlots: 2, rows: 2, arenaBytes: 64 });

export interface RunOptions extends Partial<LogWriterOptions> {
  readonly ringSlots?: number;
  /** The ring's first position, to test where positions wrap. */
  readonly first?: number;
  readonly start?: boolean;
}

/** What replay saw of a record. */
export interface Seen {
  readonly id: number;
  readonly type: number;
  readonly text: string;
}

export function seen(memory: Memory, offset: number): Seen {
  const bytes = bytesOf(memory, offset);
  const size = typeOf(memory, offset) === RecordType.ENQUEUE ? sizeOf(memory, offset) : 0;
  const from = offset + bytes - size;
  return {
    id: idOf(memory, offset),
    type: typeOf(memory, offset),
    text: Buffer.from(memory.u8.slice(from, from + size)).toString('latin1'),
  };
}

export class Run {
  readonly replayed: Seen[] = [];
  readonly recovery: Recovery;
  readonly shared: Shared;
  readonly writer: LogWriter;
  nowMs = 0;
  readonly #rings = new Map<number, Ring>();
  readonly #encoder = new Encoder();
  readonly #reader: Ring;

  constructor(
    readonly storage: Storage,
    options: RunOptions = {},
  ) {
    const ringSlots = options.ringSlots ?? 4096;
    storage.ensureDirectory(DIR);
    this.recovery = recover(storage, DIR, (memory, offset) => this.replayed.push(seen(memory, offset)), {
      random: () => 0.123456789,
    });
    const sizes = { ...UNUSED.sizes, ringSlots };
    this.shared = new Shared({
      ...UNUSED,
      sizes,
      control: new SharedArrayBuffer(UNUSED.control.byteLength),
      stamps: new SharedArrayBuffer(ringSlots * 8),
      slots: new SharedArrayBuffer((ringSlots + reservationSlotsMax(sizes)) * 32),
      places: new SharedArrayBuffer((2 * ringSlots + SEGMENTS_KEPT) * 8),
    });
    const first = options.first ?? ringSlots;
    initialiseRing(this.shared.submitPlace, first | 0);
    this.shared.control[Word.COMMITTED] = first | 0;
    this.shared.control[Word.COMMITTED_HIGH] = Math.floor(first / 2 ** 31);
    this.shared.control[Word.OWNERS_SEEN] = 8;
    this.#reader = new Ring(this.shared.submitPlace, 2);
    this.writer = new LogWriter({
      shared: this.shared,
      storage,
      dir: DIR,
      recovery: this.recovery,
      idBase: this.recovery.idHigh - first,
      epoch: this.recovery.epoch + 1,
      now: () => this.nowMs,
      wallMs: 1_700_000_000_000,
      // Most tests say what a file holds to the byte.
      asideBytes: 0,
      ...options,
    });
    if (options.start !== false) this.writer.start();
  }

  /** Puts a reservation of ENQUEUE records, one for each text, into the ring. Returns its position. */
  enqueue(
    texts: string | readonly string[],
    level: number | readonly number[] = Level.FSYNC,
    owner = PRODUCER,
  ): number {
    const encoder = this.#encoder;
    encoder.clear();
    for (const [index, text] of (typeof texts === 'string' ? [texts] : texts).entries()) {
      const offset = encoder.appendEnqueue({
        queue: 1,
        level: typeof level === 'number' ? level : level[index],
        priority: 0,
        enqueuedAtMs: 1_700_000_000_000,
        attemptsMax: 20,
        crashesMax: 3,
        runAtMs: NaN,
        visibilityMs: 0,
        timeoutMs: 0,
        keyRetentionMs: NaN,
        expiresAtMs: NaN,
        watcher: 0,
        request: 0,
        tenant: '',
        key: '',
      });
      encoder.payloadBytes(offset, Buffer.from(text, 'latin1'));
      encoder.finish(offset);
    }
    return this.#submit(owner);
  }

  /** A question to the scheduler: takes part in the order, not in the log. */
  ask(): number {
    this.#encoder.clear();
    this.#encoder.appendShort(RecordType.ASK, Level.FSYNC, 0, 0, 0, 0);
    return this.#submit(PRODUCER);
  }

  /** Declares the queue of all jobs, in `bytes` bytes of JSON. */
  declare(bytes = 2): number {
    this.#encoder.clear();
    const at = this.#encoder.append(RecordType.QUEUE, Level.FSYNC, 0, 1, 0, 0, 0);
    this.#encoder.payloadText(at, '{}'.padEnd(bytes));
    this.#encoder.finish(at);
    return this.#submit(PRODUCER);
  }

  /** Says that the log begins with this segment now. */
  head(segment: number): number {
    this.#encoder.clear();
    this.#encoder.appendShort(RecordType.HEAD, Level.FSYNC, segment, 0, 0, 0);
    return this.#submit(PRODUCER);
  }

  /** Reserves slots and dies before publishing them. */
  reserve(slots: number, owner: number): number {
    const ring = this.ring(owner);
    if (!ring.tryReserve(slots)) throw new Error('the ring is full');
    return ring.position;
  }

  kill(owner: number): void {
    this.shared.owners[owner * OwnerWord.WORDS + OwnerWord.STATE] = OwnerState.DEAD;
    this.shared.control[Word.DEATHS]++;
  }

  stateOf(owner: number): number {
    return this.shared.owners[owner * OwnerWord.WORDS + OwnerWord.STATE];
  }

  /** Steps the writer until it has nothing to do, and frees what was committed as the scheduler would. */
  settle(): void {
    while (this.writer.step() > 0 && !this.writer.finished) {}
    const committed = this.committed;
    for (let head = this.#reader.head(); head !== committed; ) {
      const count = this.#reader.countAt(head);
      this.#reader.release(head, count);
      head = (head + count) | 0;
      this.#reader.releaseTo(head);
    }
  }

  /** What the scheduler would see between the ring's head and the watermark; frees it. */
  release(): (Seen & { level: number })[] {
    const taken: (Seen & { level: number })[] = [];
    const committed = this.committed;
    let head = this.#reader.head();
    while (head !== committed) {
      const count = this.#reader.countAt(head);
      const memory = this.shared.slots;
      const from = this.shared.slotOffset(head);
      for (let at = from; at < from + count * 32; ) {
        taken.push({ ...seen(memory, at), level: levelOf(memory, at) });
        at += (bytesOf(memory, at) + 31) & ~31;
        if (typeOf(memory, from) === RecordType.VOID) break;
      }
      this.#reader.release(head, count);
      head = (head + count) | 0;
    }
    this.#reader.releaseTo(head);
    return taken;
  }

  get committed(): number {
    return this.shared.control[Word.COMMITTED];
  }

  close(): void {
    this.shared.control[Word.STATE] = 3;
    this.settle();
    if (!this.writer.finished) this.writer.step();
  }

  ring(owner: number): Ring {
    let ring = this.#rings.get(owner);
    if (ring === undefined) {
      ring = new Ring(this.shared.submitPlace, owner);
      this.#rings.set(owner, ring);
      this.shared.owners[owner * OwnerWord.WORDS + OwnerWord.STATE] = OwnerState.ALIVE;
    }
    return ring;
  }

  #submit(owner: number): number {
    const ring = this.ring(owner);
    const { slots, bytes } = this.#encoder;
    if (!ring.tryReserve(slots)) throw new Error('the ring is full');
    const { position } = ring;
    const id = this.recovery.idHigh + position;
    this.#encoder.moveInto(this.shared.slots, this.shared.slotOffset(position), 0, bytes, id);
    ring.publish(position);
    return position;
  }
}

/** The texts of what a fresh recovery of this disk replays, EPOCH records left out. */
export function textsIn(storage: Storage): string[] {
  const texts: string[] = [];
  recover(storage, DIR, (memory, offset) => {
    const record = seen(memory, offset);
    if (record.type === RecordType.ENQUEUE) texts.push(record.text);
  });
  return texts;
}
