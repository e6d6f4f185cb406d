import { expect, it } from 'vitest';
import { MemoryStorage } from './memory-storage.js';
import { Run, textsIn } from './run.js';

it('writes and replays', () => {
  const disk = new MemoryStorage();
  const run = new Run(disk);
  run.enqueue('a');
  run.enqueue(['b', 'c']);
  run.settle();
  run.close();
  expect(textsIn(disk)).toEqual(['a', 'b', 'c']);
  console.log(disk.operations);
});
