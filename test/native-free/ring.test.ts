import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { allocateShared, Owner, reservationSlotsMax, Shared } from '../../native-free/layout.js';
import { SLOT_BYTES } from '../../native-free/record.js';
import { initialiseRing, Ring } from '../../native-free/ring.js';
import { reserveAndDie, ringAt } from './rings.js';

const WRAPS = [2 ** 31, 2 ** 32];

describe('pushing and taking', () => {
  it.each([2, 4])('a ring of %i holds as many items and refuses one more', (capacity) => {
    const ring = ringAt(capacity).as(1);
    for (let i = 1; i < capacity; i++) expect(ring.tryPush(i, -i)).toBe(true);
    expect(ring.used()).toBe(capacity - 1);
    expect(ring.tryPush(capacity, -capacity)).toBe(true);
    expect(ring.used()).toBe(capacity);
    expect(ring.tryPush(0, 0)).toBe(false);
    expect(ring.used()).toBe(capacity);
    for (let i = 1; i <= capacity; i++) {
      expect(ring.tryTake()).toBe(true);
      expect([ring.itemA, ring.itemB]).toEqual([i, -i]);
      expect(ring.tryPush(10 + i, 0)).toBe(true);
      expect(ring.tryPush(0, 0)).toBe(false);
    }
  });

  it('an empty ring gives nothing and goes on', () => {
    const ring = ringAt(2).as(1);
    expect(ring.tryTake()).toBe(false);
    expect(ring.tryTakeMany(new Int32Array(4), 2)).toBe(0);
    expect(ring.tryPush(7, 8)).toBe(true);
    expect(ring.tryTake()).toBe(true);
    expect(ring.tryTake()).toBe(false);
  });

  it('a batch goes in whole or not at all, at one less, just as many and one more than there is room', () => {
    const ring = ringAt(4).as(1);
    const pairs = Int32Array.from({ length: 10 }, (_, i) => i);
    const out = new Int32Array(10);
    expect(ring.tryPush(-1, -1)).toBe(true);
    expect(ring.tryPushMany(pairs, 4)).toBe(false);
    expect(ring.used()).toBe(1);
    expect(ring.tryPushMany(pairs, 3)).toBe(true);
    expect(ring.tryTakeMany(out, 4)).toBe(4);
    expect([...out]).toEqual([-1, -1, 0, 1, 2, 3, 4, 5, 0, 0]);
    expect(ring.tryPushMany(pairs, 2)).toBe(true);
    expect(ring.tryPushMany(pairs, 2)).toBe(true);
    expect(ring.tryPushMany(pairs, 1)).toBe(false);
    expect(ring.tryTakeMany(out, 3)).toBe(3);
    expect(ring.tryTakeMany(out, 3)).toBe(1);
  });

  it.each([2, 4])('a look at the head of a ring of %i takes nothing, and sees nothing that was taken', (capacity) => {
    const ring = ringAt(capacity).as(1);
    for (let lap = 0; lap < 3 * capacity; lap++) {
      expect(ring.peek()).toBe(0);
      expect(ring.tryReserve(1)).toBe(true);
      expect(ring.peek()).toBe(0);
      ring.publish(ring.position);
      expect(ring.tryTake()).toBe(true);
      expect(ring.tryPush(7 + lap, 0)).toBe(true);
      expect([ring.peek(), ring.peek(), ring.used()]).toEqual([7 + lap, 7 + lap, 1]);
      expect(ring.tryTake()).toBe(true);
    }
  });

  it('a batch of more than the capacity never fits', () => {
    const ring = ringAt(4).as(1);
    expect(ring.tryPushMany(new Int32Array(10), 5)).toBe(false);
    expect(ring.tryReserve(5)).toBe(false);
    expect(ring.tryReserve(4)).toBe(true);
  });

  it('takers see one another’s takes', () => {
    const { as } = ringAt(4);
    const [maker, a, b] = [as(1), as(2), as(0)];
    for (let i = 0; i < 4; i++) maker.tryPush(i, 0);
    expect([a.tryTake(), a.itemA, b.tryTake(), b.itemA, a.tryTake(), a.itemA]).toEqual([true, 0, true, 1, true, 2]);
  });

  it('an item behind one that is not published waits for it', () => {
    const { as } = ringAt(4);
    const [first, second, taker] = [as(1), as(2), as(0)];
    expect(first.tryReserve(1)).toBe(true);
    expect(second.tryPush(5, 6)).toBe(true);
    expect(taker.tryTake()).toBe(false);
    expect(taker.tryTakeMany(new Int32Array(8), 4)).toBe(0);
    first.publish(first.position);
    expect(taker.tryTakeMany(new Int32Array(8), 4)).toBe(2);
  });
});

describe('positions', () => {
  const capacities = [2, 4, 512, 1024, 2048, 4096, 65_536, 2 ** 20];
  it.each(WRAPS.flatMap((wrap) => capacities.map((capacity) => [capacity, Math.log2(wrap), wrap] as const)))(
    'a ring of %i goes on across 2^%i',
    (capacity, _, wrap) => {
      const { place, as } = ringAt(capacity, (wrap - capacity - capacity / 2) | 0, 1);
      const [producer, follower] = [as(3), as(4)];
      let position = producer.tail();
      const half = capacity / 2;
      for (let i = 0; i < 8; i++) {
        for (let n = 0; n < 2; n++) {
          expect(producer.tryReserve(half)).toBe(true);
          expect(producer.position).toBe((position + n * half) | 0);
          producer.publish(producer.position);
        }
        expect(producer.tryReserve(1)).toBe(false);
        expect(producer.used()).toBe(capacity);
        for (let n = 0; n < 2; n++) {
          expect(follower.countAt(position)).toBe(half);
          follower.release(position, half);
          position = (position + half) | 0;
          follower.releaseTo(position);
        }
        expect(follower.countAt(position)).toBe(0);
      }
      expect(place.cursors[place.head]).toBe(position);
    },
  );

  it.each(WRAPS.flatMap((wrap) => [2, 4, 4096].map((capacity) => [capacity, Math.log2(wrap), wrap] as const)))(
    'single items of a ring of %i go on across 2^%i',
    (capacity, _, wrap) => {
      const ring = ringAt(capacity, (wrap - 3) | 0).as(1);
      const pairs = new Int32Array(2 * capacity);
      for (let i = 0; i < 3 * capacity; i++) {
        expect(ring.tryPush(i, ~i)).toBe(true);
        expect(ring.tryTake()).toBe(true);
        expect(ring.itemA).toBe(i);
      }
      for (let lap = 0; lap < 3; lap++) {
        expect(ring.tryPushMany(pairs, capacity)).toBe(true);
        expect(ring.tryPush(0, 0)).toBe(false);
        expect(ring.tryTakeMany(pairs, capacity)).toBe(capacity);
      }
    },
  );

  it.each([
    ['half the positions', 2 ** 31],
    ['more than half of them', 2 ** 31 + 2 ** 30],
    ['all of them', 2 ** 32],
  ])('an owner that slept while %s went by does not overrun a full ring', (_, passed) => {
    const { place, as } = ringAt(4);
    const sleeper = as(1);
    expect(sleeper.tryPush(1, 1)).toBe(true);
    // The same memory, as many positions later, and full.
    const later = (sleeper.tail() + passed - 3) | 0;
    initialiseRing(place, later);
    const other = new Ring(place, 2);
    for (let i = 0; i < 4; i++) expect(other.tryPush(i, i)).toBe(true);
    expect(sleeper.tryReserve(1)).toBe(false);
    expect(sleeper.tryReserve(3)).toBe(false);
    expect(sleeper.tryPushMany(new Int32Array(4), 2)).toBe(false);
    expect(other.tryTake()).toBe(true);
    expect(sleeper.tryReserve(1)).toBe(true);
  });

  it('single pushes look at the head again when what they remember makes no sense', () => {
    const { place, as } = ringAt(4);
    const sleeper = as(1);
    expect(sleeper.tryPush(1, 1)).toBe(true);
    initialiseRing(place, (sleeper.tail() + 2 ** 31) | 0);
    const other = new Ring(place, 2);
    for (let i = 0; i < 4; i++) expect(other.tryPush(i, i)).toBe(true);
    expect(sleeper.tryPush(9, 9)).toBe(false);
  });
});

describe('following and releasing', () => {
  it('a reservation of several slots is one piece, also across the ring’s end', () => {
    const { as } = ringAt(4, 4, 1);
    const [producer, follower] = [as(1), as(2)];
    let position = 4;
    for (const count of [3, 3, 1, 4, 2, 3]) {
      expect(producer.tryReserve(count)).toBe(true);
      expect(producer.position).toBe(position);
      expect(follower.countAt(position)).toBe(-1);
      producer.publish(position);
      expect(follower.countAt(position)).toBe(count);
      follower.release(position, count);
      position += count;
      follower.releaseTo(position);
    }
  });

  it('released slots are free only once the head has moved', () => {
    const { as } = ringAt(2, 2, 1);
    const [producer, follower] = [as(1), as(2)];
    expect(producer.tryReserve(2)).toBe(true);
    producer.publish(2);
    follower.release(2, 2);
    expect(producer.tryReserve(1)).toBe(false);
    follower.releaseTo(4);
    expect(producer.tryReserve(2)).toBe(true);
    expect(producer.position).toBe(4);
  });

  it('says where the cursors stand', () => {
    const { as } = ringAt(4, 4, 1);
    const [producer, follower] = [as(1), as(2)];
    producer.tryReserve(3);
    producer.publish(4);
    expect([follower.tail(), follower.head(), follower.used()]).toEqual([7, 4, 3]);
    follower.release(4, 3);
    follower.releaseTo(7);
    expect([producer.tail(), producer.head(), producer.used()]).toEqual([7, 7, 0]);
  });

  it('the broker’s slot memory is long enough for the longest reservation at the last slot', () => {
    const sizes = { ringSlots: 64, rows: 2, arenaBytes: 64 };
    const shared = new Shared(allocateShared(sizes));
    const ring = new Ring(shared.submitPlace, Owner.FIRST);
    const follower = new Ring(shared.submitPlace, Owner.WRITER);
    const longest = reservationSlotsMax(sizes);
    for (const count of [longest, longest - 1, longest]) {
      expect(ring.tryReserve(count)).toBe(true);
      const { position } = ring;
      const offset = shared.slotOffset(position);
      shared.slots.u8.fill(count, offset, offset + count * SLOT_BYTES);
      expect(shared.slots.u8[offset + count * SLOT_BYTES - 1]).toBe(count);
      ring.publish(position);
      follower.release(position, count);
      follower.releaseTo((position + count) | 0);
    }
    // The last of them began at the ring's last slot.
    expect(shared.slotOffset(ring.position)).toBe(63 * SLOT_BYTES);
    expect(shared.slots.u8.length).toBe((64 + longest) * SLOT_BYTES);
    expect(longest).toBe(32);
  });
});

describe('dead owners', () => {
  it('a reservation whose owner died before it moved the tail is passed by others and then repaired', () => {
    const { place, as } = ringAt(4, 4, 1);
    const position = reserveAndDie(place, 7, 2);
    const [other, follower] = [as(8), as(2)];
    expect(other.tryReserve(1)).toBe(true);
    expect(other.position).toBe(position + 2);
    expect(follower.countAt(position)).toBe(-7);
    expect(follower.repair(position, 7)).toBe(2);
    follower.publish(position);
    expect(follower.countAt(position)).toBe(2);
    expect(follower.tail()).toBe(position + 3);
  });

  it('a repair moves the tail when nobody else has', () => {
    const { place, as } = ringAt(4, 4, 1);
    const position = reserveAndDie(place, 255, 3);
    const follower = as(2);
    expect(follower.countAt(position)).toBe(-255);
    expect(follower.repair(position, 255)).toBe(3);
    expect(follower.tail()).toBe(position + 3);
  });

  it('a repair leaves alone what is published, free, or another’s', () => {
    const { as } = ringAt(4, 4, 1);
    const [producer, follower] = [as(1), as(2)];
    expect(follower.repair(4, 1)).toBe(0);
    producer.tryReserve(2);
    expect(follower.repair(4, 3)).toBe(0);
    producer.publish(4);
    // Its owner has gone on since: its intent is another reservation's.
    producer.tryReserve(1);
    expect(follower.repair(4, 1)).toBe(0);
    expect(follower.countAt(4)).toBe(2);
    expect(follower.repair(6, 1)).toBe(1);
  });

  it('in a full ring, what stands at the head is not taken for what will stand at the tail', () => {
    const { place, as } = ringAt(4, 4, 1);
    const [other, follower] = [as(8), as(2)];
    reserveAndDie(place, 7, 3);
    expect(other.tryReserve(1)).toBe(true);
    const tail = follower.tail();
    expect(tail & 3).toBe(0);
    expect(follower.countAt(tail)).toBe(0);
    expect(follower.repair(tail, 7)).toBe(0);
    expect(follower.tail()).toBe(tail);
  });

  it('one intent serves an owner in all its rings', () => {
    const { place, as } = ringAt(4, 4, 1);
    const other = new Ring(
      { ...place, words: new Int32Array(16), cursors: new Int32Array([4, 4]), tail: 0, head: 1 },
      1,
    );
    const ring = as(1);
    expect(ring.tryReserve(3)).toBe(true);
    ring.publish(4);
    expect(other.tryReserve(1)).toBe(true);
    other.publish(4);
    ring.release(4, 3);
    ring.releaseTo(7);
    reserveAndDie(place, 1, 3);
    expect(as(2).tryReserve(1)).toBe(true);
    expect(as(2).tail()).toBe(11);
  });
});

describe('against an obvious model', () => {
  const starts = fc.constantFrom(8, 2 ** 31 - 5, -5);

  it('a submit ring follows a list of reservations', () => {
    const step = fc.oneof(
      fc.record({
        do: fc.constant('reserve' as const),
        owner: fc.nat({ max: 3 }),
        count: fc.integer({ min: 1, max: 5 }),
      }),
      fc.record({ do: fc.constant('publish' as const), owner: fc.nat({ max: 3 }), count: fc.constant(0) }),
      fc.record({ do: fc.constant('follow' as const), owner: fc.constant(0), count: fc.constant(0) }),
    );
    fc.assert(
      fc.property(fc.constantFrom(2, 4, 8), starts, fc.array(step, { maxLength: 60 }), (capacity, first, steps) => {
        const { as } = ringAt(capacity, first | 0, 1);
        const rings = [as(1), as(2), as(3), as(200)];
        const follower = as(5);
        const open: { owner: number; at: number; count: number; published: boolean }[] = [];
        let used = 0;
        let tail = first | 0;
        for (const { do: what, owner, count } of steps) {
          const mine = open.find((one) => one.owner === owner && !one.published);
          if (what === 'reserve' && mine === undefined) {
            const fits = used + count <= capacity;
            expect(rings[owner]!.tryReserve(count)).toBe(fits);
            if (!fits) continue;
            expect(rings[owner]!.position).toBe(tail);
            open.push({ owner, at: tail, count, published: false });
            used += count;
            tail = (tail + count) | 0;
          } else if (what === 'publish' && mine !== undefined) {
            rings[owner]!.publish(mine.at);
            mine.published = true;
          } else if (what === 'follow' && open[0]?.published === true) {
            const { at, count: followed } = open.shift()!;
            expect(follower.countAt(at)).toBe(followed);
            follower.release(at, followed);
            follower.releaseTo((at + followed) | 0);
            used -= followed;
          }
          expect(follower.used()).toBe(used);
          const next = open[0];
          const owners = [1, 2, 3, 200];
          const stands = next === undefined ? 0 : next.published ? next.count : -owners[next.owner]!;
          expect(follower.countAt(next?.at ?? tail)).toBe(stands);
        }
      }),
      { numRuns: 500 },
    );
  });

  it('a ready ring is a bounded list', () => {
    const step = fc.tuple(fc.constantFrom('push', 'many', 'take', 'takes'), fc.integer({ min: 1, max: 9 }));
    fc.assert(
      fc.property(fc.constantFrom(2, 4, 8), starts, fc.array(step, { maxLength: 80 }), (capacity, first, steps) => {
        const { as } = ringAt(capacity, first | 0);
        const rings = [as(1), as(2)];
        const model: number[] = [];
        let item = 0;
        for (const [i, [what, count]] of steps.entries()) {
          const ring = rings[i & 1]!;
          if (what === 'push') {
            const fits = model.length < capacity;
            expect(ring.tryPush(++item, ~item)).toBe(fits);
            if (fits) model.push(item);
          } else if (what === 'many') {
            const items = Array.from({ length: count }, () => ++item);
            const fits = model.length + count <= capacity;
            expect(ring.tryPushMany(Int32Array.from(items.flatMap((one) => [one, ~one])), count)).toBe(fits);
            if (fits) model.push(...items);
          } else if (what === 'take') {
            const expected = model.shift();
            expect(ring.tryTake()).toBe(expected !== undefined);
            if (expected !== undefined) expect([ring.itemA, ring.itemB]).toEqual([expected, ~expected]);
          } else {
            const expected = model.splice(0, count);
            const pairs = new Int32Array(2 * count);
            expect(ring.tryTakeMany(pairs, count)).toBe(expected.length);
            expect([...pairs.subarray(0, 2 * expected.length)]).toEqual(expected.flatMap((one) => [one, ~one]));
          }
          expect(ring.used()).toBe(model.length);
        }
      }),
      { numRuns: 500 },
    );
  });
});
