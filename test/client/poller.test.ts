import { expect, it } from 'vitest';
import { Poller } from '../../src/client/poller.js';

/** A poller under a clock of the test's own, and how often it has looked. */
function polled() {
  const state = { ms: 0, looks: 0 };
  const poller = new Poller(
    () => state.looks++,
    () => state.ms,
  );
  /** Waits for a flush that takes `ms`; returns whether it slept at the end. */
  const flush = async (position: number, ms: number): Promise<boolean> => {
    for (const end = state.ms + ms; state.ms < end; state.ms += 0.25) {
      if (!poller.again(position)) {
        state.ms = end;
        return true;
      }
      await new Promise((resolve) => setImmediate(resolve));
    }
    return false;
  };
  return { state, poller, flush };
}

it('looks once a turn, however often it is asked', async () => {
  const { state, poller } = polled();
  for (let i = 0; i < 5; i++) expect(poller.again(1)).toBe(true);
  expect(state.looks).toBe(0);
  await new Promise((resolve) => setImmediate(resolve));
  expect(state.looks).toBe(1);
});

it('looks all through a flush of less than a millisecond, and sleeps through the rest of a longer one', async () => {
  const { state, flush } = polled();
  expect(await flush(1, 0.75)).toBe(false);
  expect(state.looks).toBe(3);
  expect(await flush(2, 3)).toBe(true);
  expect(state.looks).toBe(7);
});

it('sleeps at once twice as often after each flush in a row that took too long, up to 64 times', async () => {
  const { state, flush } = polled();
  let position = 0;
  const sleepsUntilNextLook = async (): Promise<number> => {
    for (let sleeps = 0; ; sleeps++) {
      const { looks } = state;
      expect(await flush(++position, 4)).toBe(true);
      if (state.looks > looks) return sleeps;
    }
  };
  const pauses = [];
  for (let i = 0; i < 9; i++) pauses.push(await sleepsUntilNextLook());
  expect(pauses).toEqual([0, 1, 3, 7, 15, 31, 63, 64, 64]);
});

it('starts afresh after a flush that was quick', async () => {
  const { state, flush } = polled();
  expect(await flush(1, 4)).toBe(true);
  expect(await flush(2, 4)).toBe(true);
  expect(await flush(3, 0.5)).toBe(false);
  expect(await flush(4, 4)).toBe(true);
  const { looks } = state;
  expect(await flush(5, 0.5)).toBe(true);
  expect(state.looks).toBe(looks);
  expect(await flush(6, 0.5)).toBe(false);
});
