import { describe, expect, it } from 'vitest';
import { Event, nextState, ROW_EVENTS, ROW_STATES, State, TRANSITIONS } from '../../src/schedule/transitions.js';

describe('transitions', () => {
  it('numbers states and events as their lists are ordered', () => {
    expect(Object.values(State)).toEqual(ROW_STATES.map((_, index) => index));
    expect(Object.values(Event)).toEqual(ROW_EVENTS.map((_, index) => index));
    expect(Object.keys(State).map((name) => name.toLowerCase())).toEqual([...ROW_STATES]);
    expect(Object.keys(Event).map((name) => name.toLowerCase().replaceAll('_', '-'))).toEqual([...ROW_EVENTS]);
  });

  it('gives every pair of state and event exactly one outcome: one row of the table, or a breach', () => {
    for (const [state, from] of ROW_STATES.entries()) {
      for (const [event, name] of ROW_EVENTS.entries()) {
        const rows = TRANSITIONS.filter(([at, by]) => at === from && by === name);
        expect(rows.length, `${from} by ${name}`).toBeLessThanOrEqual(1);
        if (rows.length === 0) {
          expect(() => nextState(state, event)).toThrow(`no transition from ${from} by ${name}`);
        } else {
          expect(ROW_STATES[nextState(state, event)]).toBe(rows[0]![2]);
        }
      }
    }
  });

  it('reaches every state from free and leaves every state for free', () => {
    const reach = (from: string, step: (row: readonly string[]) => [string, string]): Set<string> => {
      const seen = new Set([from]);
      for (let grown = true; grown; ) {
        grown = false;
        for (const row of TRANSITIONS) {
          const [at, to] = step(row);
          if (seen.has(at) && !seen.has(to)) grown = seen.add(to) !== undefined;
        }
      }
      return seen;
    };
    expect(reach('free', ([at, , to]) => [at!, to!]).size).toBe(ROW_STATES.length);
    expect(reach('free', ([at, , to]) => [to!, at!]).size).toBe(ROW_STATES.length);
  });

  it('never lets a job that has ended run again, but for a redrive of a dead one', () => {
    for (const [from, event, to] of TRANSITIONS) {
      if (from === 'done') expect([event, to]).toEqual(['forget', 'free']);
      if (from === 'dead') expect(['retry', 'retry-later', 'remove']).toContain(event);
    }
  });
});
