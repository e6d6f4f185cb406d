// Every interleaving of the accesses of two or three threads to one ring, with threads that die anywhere. One line is
// printed a configuration. MILLRACE_INTERLEAVE=all adds the large ones (some hundred million steps).
import { afterAll, describe, expect, it } from 'vitest';
import { explore } from './explore.js';
import { RingWorld, type RingWorldOptions } from './ring-world.js';
import { walk } from './walk.js';

type Case = readonly [name: string, kills: number, options: RingWorldOptions];

const twoByTwo = [
  [1, 1],
  [1, 1],
];
const runs = [
  [3, 2],
  [2, 1],
];
const BEFORE_SIGN = 0x7ffffffe;
const BEFORE_ZERO = -2;

const cases: readonly Case[] = [
  ['submit ring of 2, single slots', 0, { capacity: 2, producers: twoByTwo, consumers: 'follower' }],
  ['submit ring of 2, single slots', 1, { capacity: 2, producers: twoByTwo, consumers: 'follower' }],
  ['submit ring of 2, single slots', 2, { capacity: 2, producers: twoByTwo, consumers: 'follower' }],
  ['submit ring of 4, runs of slots', 2, { capacity: 4, producers: runs, consumers: 'follower' }],
  [
    'submit ring of 4, writer and scheduler',
    1,
    { capacity: 4, producers: [[3, 1], [2]], consumers: 'writer and scheduler' },
  ],
  ['submit ring of 4, across 2^31', 1, { capacity: 4, producers: runs, consumers: 'follower', first: BEFORE_SIGN }],
  ['submit ring of 4, across 2^32', 1, { capacity: 4, producers: runs, consumers: 'follower', first: BEFORE_ZERO }],
  [
    'submit ring of 4, a successor',
    1,
    { capacity: 4, producers: [[2, 1], [1]], successor: [3], consumers: 'follower' },
  ],
  ['ready ring of 2, one taker', 0, { capacity: 2, producers: twoByTwo, consumers: [1] }],
  ['ready ring of 2, across 2^31', 0, { capacity: 2, producers: twoByTwo, consumers: [2], first: BEFORE_SIGN }],
  ['ready ring of 2, across 2^32', 0, { capacity: 2, producers: twoByTwo, consumers: [1], first: BEFORE_ZERO }],
  ['ready ring of 2, two takers', 1, { capacity: 2, producers: [[1, 1], [1]], consumers: [1, 2] }],
  ['ready ring of 4, batches, two takers', 1, { capacity: 4, producers: [[3, 2]], consumers: [2, 2] }],
];

const large: readonly Case[] = [
  ['submit ring of 2, three producers', 2, { capacity: 2, producers: [[1], [1], [1]], consumers: 'follower' }],
  ['submit ring of 4, three producers', 2, { capacity: 4, producers: [[2], [1], [3]], consumers: 'follower' }],
  [
    'submit ring of 2, three each',
    2,
    {
      capacity: 2,
      producers: [
        [1, 1, 1],
        [1, 1, 1],
      ],
      consumers: 'follower',
    },
  ],
  [
    'submit ring of 4, three each',
    2,
    {
      capacity: 4,
      producers: [
        [1, 3, 2],
        [2, 4, 1],
      ],
      consumers: 'follower',
    },
  ],
  ['submit ring of 4, writer and scheduler', 2, { capacity: 4, producers: runs, consumers: 'writer and scheduler' }],
  ['submit ring of 4, a successor', 1, { capacity: 4, producers: runs, successor: [1, 3], consumers: 'follower' }],
  ['ready ring of 2, two takers', 1, { capacity: 2, producers: twoByTwo, consumers: [1, 2] }],
  ['ready ring of 4, batches, two takers', 1, { capacity: 4, producers: [[3, 2, 1]], consumers: [3, 2] }],
  ['ready ring of 4, batches, two makers', 1, { capacity: 4, producers: [[2, 1], [3]], consumers: [3, 1] }],
  ['ready ring of 4, one maker, three takers', 2, { capacity: 4, producers: [[3, 2, 1]], consumers: [2, 1, 2] }],
];

const all = process.env.MILLRACE_INTERLEAVE === 'all';
const lines: string[] = [];
let total = 0;
afterAll(() => console.log(`${lines.join('\n')}\nring, all together: ${total.toLocaleString('en')} states`));

describe('all interleavings', () => {
  it.each(all ? [...cases, ...large] : cases)(
    '%s, kills up to %i: nothing is stuck, lost, doubled or out of order',
    (name, kills, options) => {
      const { states, steps, ends, complete, violation, trace } = explore(new RingWorld(options).machine, { kills });
      expect(violation, `\n${trace.join('\n')}\n`).toBeUndefined();
      expect(complete).toBe(true);
      expect(ends).toBeGreaterThan(0);
      total += states;
      lines.push(
        `${name}, kills ${kills}: ${states.toLocaleString('en')} states, ${steps.toLocaleString('en')} steps, stuck 0, ` +
          'lost 0, duplicates 0, out of order 0',
      );
    },
    3_600_000,
  );

  it('are a million and more', () => {
    expect(total).toBeGreaterThan(1_000_000);
  });
});

describe('random walks', () => {
  const seed = Number(process.env.MILLRACE_SEED ?? 20_261_101);

  it.each(cases)('%s, kills up to %i: no race, and nothing that matters is forgotten', (_, kills, options) => {
    const world = new RingWorld(options);
    let state = seed;
    const random = (): number => {
      state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
      return (state >>> 0) / 2 ** 32;
    };
    try {
      for (let i = 0; i < 200; i++) walk(world, kills, random);
    } catch (error) {
      throw new Error(`MILLRACE_SEED=${seed}`, { cause: error });
    }
  });
});
