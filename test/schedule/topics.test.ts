import { describe, expect, it } from 'vitest';
import { Topics } from '../../src/schedule/topics.js';

/** Whether a topic matches a pattern, in the obvious way. */
function matches(pattern: readonly string[], topic: readonly string[]): boolean {
  const [first, ...rest] = pattern;
  if (first === undefined) return topic.length === 0;
  if (first === '#') return matches(rest, topic) || (topic.length > 0 && matches(pattern, topic.slice(1)));
  return topic.length > 0 && (first === '*' || first === topic[0]) && matches(rest, topic.slice(1));
}

function random(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state * 1103515245 + 12345) & 0x7fffffff;
    return (state >>> 8) % below;
  };
}

describe('topics', () => {
  it.each([
    ['a.b', 'a.b', true],
    ['a.b', 'a.c', false],
    ['a.*', 'a.b', true],
    ['a.*', 'a', false],
    ['a.*', 'a.b.c', false],
    ['a.#', 'a', true],
    ['a.#', 'a.b.c', true],
    ['#', 'a', true],
    ['#.b', 'b', true],
    ['#.b', 'a.b', true],
    ['#.b', 'a.b.c', false],
    ['a.#.c', 'a.c', true],
    ['a.#.c', 'a.x.y.c', true],
    ['*.*', 'a.b', true],
    ['#.*', 'a', true],
    ['a', 'A', false],
    ['__proto__', '__proto__', true],
    ['constructor', 'toString', false],
    ['*', '#', true],
    ['#', '*.#', true],
  ])('%s takes %s: %s', (pattern, topic, taken) => {
    const topics = new Topics();
    topics.bind(pattern, 7);
    expect(topics.match(topic)).toEqual(taken ? [7] : []);
  });

  it('agree with the obvious way on random topics while bindings come and go', () => {
    const pick = random(20261201);
    const words = ['a', 'b', 'c', '*', '#'];
    const some = (from: number): string[] => Array.from({ length: 1 + pick(5) }, () => words[pick(from)]!);
    const topics = new Topics();
    const bound = new Map<string, number>();
    for (let round = 0; round < 4000; round++) {
      const pattern = some(5).join('.');
      if (bound.has(pattern)) {
        expect(topics.unbind(pattern, bound.get(pattern)!)).toBe(true);
        expect(topics.unbind(pattern, bound.get(pattern)!)).toBe(false);
        bound.delete(pattern);
      } else {
        expect(topics.bind(pattern, round)).toBe(true);
        expect(topics.bind(pattern, round)).toBe(false);
        bound.set(pattern, round);
      }
      const topic = some(3);
      const expected = [...bound].filter(([each]) => matches(each.split('.'), topic)).map(([, queue]) => queue);
      expect(topics.match(topic.join('.')).sort((x, y) => x - y)).toEqual(expected.sort((x, y) => x - y));
      expect(topics.size).toBe(bound.size);
    }
  });

  it('give a queue once, however many of its patterns match', () => {
    const topics = new Topics();
    for (const pattern of ['a.b', 'a.*', '#', '*.b', 'a.#']) topics.bind(pattern, 3);
    topics.bind('#.b', 4);
    expect(topics.match('a.b').sort()).toEqual([3, 4]);
  });

  it('take steps bounded by words times nodes for patterns full of #', () => {
    const topics = new Topics();
    const hostile = Array.from({ length: 30 }, () => '#.a').join('.');
    topics.bind(`${hostile}.b`, 1);
    // Tried one by one there would be more ways than this test could ever walk.
    expect(topics.match(Array.from({ length: 60 }, () => 'a').join('.'))).toEqual([]);
    expect(topics.match(`${Array.from({ length: 60 }, () => 'a').join('.')}.b`)).toEqual([1]);
  });

  it('keep nothing of what was unbound', () => {
    const topics = new Topics();
    topics.bind('a.b.c', 1);
    topics.bind('a.b', 2);
    topics.unbind('a.b.c', 1);
    expect(topics.match('a.b')).toEqual([2]);
    expect(topics.unbind('a.b.c', 1)).toBe(false);
    topics.unbind('a.b', 2);
    expect([topics.size, topics.match('a.b')]).toEqual([0, []]);
  });
});
