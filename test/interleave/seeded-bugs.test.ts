// Would the checker notice? Faults that rings of this kind have had are put into the production source, one at a time,
// and each must be found. The first is the classic ring: nobody repairs what a dead thread left behind.
import { describe, expect, it } from 'vitest';
import { explore } from './explore.js';
import { RingWorld, type RingWorldOptions } from './ring-world.js';
import { walk } from './walk.js';

const submit: RingWorldOptions = {
  capacity: 4,
  producers: [
    [2, 1],
    [1, 3],
  ],
  consumers: 'follower',
};
const small: RingWorldOptions = { capacity: 2, producers: [[1, 1], [1]], consumers: 'follower' };
const ready: RingWorldOptions = { capacity: 2, producers: [[1, 1, 1], [1]], consumers: [1, 2] };
const batches: RingWorldOptions = { capacity: 4, producers: [[3, 2]], consumers: [3, 1] };

const singles: RingWorldOptions = { capacity: 4, producers: [[1, 1, 1, 1, 1, 1]], consumers: [1, 1] };
const mixed: RingWorldOptions = {
  capacity: 4,
  producers: [
    [2, 1, 2],
    [1, 3, 1],
  ],
  consumers: [1, 3, 1],
};

function violationOf(options: RingWorldOptions, kills: number): string | undefined {
  return explore(new RingWorld(options).machine, { kills, statesMax: 2_000_000 }).violation;
}

function edited(options: RingWorldOptions, from: string, to: string): RingWorldOptions {
  return { ...options, edits: [{ from, to }] };
}

describe('is found by exploring', () => {
  it('a dead owner whose slots nobody repairs: the classic stall', () => {
    expect(violationOf({ ...small, repairs: false }, 0)).toBeUndefined();
    expect(violationOf({ ...small, repairs: false }, 1)).toMatch(/^stuck/);
  });

  it('a repair on a stamp that was read before the death was known', () => {
    const options = edited(small, 'if (this.countAt(position) !== -deadOwner) return 0;', '');
    expect(violationOf(options, 0)).toBeUndefined();
    expect(violationOf(options, 1)).toBe('published what was not open');
  });

  it('a repair that leaves the tail where it is', () => {
    const from = 'compareExchange(this.#cursors, this.#tail, position, (position + count) | 0);\n    this.#words';
    expect(violationOf(edited(submit, from, 'this.#words'), 1)).toBe('the head went back, or passed the tail');
  });

  it('a number handed on before the tail is behind all its dead owner reserved', () => {
    const options: RingWorldOptions = { capacity: 4, producers: [[2, 1], [1]], successor: [3], consumers: 'follower' };
    expect(violationOf(options, 1)).toBeUndefined();
    expect(violationOf({ ...options, looksAtTail: false }, 1)).toBeDefined();
  });

  it('an intent stored after the exchange', () => {
    const options = {
      ...submit,
      edits: [
        {
          from: 'if (this.#intents[this.#ownIntent] !== count) store(this.#intents, this.#ownIntent, count);',
          to: '',
        },
        {
          from: '          compareExchange(cursors, this.#tail, tail, (tail + count) | 0);\n',
          to: '          store(this.#intents, this.#ownIntent, count);\n          compareExchange(cursors, this.#tail, tail, (tail + count) | 0);\n',
        },
      ],
    };
    expect(violationOf(options, 0)).toMatch(/^I3/);
  });

  it('a helper that takes every reservation for one slot', () => {
    const from = 'compareExchange(this.#cursors, this.#tail, tail, (tail + taken) | 0);';
    const to = 'compareExchange(this.#cursors, this.#tail, tail, (tail + Math.min(taken, 1)) | 0);';
    expect(violationOf(edited(submit, from, to), 0)).toMatch(/^I3/);
  });

  it('nobody helps the tail along', () => {
    const from = 'compareExchange(this.#cursors, this.#tail, tail, (tail + taken) | 0);';
    expect(violationOf(edited(small, from, ''), 0)).toBeUndefined();
    const options = edited({ ...small, repairs: false }, from, '');
    expect(violationOf(options, 1)).toMatch(/^stuck/);
  });

  it('an owner that leaves the tail to its helpers', () => {
    const from = 'compareExchange(cursors, this.#tail, tail, (tail + count) | 0);';
    expect(violationOf(edited(submit, from, ''), 0)).toBeDefined();
  });

  it('the head is not looked at', () => {
    const from = 'if ((tail + count - this.#headSeen) >>> 0 > this.capacity) {';
    expect(violationOf(edited(submit, from, 'if (false) {'), 0)).toBe('reserved more than is free');
    expect(violationOf(edited(ready, from, 'if (false) {'), 0)).toBe('reserved more than is free');
  });

  it('one slot more than there is', () => {
    const from = 'if (((tail + count - this.#headSeen) | 0) > this.capacity) return false;';
    const to = 'if (((tail + count - this.#headSeen) | 0) > this.capacity + 1) return false;';
    expect(violationOf(edited(submit, from, to), 0)).toBe('reserved more than is free');
  });

  it('a refusal that a late look at the tail alone explains', () => {
    const from = 'if (((tail + count - this.#headSeen) | 0) > this.capacity) return false;';
    const to = 'if ((tail + count - this.#headSeen) >>> 0 > this.capacity) return false;';
    const options: RingWorldOptions = {
      capacity: 2,
      producers: [
        [1, 1],
        [1, 1, 1],
      ],
      consumers: [1],
    };
    expect(violationOf(edited(options, from, to), 0)).toMatch(/refused without a reason/);
  });

  it('a slot that is taken for free in any lap', () => {
    const from = 'if (stamp >>> LAP_SHIFT === (((tail - this.capacity) >>> this.#lapShift) & LAP_MASK)) {';
    expect(violationOf(edited(submit, from, 'if (true) {'), 0)).toBeDefined();
  });

  it('only the first slot of a run is released', () => {
    const from = 'for (let i = 0; i < count; i++) {\n      const freed';
    const to = 'for (let i = 0; i < 1; i++) {\n      const freed';
    expect(violationOf(edited(submit, from, to), 0)).toMatch(/^stuck/);
  });

  it('published before it is written', () => {
    const write = 'this.#words[entry + 2] = a;\n    this.#words[entry + 3] = b;';
    const publish = 'this.publish(this.position);';
    const push = edited(ready, `${write}\n    ${publish}`, `${publish}\n    ${write}`);
    expect(violationOf(push, 0)).toMatch(/^took/);
    const items = 'words[entry + 2] = pairs[0]!;\n    words[entry + 3] = pairs[1]!;';
    const many = edited(batches, `${items}\n    this.publish(first);`, `this.publish(first);\n    ${items}`);
    expect(violationOf(many, 0)).toMatch(/^took/);
  });

  it('the count of a reservation written after it is published', () => {
    const options = {
      ...submit,
      edits: [
        { from: '          words[entry + 1] = count;\n', to: '' },
        {
          from: 'this.#stamp(position, PUBLISHED));\n  }',
          to: 'this.#stamp(position, PUBLISHED));\n    this.#words[this.#entry(position) + 1] = load(this.#intents, this.#ownIntent);\n  }',
        },
      ],
    };
    expect(violationOf(options, 0)).toMatch(/^followed/);
  });

  it('an item read after the head has moved past it', () => {
    const read = 'this.itemA = words[entry + 2]!;\n        this.itemB = words[entry + 3]!;';
    const exchange = 'if (compareExchange(cursors, this.#head, head, (head + 1) | 0) === head)';
    const from = `${read}\n        ${exchange} return true;`;
    const to = `${exchange} {\n ${read}\n return true; }`;
    expect(violationOf(edited(ready, from, to), 0)).toMatch(/^took/);
  });

  it('an item taken without an exchange', () => {
    const from = 'if (compareExchange(cursors, this.#head, head, (head + 1) | 0) === head) return true;';
    const to = 'store(cursors, this.#head, (head + 1) | 0); return true;';
    expect(violationOf(edited({ ...ready, consumers: [1, 1] }, from, to), 0)).toBeDefined();
  });

  it('an empty ring that a late look at the head alone explains', () => {
    const from = 'if (now === head) return false;';
    expect(violationOf(edited(ready, from, 'return false;'), 0)).toMatch(/refused without a reason/);
    const many = '} else if (load(cursors, this.#head) === head) {\n        return 0;';
    expect(violationOf(edited({ ...batches, consumers: [2, 2] }, many, '} else {\n        return 0;'), 0)).toMatch(
      /refused without a reason/,
    );
  });

  it('more taken than was there', () => {
    const from = 'head, (head + count) | 0) === head) return count;';
    expect(violationOf(edited(batches, from, 'head, (head + max) | 0) === head) return max;'), 0)).toBeDefined();
  });
});

describe('is found by walking', () => {
  function walks(options: RingWorldOptions): void {
    const world = new RingWorld(options);
    let state = 1;
    for (let i = 0; i < 500; i++) {
      walk(world, 0, () => {
        state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
        return (state >>> 0) / 2 ** 32;
      });
    }
  }

  it('a stamp published by a plain write', () => {
    const from = 'store(this.#words, this.#entry(position), this.#stamp(position, PUBLISHED));';
    const to = 'this.#words[this.#entry(position)] = this.#stamp(position, PUBLISHED);';
    expect(violationOf(edited(small, from, to), 0)).toBeUndefined();
    expect(() => walks(edited(submit, from, to))).toThrow(/^a race/);
  });

  it('a head moved by a plain write', () => {
    const from = 'store(this.#cursors, this.#head, position);';
    expect(() => walks(edited(submit, from, 'this.#cursors[this.#head] = position;'))).toThrow(/^a race/);
  });

  it('a published stamp read plainly', () => {
    const follow = 'const stamp = load(this.#words, entry);';
    expect(() => walks(edited(submit, follow, 'const stamp = this.#words[entry]!;'))).toThrow(/^a race/);
    const take = 'const stamp = load(words, entry);';
    expect(() => walks(edited(singles, take, 'const stamp = words[entry]!;'))).toThrow(/out of order/);
  });

  it('a batch whose first stamp was only guessed', () => {
    const from = 'if (count > 0 && (stamp & STATE_MASK) === PUBLISHED) load(words, entry);';
    expect(() => walks(edited(mixed, from, ''))).toThrow(/out of order/);
  });

  it('an item in the middle of a batch taken from a guessed head', () => {
    const from = 'if ((stamp & STATE_MASK) === PUBLISHED || load(cursors, this.#head) === head) {';
    expect(() => walks(edited(mixed, from, 'if (true) {'))).toThrow(/out of order/);
  });

  it('and nothing is found where nothing is wrong', () => {
    for (const options of [submit, ready, singles, mixed]) walks(options);
  });
});
