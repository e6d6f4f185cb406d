/**
 * Records that wait for room in the submit ring, in order. One a thread: its settling records and questions, and
 * for the scheduler its own decisions.
 *
 * B1  Records leave in the order they were appended; acks without a result share one ACK_MANY record.
 * B2  A record is in the ring or in here, never in both and never in neither.
 */
import { wake } from './agent.js';
import { Encoder } from './encoder.js';
import { Cell, reservationSlotsMax, type Shared, Word } from './layout.js';
import { At, HEADER_BYTES, lengthWord, RecordType, SLOT_BYTES } from './record.js';
import type { Ring } from './ring.js';

const ACKS_A_RECORD_MAX = 512;
const ACK_BYTES = 16;
const BYTES_A_RESERVATION = 128 * 1024;

export class Outbox extends Encoder {
  readonly #shared: Shared;
  readonly #ring: Ring;
  readonly #bytesMax: number;
  /** A record must fit into one reservation of the smallest ring, too. */
  readonly #acksMax: number;
  #from = 0;
  #open = -1;
  #openLevel = 0;
  #openCount = 0;

  constructor(shared: Shared, ring: Ring) {
    super();
    this.#shared = shared;
    this.#ring = ring;
    this.#bytesMax = Math.min(reservationSlotsMax(shared.sizes) * SLOT_BYTES, BYTES_A_RESERVATION);
    this.#acksMax = Math.min(ACKS_A_RECORD_MAX, Math.floor((this.#bytesMax - HEADER_BYTES) / ACK_BYTES));
  }

  /** Bytes that have not reached the ring. */
  get waitingBytes(): number {
    return this.bytes - this.#from;
  }

  /** An ack without a result. The clock is read once a record, not once an ack. */
  appendAck(id: number, row: number, queue: number, level: number, clock: { wallMs(): number }): void {
    if (this.#open < 0 || this.#openLevel !== level || this.#openCount === this.#acksMax) {
      this.close();
      this.#open = this.append(RecordType.ACK_MANY, level, id, 0, 0, clock.wallMs(), 0);
      this.truncate(this.#open + HEADER_BYTES);
      this.#openLevel = level;
      this.#openCount = 0;
    }
    const at = this.bytes;
    this.room(at + ACK_BYTES + SLOT_BYTES);
    const { f64, i32 } = this.memory;
    f64[at >>> 3] = id;
    i32[(at + 8) >>> 2] = row;
    i32[(at + 12) >>> 2] = queue;
    this.truncate(at + ACK_BYTES);
    this.#openCount++;
  }

  override append(
    type: number,
    level: number,
    id: number,
    queue: number,
    row: number,
    timeMs: number,
    limits: number,
  ): number {
    this.close();
    return super.append(type, level, id, queue, row, timeMs, limits);
  }

  override appendShort(type: number, level: number, id: number, queue: number, row: number, timeMs: number): number {
    this.close();
    return super.appendShort(type, level, id, queue, row, timeMs);
  }

  override clear(): void {
    super.clear();
    this.#from = 0;
    this.#open = -1;
  }

  override appendCopy(bytes: Uint8Array, level: number): void {
    this.close();
    super.appendCopy(bytes, level);
  }

  override appendImage(...fields: Parameters<Encoder['appendImage']>): void {
    this.close();
    super.appendImage(...fields);
  }

  /** Ends an ACK_MANY that is still open. */
  close(): void {
    if (this.#open < 0) return;
    const offset = this.#open;
    this.#open = -1;
    this.memory.i32[(offset + At.ROW) >>> 2] = this.#openCount;
    this.memory.i32[(offset + At.LENGTH) >>> 2] = lengthWord(
      HEADER_BYTES + ACK_BYTES * this.#openCount,
      RecordType.ACK_MANY,
      this.#openLevel,
    );
    this.finish(offset);
  }

  /** Slots that the next reservation will take. */
  firstSlots(): number {
    this.close();
    return (this.prefix(this.#from, this.#bytesMax) || this.prefixOne(this.#from)) >>> 5;
  }

  /** Moves what fits into the ring and wakes the log writer. True: nothing is left. */
  trySubmit(): boolean {
    if (this.bytes === 0) return true;
    this.close();
    const shared = this.#shared;
    let moved = false;
    while (this.#from < this.bytes) {
      const bytes = this.prefix(this.#from, this.#bytesMax) || this.prefixOne(this.#from);
      if (!this.#ring.tryReserve(bytes >>> 5)) break;
      const position = this.#ring.position;
      const firstId = shared.cells[Cell.ID_BASE]! + shared.absolute(position);
      this.moveInto(shared.slots, shared.slotOffset(position), this.#from, bytes, firstId);
      this.#ring.publish(position);
      this.#from += bytes;
      moved = true;
    }
    if (moved) wake(shared.control, Word.WRITER_ASLEEP);
    if (this.#from < this.bytes) return false;
    this.clear();
    return true;
  }
}
