/** Rings in memory of their own, for tests: in this thread, or handed to others by their buffers. */
import { initialiseRing, Ring, type RingPlace } from '../../native-free/ring.js';

const LINE = 16;
const OWNERS = 256;

export interface RingBuffers {
  readonly capacity: number;
  readonly entryShift: number;
  readonly entries: SharedArrayBuffer;
  readonly control: SharedArrayBuffer;
}

export function ringBuffers(capacity: number, entryShift = 2): RingBuffers {
  return {
    capacity,
    entryShift,
    entries: new SharedArrayBuffer((capacity << entryShift) * 4),
    control: new SharedArrayBuffer((2 + OWNERS) * LINE * 4),
  };
}

export function placeOf({ capacity, entryShift, entries, control }: RingBuffers): RingPlace {
  const words = new Int32Array(control);
  return {
    words: new Int32Array(entries),
    entries: 0,
    entryShift,
    capacity,
    cursors: words,
    tail: 0,
    head: LINE,
    intents: words,
    intentFirst: 2 * LINE,
    intentStride: LINE,
  };
}

/** A ring whose first position is `first`, and a maker of views of it. */
export function ringAt(capacity: number, first = capacity, entryShift = 2) {
  const place = placeOf(ringBuffers(capacity, entryShift));
  initialiseRing(place, first);
  return { place, as: (owner: number): Ring => new Ring(place, owner) };
}

/** Leaves in `place` what a thread that died right after its exchange of the stamp leaves: the tail has not moved. */
export function reserveAndDie(place: RingPlace, owner: number, count: number): number {
  const position = place.cursors[place.tail]!;
  const lapShift = 31 - Math.clz32(place.capacity);
  place.intents[place.intentFirst + owner * place.intentStride] = count;
  const entry = place.entries + ((position & (place.capacity - 1)) << place.entryShift);
  place.words[entry] = ((position >>> lapShift) << 10) | (owner << 2) | 1;
  return position;
}

/** Words of the bells, a line each; behind them one word per owner and one per generation. */
export const Bell = { NO_ROOM: 0, NO_ITEM: 16, DONE: 32, FAULTS: 48, OWNERS: 64, GENERATIONS: 64 + 256 } as const;
export const OwnerMark = { ALIVE: 1, DEAD: 2, DRAINED: 3 } as const;
export const SLOT_WORDS = 4;

export interface RingThread {
  readonly role: 'maker' | 'taker' | 'producer' | 'follower';
  readonly ring: RingBuffers;
  readonly bells: SharedArrayBuffer;
  readonly owner: number;
  /** Makers: how many items. Producers: how many records, Infinity for until it is killed. */
  readonly count: number;
  readonly makers: number;
  /** Ready ring: how often each item was taken. Submit ring: slot memory. */
  readonly memory: SharedArrayBuffer;
  /** Producers: which of all that ever were. */
  readonly generation: number;
}

export interface Followed {
  /** Records followed, by generation. */
  readonly records: readonly number[];
  readonly holes: number;
}
