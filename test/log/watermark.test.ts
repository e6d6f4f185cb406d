import { expect, it } from 'vitest';
import { readWatermark, WATERMARK_NAME, WatermarkFile } from '../../src/log/watermark.js';
import { errno, MemoryStorage } from './memory-storage.js';
import { DIR } from './run.js';

const PATH = `${DIR}/${WATERMARK_NAME}`;

it('reads back the last one written, whichever slot that went to', () => {
  const disk = new MemoryStorage();
  const file = new WatermarkFile(disk, PATH, 5);
  expect(readWatermark(disk, PATH)).toBeUndefined();
  for (let n = 1; n < 6; n++) {
    file.write(64 * n, n);
    expect(readWatermark(disk, PATH)).toEqual({ position: 64 * n, batchNumber: n, salt: 5 });
  }
});

it('leaves the one before when a write is torn, short or refused for want of space', () => {
  for (let position = 0; position < 32; position++) {
    const disk = new MemoryStorage();
    const file = new WatermarkFile(disk, PATH, 5);
    for (const n of [1, 2, 3]) file.write(64 * n, n);
    const whole = disk.bytes(PATH);
    file.write(256, 4);
    const torn = disk.bytes(PATH);
    torn.set(whole.subarray(512 + position, 1024), 512 + position);
    disk.put(PATH, torn);
    const found = readWatermark(disk, PATH);
    expect([192, 256]).toContain(found!.position);
  }
  const disk = new MemoryStorage();
  const file = new WatermarkFile(disk, PATH, 5);
  for (const n of [1, 2]) file.write(64 * n, n);
  disk.fault = ({ kind }) => (kind === 'write' ? 20 : undefined);
  file.write(192, 3);
  expect(readWatermark(disk, PATH)?.position).toBe(128);
  disk.fault = ({ kind }) => {
    if (kind === 'write') throw errno('ENOSPC');
  };
  file.write(256, 4);
  expect(readWatermark(disk, PATH)?.position).toBe(128);
});

it('is nothing when there is no file', () => {
  const disk = new MemoryStorage();
  disk.ensureDirectory(DIR);
  expect(readWatermark(disk, PATH)).toBeUndefined();
});
