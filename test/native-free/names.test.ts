import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { describe, expect, it, onTestFinished } from 'vitest';
import { allocateShared, NAME_BYTES_MAX, QUEUES_MAX, Shared, Word } from '../../native-free/layout.js';
import { nameOf, queueNamed } from '../../native-free/names.js';
import { programPath } from '../children.js';
import type { NamesThread } from '../programs/names-thread.js';

const buffers = () => allocateShared({ ringSlots: 64, rows: 2, arenaBytes: 64 });

describe('names', () => {
  it('a name has one id, and an id one name', () => {
    const shared = new Shared(buffers());
    const other = new Shared(buffers());
    const names = ['jobs', 'Jobs', 'job', '', 'ä', 'a\u0308', '列', '💀', 'x'.repeat(NAME_BYTES_MAX)];
    const ids = names.map((name) => queueNamed(shared, name));
    expect(ids).toEqual(names.map((_, i) => i + 1));
    expect(names.map((name) => queueNamed(shared, name))).toEqual(ids);
    expect(ids.map((id) => nameOf(shared, id))).toEqual(names);
    expect(nameOf(shared, 0)).toBe('');
    expect(nameOf(shared, names.length + 1)).toBe('');
    expect(queueNamed(other, 'Jobs')).toBe(1);
  });

  it('recovery names queues under the ids they had, and new ones go on behind', () => {
    const shared = new Shared(buffers());
    expect(queueNamed(shared, 'seven', 7)).toBe(7);
    expect(queueNamed(shared, 'three', 3)).toBe(3);
    expect(queueNamed(shared, 'seven', 7)).toBe(7);
    expect(queueNamed(shared, 'new')).toBe(8);
    expect([3, 7, 8].map((id) => nameOf(shared, id))).toEqual(['three', 'seven', 'new']);
  });

  it('there is room for one less than the limit, and being refused changes nothing', () => {
    const shared = new Shared(buffers());
    // Long ones first: a name must not be taken for a longer one that begins with it and lies in its way in the table.
    for (let id = 1; id < QUEUES_MAX - 1; id++) {
      if (queueNamed(shared, `queue ${QUEUES_MAX - id}`) !== id) expect.fail(`id ${id} was another's`);
    }
    expect(queueNamed(shared, 'the last')).toBe(QUEUES_MAX - 1);
    for (let i = 0; i < 3; i++) expect(queueNamed(shared, `one more ${i}`)).toBe(-1);
    expect(shared.control[Word.QUEUES]).toBe(QUEUES_MAX - 1);
    expect(queueNamed(shared, `queue ${QUEUES_MAX - 1}`)).toBe(1);
    expect(queueNamed(shared, 'the last')).toBe(QUEUES_MAX - 1);
    expect(nameOf(shared, QUEUES_MAX - 1)).toBe('the last');
  });

  it('two threads that race for one name get one id', async () => {
    const shared = buffers();
    const line = new SharedArrayBuffer(4);
    const names = Array.from({ length: 20_000 }, (_, i) => `${i}`);
    const answers = [1, 2].map(async () => {
      const workerData: NamesThread = { buffers: shared, names, line, threads: 2 };
      const worker = new Worker(programPath('names-thread'), { workerData });
      onTestFinished(async () => void (await worker.terminate()));
      const [ids] = (await once(worker, 'message')) as [Int32Array];
      return ids;
    });
    const [first, second] = await Promise.all(answers);
    const here = new Shared(shared);
    expect(first).toEqual(second);
    expect(names.every((name, i) => queueNamed(here, name) === first![i] && nameOf(here, first![i]!) === name)).toBe(
      true,
    );
    expect(new Set(first).size).toBe(names.length);
    // Who lost a race left an id unused.
    expect(here.control[Word.QUEUES]).toBeGreaterThanOrEqual(names.length);
  });
});
