import { once } from 'node:events';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { wake } from '../../native-free/agent.js';
import { Encoder } from '../../native-free/encoder.js';
import { allocateShared, BrokerState, Owner, Shared, Word } from '../../native-free/layout.js';
import { RecordType } from '../../native-free/record.js';
import { Ring } from '../../native-free/ring.js';
import { recover } from '../../src/log/recovery.js';
import { segmentName } from '../../src/log/segment.js';
import { DiskStorage } from '../../src/log/storage.js';
import type { StartWriter, WriterReply, WriterThreadData } from '../../src/log/writer-thread.js';

const ENTRY = new URL('../../dist/src/log/writer-thread.js', import.meta.url);
const storage = new DiskStorage();
let dir: string;

beforeEach(() => {
  dir = fs.mkdtempSync(join(tmpdir(), 'millrace-writer-'));
});

afterEach(() => {
  fs.rmSync(dir, { recursive: true, force: true });
});

it('serves after it got its orders, commits what is published, and exits by itself when the broker is closed', async () => {
  const buffers = allocateShared({ ringSlots: 1024, rows: 2, arenaBytes: 64 });
  const shared = new Shared(buffers);
  const workerData: WriterThreadData = { buffers, dir, options: {} };
  const worker = new Worker(ENTRY, { workerData });
  const recovery = recover(storage, dir, () => {});
  worker.postMessage({ recovery, idBase: 0, epoch: 1 } satisfies StartWriter);
  const [reply] = (await once(worker, 'message')) as [WriterReply];
  expect(reply).toEqual({ type: 'serving' });

  const ring = new Ring(shared.submitPlace, Owner.FIRST);
  const encoder = new Encoder();
  for (let i = 0; i < 100; i++) {
    encoder.clear();
    encoder.appendShort(RecordType.CANCEL, 0, i, 0, 0, 0);
    expect(ring.tryReserve(1)).toBe(true);
    encoder.moveInto(shared.slots, shared.slotOffset(ring.position), 0, 32, 0);
    ring.publish(ring.position);
    wake(shared.control, Word.WRITER_ASLEEP);
  }
  for (let seen = shared.control[Word.COMMITTED]; ; seen = Atomics.load(shared.control, Word.COMMITTED)) {
    if (seen === 1024 + 100) break;
    const { async, value } = Atomics.waitAsync(shared.control, Word.COMMITTED, seen, 5);
    if (async) await value;
  }
  Atomics.store(shared.control, Word.STATE, BrokerState.CLOSED);
  const exit = once(worker, 'exit');
  wake(shared.control, Word.WRITER_ASLEEP);
  expect(await exit).toEqual([0]);
  let records = 0;
  expect(recover(storage, dir, () => records++).cut).toBeUndefined();
  expect(records).toBe(101);
});

it('says what failed when it cannot start, and exits', async () => {
  const recovery = recover(storage, dir, () => {});
  fs.symlinkSync(join(dir, 'elsewhere'), join(dir, segmentName(1)));
  const buffers = allocateShared({ ringSlots: 64, rows: 2, arenaBytes: 64 });
  const worker = new Worker(ENTRY, { workerData: { buffers, dir, options: {} } satisfies WriterThreadData });
  worker.postMessage({ recovery, idBase: 0, epoch: 1 } satisfies StartWriter);
  const exit = once(worker, 'exit');
  const [reply] = (await once(worker, 'message')) as [WriterReply];
  expect(reply).toMatchObject({ type: 'failed', code: 'ERR_MILLRACE_IO', facts: { errno: 'EEXIST' } });
  await exit;
  expect(fs.existsSync(join(dir, 'elsewhere'))).toBe(false);
});
