/**
 * The scheduler's side of the reply rings: one ring an owner, written here, read by the owner's thread.
 * Scheduler thread only.
 *
 * P1  Bytes of a reply lie in an arena block. The owner reads it, then moves REPLY_HEAD; the block is freed here
 *     when the head has passed it, so only the scheduler ever frees.
 * P2  What does not fit (ring full, arena full) waits in a list, in order; events beyond EVENTS_WAITING are dropped
 *     and counted, answers never.
 * P3  An owner is woken once a step, however many replies it got.
 */
import { wake } from '../../native-free/agent.js';
import { ARENA_UNIT_BYTES, type Arena } from '../../native-free/arena.js';
import { load, store } from '../../native-free/atomics.js';
import { OWNERS, OwnerState, OwnerWord, REPLY_SLOTS, ReplyWord, type Shared } from '../../native-free/layout.js';
import { Reply } from './questions.js';

const EVENTS_WAITING = 4096;

interface Waiting {
  readonly kind: number;
  readonly request: number;
  readonly status: number;
  readonly row: number;
  readonly id: number;
  readonly bytes: Uint8Array | undefined;
}

export class Replies {
  eventsDropped = 0;
  readonly #shared: Shared;
  readonly #arena: Arena;
  readonly #freed = new Int32Array(OWNERS);
  readonly #waiting: (Waiting[] | undefined)[] = new Array(OWNERS);
  readonly #dirty: number[] = [];
  readonly #isDirty = new Uint8Array(OWNERS);
  #waitingOwners = 0;

  constructor(shared: Shared, arena: Arena) {
    this.#shared = shared;
    this.#arena = arena;
  }

  /** `bytes` is private memory, copied here. */
  send(
    owner: number,
    kind: number,
    request: number,
    status: number,
    row: number,
    id: number,
    bytes?: Uint8Array,
  ): void {
    if (load(this.#shared.owners, owner * OwnerWord.WORDS + OwnerWord.STATE) !== OwnerState.ALIVE) return;
    const queue = this.#waiting[owner];
    if (queue === undefined && this.#tryPut(owner, kind, request, status, row, id, bytes)) return;
    if (kind === Reply.EVENT && queue !== undefined && queue.length >= EVENTS_WAITING) {
      this.eventsDropped++;
      return;
    }
    if (queue === undefined) this.#waitingOwners++;
    const list = queue ?? [];
    this.#waiting[owner] = list;
    list.push({ kind, request, status, row, id, bytes });
  }

  /** Puts what has been waiting and wakes the owners that got something. Returns how many replies moved. */
  flush(): number {
    let moved = 0;
    if (this.#waitingOwners > 0) {
      for (let owner = 0; owner < OWNERS; owner++) {
        const queue = this.#waiting[owner];
        if (queue === undefined) continue;
        let count = 0;
        while (count < queue.length) {
          const reply = queue[count]!;
          if (!this.#tryPut(owner, reply.kind, reply.request, reply.status, reply.row, reply.id, reply.bytes)) break;
          count++;
        }
        moved += count;
        if (count === queue.length) {
          this.#waiting[owner] = undefined;
          this.#waitingOwners--;
        } else if (count > 0) {
          queue.splice(0, count);
        }
      }
    }
    while (this.#dirty.length > 0) {
      const owner = this.#dirty.pop()!;
      this.#isDirty[owner] = 0;
      wake(this.#shared.owners, owner * OwnerWord.WORDS + OwnerWord.ASLEEP);
    }
    return moved;
  }

  get waiting(): boolean {
    return this.#waitingOwners > 0;
  }

  /** Forgets everything meant for an owner whose thread is gone. */
  drop(owner: number): void {
    if (this.#waiting[owner] !== undefined) {
      this.#waiting[owner] = undefined;
      this.#waitingOwners--;
    }
    const block = owner * OwnerWord.WORDS;
    this.#free(owner, load(this.#shared.owners, block + OwnerWord.REPLY_TAIL));
    store(this.#shared.owners, block + OwnerWord.REPLY_HEAD, this.#freed[owner]!);
  }

  #tryPut(
    owner: number,
    kind: number,
    request: number,
    status: number,
    row: number,
    id: number,
    bytes: Uint8Array | undefined,
  ): boolean {
    const { owners, replies, replyCells, arena } = this.#shared;
    const block = owner * OwnerWord.WORDS;
    this.#free(owner, load(owners, block + OwnerWord.REPLY_HEAD));
    const tail = owners[block + OwnerWord.REPLY_TAIL]!;
    if (((tail - this.#freed[owner]!) | 0) >= REPLY_SLOTS) return false;
    let ref = 0;
    if (bytes !== undefined && bytes.length > 0) {
      ref = this.#arena.alloc(bytes.length);
      if (ref < 0) return false;
      arena.u8.set(bytes, ref * ARENA_UNIT_BYTES);
    }
    const at = (owner * REPLY_SLOTS + (tail & (REPLY_SLOTS - 1))) * ReplyWord.WORDS;
    replies[at + ReplyWord.REQUEST] = request;
    replies[at + ReplyWord.KIND] = kind;
    replies[at + ReplyWord.REF] = ref;
    replies[at + ReplyWord.BYTES] = bytes?.length ?? 0;
    replies[at + ReplyWord.STATUS] = status;
    replies[at + ReplyWord.ROW] = row;
    replyCells[(at + ReplyWord.ID) >>> 1] = id;
    store(owners, block + OwnerWord.REPLY_TAIL, (tail + 1) | 0);
    if (this.#isDirty[owner] === 0) {
      this.#isDirty[owner] = 1;
      this.#dirty.push(owner);
    }
    return true;
  }

  /** P1: frees the blocks of entries below `head`. */
  #free(owner: number, head: number): void {
    const { replies } = this.#shared;
    let position = this.#freed[owner]!;
    while (position !== head) {
      const at = (owner * REPLY_SLOTS + (position & (REPLY_SLOTS - 1))) * ReplyWord.WORDS;
      const ref = replies[at + ReplyWord.REF]!;
      if (ref !== 0) this.#arena.free(ref, replies[at + ReplyWord.BYTES]!);
      position = (position + 1) | 0;
    }
    this.#freed[owner] = position;
  }
}
