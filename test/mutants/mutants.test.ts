/** Mutants are text: this keeps them in step with the sources. Whether tests kill them is `npm run mutants`. */
import { existsSync, readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { MUTANTS } from './mutants.js';

it('every mutant changes a text that stands exactly once, and names tests that are there', () => {
  const wrong = MUTANTS.filter(({ file, from, to, tests }) => {
    const found = readFileSync(file, 'utf8').split(from).length - 1;
    return found !== 1 || from === to || tests.length === 0 || !tests.every((test) => existsSync(test));
  });
  expect(wrong.map(({ name }) => name)).toEqual([]);
  expect(new Set(MUTANTS.map(({ name }) => name)).size).toBe(MUTANTS.length);
});
