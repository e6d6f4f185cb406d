/**
 * FORMAT.md's own example: the bytes printed there are the first golden file. Later versions must read them for ever,
 * and this version must write exactly them.
 */
import * as fs from 'node:fs';
import { expect, it } from 'vitest';
import { idOf, RecordType, timeOf, typeOf } from '../../native-free/record.js';
import { recover } from '../../src/log/recovery.js';
import { LOG } from './logs.js';
import { MemoryStorage } from './memory-storage.js';
import { DIR, Run, seen } from './run.js';

function example(): Uint8Array {
  const page = fs.readFileSync(new URL('../../src/log/FORMAT.md', import.meta.url), 'utf8');
  const dump = /```hex\n(.*?)```/s.exec(page)![1];
  const lines = dump.trimEnd().split('\n');
  expect(lines.map((line) => Number.parseInt(line.slice(0, 8), 16))).toEqual(lines.map((_, i) => 16 * i));
  return Uint8Array.from(
    lines.flatMap((line) => line.slice(10, 58).trim().split(/ +/)),
    (byte) => Number.parseInt(byte, 16),
  );
}

it('reads the example in FORMAT.md', () => {
  const disk = new MemoryStorage();
  disk.ensureDirectory(DIR);
  disk.put(LOG, example());
  const types: number[] = [];
  const recovery = recover(disk, DIR, (memory, offset) => {
    types.push(typeOf(memory, offset));
    if (types.length === 1) {
      expect(timeOf(memory, offset)).toBe(1_800_000_000_000);
    } else {
      expect(seen(memory, offset)).toEqual({ id: 4096, type: RecordType.ENQUEUE, text: '{"file":"a.png"}' });
      expect(idOf(memory, offset)).toBe(4096);
    }
  });
  expect(types).toEqual([RecordType.EPOCH, RecordType.ENQUEUE]);
  expect(recovery).toEqual({
    fresh: false,
    segment: 1,
    segmentBase: 0,
    segments: [{ number: 1, base: 0 }],
    position: 256,
    batchNumber: 2,
    epoch: 1,
    idHigh: 1_056_770,
    salt: 0x5eed5eed,
    records: 2,
    batches: 2,
  });
});

it('writes the example in FORMAT.md', () => {
  const disk = new MemoryStorage();
  const recovery = { ...recover(disk, DIR, () => {}), salt: 0x5eed5eed };
  const run = new Run(disk, { recovery, idBase: 0, wallMs: 1_800_000_000_000 });
  const bytes = example();
  // The job as a producer put it into the ring.
  const ring = run.ring(3);
  expect(ring.tryReserve(2)).toBe(true);
  run.shared.slots.u8.set(bytes.subarray(256), run.shared.slotOffset(ring.position));
  ring.publish(ring.position);
  run.settle();
  expect(Buffer.from(disk.bytes(LOG)).toString('hex')).toBe(Buffer.from(bytes).toString('hex'));
});
