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
