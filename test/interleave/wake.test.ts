// No wake-up is lost, whatever the order of sleeping, working and waking, and whoever dies in the middle of a wake-up.
import { afterAll, describe, expect, it } from 'vitest';
import { explore } from './explore.js';
import { WakeWorld, type WakeWorldOptions } from './wake-world.js';

const cases: readonly (readonly [string, number, WakeWorldOptions])[] = [
  ['an agent and two wakers', 0, { wakers: [2, 2], sleepers: 'agent' }],
  ['an agent and two wakers', 2, { wakers: [2, 2], sleepers: 'agent' }],
  ['an agent and three wakers', 1, { wakers: [1, 1, 1], sleepers: 'agent' }],
  ['two clients and one waker', 1, { wakers: [2], sleepers: 2 }],
  ['one client and two wakers', 2, { wakers: [2, 2], sleepers: 1 }],
];
const lines: string[] = [];
afterAll(() => console.log(lines.join('\n')));

describe('all interleavings', () => {
  it.each(cases)('%s, kills up to %i: no wake-up is lost', (name, kills, options) => {
    const { states, steps, ends, complete, violation, trace } = explore(new WakeWorld(options).machine, { kills });
    expect(violation, `\n${trace.join('\n')}\n`).toBeUndefined();
    expect(complete).toBe(true);
    expect(ends).toBeGreaterThan(0);
    const counts = `${states.toLocaleString('en')} states, ${steps.toLocaleString('en')} steps`;
    lines.push(`${name}, kills ${kills}: ${counts}, stuck 0, lost wake-ups 0`);
  });
});

describe('a seeded bug is found', () => {
  const agent: WakeWorldOptions = { wakers: [2, 1], sleepers: 'agent' };
  const clients: WakeWorldOptions = { wakers: [2], sleepers: 1 };

  function violationOf(options: WakeWorldOptions, kills = 0): string | undefined {
    return explore(new WakeWorld(options).machine, { kills, statesMax: 2_000_000 }).violation;
  }

  function edited(options: WakeWorldOptions, from: string, to: string): WakeWorldOptions {
    return { ...options, edits: [{ from, to }] };
  }

  it('the sleeper does not look once more', () => {
    const from = 'if (agent.step() > 0 || agent.finished) {';
    expect(violationOf(edited(agent, from, 'if (agent.finished) {'))).toMatch(/^a lost wake-up/);
  });

  it('the sleeper looks before it says that it sleeps', () => {
    const from = 'store(words, asleep, 1);\n    if (agent.step() > 0 || agent.finished) {';
    const to = 'if (agent.step() === 0) store(words, asleep, 1); else {';
    expect(violationOf(edited(agent, from, to))).toMatch(/^a lost wake-up/);
  });

  it('the waker looks at the sleeper before its work can be seen', () => {
    expect(violationOf({ ...agent, wakesFirst: true })).toMatch(/^a lost wake-up/);
  });

  it('the waker takes the flag back after its notify', () => {
    const from = 'if (load(words, asleep) === 1 && compareExchange(words, asleep, 1, 0) === 1) notify(words, asleep);';
    const to = 'if (load(words, asleep) === 1) { notify(words, asleep); store(words, asleep, 0); }';
    expect(violationOf(edited(agent, from, to))).toMatch(/^a lost wake-up/);
  });

  it('nobody is woken after the death of a waker that had taken the flag back', () => {
    expect(violationOf({ ...agent, wakesAfterDeath: false })).toBeUndefined();
    expect(violationOf({ ...agent, wakesAfterDeath: false }, 1)).toMatch(/^a lost wake-up/);
    expect(violationOf({ ...clients, wakesAfterDeath: false }, 1)).toMatch(/^a lost wake-up/);
  });

  it('after a death everybody is woken whose flag is still up', () => {
    const from = 'store(control, Word.WRITER_ASLEEP, 0);\n  notify(control, Word.WRITER_ASLEEP);';
    expect(violationOf(edited(agent, from, 'wake(control, Word.WRITER_ASLEEP);'), 1)).toMatch(/^a lost wake-up/);
  });

  it('a client that sleeps before it says what for', () => {
    expect(violationOf({ ...clients, wantsLast: true })).toMatch(/^a lost wake-up/);
  });
});
