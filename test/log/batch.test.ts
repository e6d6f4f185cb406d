import { describe, expect, it } from 'vitest';
import { memoryOver } from '../../native-free/record.js';
import {
  type BatchHeader,
  emptyBatchHeader,
  isBatchHeader,
  readBatchHeader,
  writeBatchHeader,
} from '../../src/log/batch.js';
import { readSegmentHeader, segmentName, segmentNumberOf, writeSegmentHeader } from '../../src/log/segment.js';

const HEADER: BatchHeader = {
  bodyBytes: 0xffffffe0,
  records: 0xfffffffe,
  recordsCrc: 0x89abcdef,
  version: 1 | (3 << 16),
  number: 2 ** 53 - 1,
  epoch: 7,
  position: 2 ** 52 + 64,
  syncedUpTo: 2 ** 52,
  idHigh: 2 ** 51 + 1,
};

function written(salt: number) {
  const memory = memoryOver(new ArrayBuffer(256));
  memory.u8.fill(0xa5);
  writeBatchHeader(memory, 64, HEADER, salt);
  return memory;
}

describe('a batch header', () => {
  it('reads back as it was written, and touches nothing beside it', () => {
    const memory = written(0xdeadbeef);
    expect(isBatchHeader(memory, 64, 0xdeadbeef)).toBe(true);
    const header = emptyBatchHeader();
    readBatchHeader(memory, 64, header);
    expect(header).toEqual(HEADER);
    expect(memory.u8.subarray(0, 64).every((byte) => byte === 0xa5)).toBe(true);
    expect(memory.u8.subarray(128).every((byte) => byte === 0xa5)).toBe(true);
  });

  it('of another directory is not valid', () => {
    expect(isBatchHeader(written(1), 64, 2)).toBe(false);
    expect(isBatchHeader(written(0), 64, 1)).toBe(false);
  });

  it('with any bit changed is not valid', () => {
    const memory = written(5);
    for (let bit = 0; bit < 512; bit++) {
      memory.u8[64 + (bit >> 3)] ^= 1 << (bit & 7);
      expect(isBatchHeader(memory, 64, 5), `bit ${bit}`).toBe(false);
      memory.u8[64 + (bit >> 3)] ^= 1 << (bit & 7);
    }
    expect(isBatchHeader(memory, 64, 5)).toBe(true);
  });

  it.each([0, 0xff])('of nothing but %i is not valid', (byte) => {
    const memory = memoryOver(new ArrayBuffer(64));
    memory.u8.fill(byte);
    for (const salt of [0, 1, 0xffffffff]) expect(isBatchHeader(memory, 0, salt)).toBe(false);
    expect(readSegmentHeader(memory, 0)).toBeUndefined();
  });
});

describe('a segment', () => {
  it('header reads back as it was written', () => {
    const memory = memoryOver(new ArrayBuffer(64));
    memory.u8.fill(0xa5);
    const header = {
      version: 1,
      salt: 0xfedcba98,
      number: 2 ** 40,
      base: 2 ** 50,
      batchNumber: 2 ** 49,
      epoch: 3,
      idHigh: 2 ** 51,
    };
    writeSegmentHeader(memory, 0, header);
    expect(readSegmentHeader(memory, 0)).toEqual(header);
    expect(memory.u8.subarray(56).every((byte) => byte === 0)).toBe(true);
    for (let bit = 0; bit < 512; bit++) {
      memory.u8[bit >> 3] ^= 1 << (bit & 7);
      expect(readSegmentHeader(memory, 0), `bit ${bit}`).toBeUndefined();
      memory.u8[bit >> 3] ^= 1 << (bit & 7);
    }
  });

  it('name sorts as its number does', () => {
    const numbers = [1, 9, 10, 999, 2 ** 32, 2 ** 53 - 1];
    expect(numbers.map((number) => segmentNumberOf(segmentName(number)))).toEqual(numbers);
    const names = numbers.map(segmentName);
    expect([...names].sort()).toEqual(names);
    for (const name of ['x.log', '.log', '1.log.cut-64', '1.logx', '-1.log', 'watermark']) {
      expect(segmentNumberOf(name)).toBeUndefined();
    }
  });
});
