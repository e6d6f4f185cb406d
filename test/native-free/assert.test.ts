import { describe, expect, it } from 'vitest';
import { assert, BreachError, unreachable } from '../../native-free/assert.js';

describe('assert', () => {
  it('lets pass what holds and throws a breach that states the broken rule otherwise', () => {
    expect(() => assert(true, 'never said')).not.toThrow();
    expect(() => assert(false, 'a row has one owner')).toThrow(new BreachError('broken rule: a row has one owner'));
  });

  it('throws an error with a name and a code of its own', () => {
    const error = new BreachError('x');
    expect(error).toBeInstanceOf(Error);
    expect([error.name, error.code]).toEqual(['BreachError', 'ERR_MILLRACE_BREACH']);
  });

  it('throws at the end of a switch that should have been exhaustive, naming the value', () => {
    expect(() => unreachable('surprise' as never)).toThrow(new BreachError('unreachable: surprise'));
  });
});
