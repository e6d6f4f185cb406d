/** The end of a compaction, step by step: what is below the new HEAD goes when that is durable, and not before. */
import { expect, it } from 'vitest';
import { Arena } from '../../native-free/arena.js';
import { allocateShared, Cell, Shared, Word } from '../../native-free/layout.js';
import { Outbox } from '../../native-free/outbox.js';
import { idOf, RecordType, typeOf } from '../../native-free/record.js';
import { initialiseRing, Ring } from '../../native-free/ring.js';
import { segmentName } from '../../src/log/segment.js';
import { Compactor } from '../../src/schedule/compactor.js';
import { Jobs } from '../../src/schedule/jobs.js';
import { Outcomes } from '../../src/schedule/outcomes.js';
import { Replies } from '../../src/schedule/replies.js';
import { errno, MemoryStorage } from '../log/memory-storage.js';

const DIR = '/data';
const RING_SLOTS = 4096;
const SEGMENT_BYTES = 65_536;
const NEWEST = 4;

/** A compaction of four segments without a live job, up to the HEAD record that names the last of them. */
function compaction(): {
  storage: MemoryStorage;
  shared: Shared;
  compactor: Compactor;
  answers: number[];
  files(): string[];
} {
  const shared = new Shared(allocateShared({ ringSlots: RING_SLOTS, rows: 5000, arenaBytes: 1 << 20 }));
  const arena = new Arena(shared.arena.u8.buffer as SharedArrayBuffer, 64, 1 << 20);
  const storage = new MemoryStorage();
  const log = { storage, dir: DIR, memoryBytes: 1 << 20 };
  const jobs = new Jobs(shared, arena, new Outcomes(new Replies(shared, arena)), log, 0, 0);
  jobs.serve();
  initialiseRing(shared.submitPlace);
  shared.control[Word.COMMITTED] = RING_SLOTS;
  for (let segment = 1; segment <= NEWEST; segment++) {
    storage.put(`${DIR}/${segmentName(segment)}`, new Uint8Array(SEGMENT_BYTES));
    shared.segmentBases[segment] = (segment - 1) * SEGMENT_BYTES;
  }
  shared.cells[Cell.SEGMENT_FIRST] = 1;
  shared.cells[Cell.SEGMENT_NEWEST] = NEWEST;
  const answers: number[] = [];
  const outbox = new Outbox(shared, new Ring(shared.submitPlace, 2));
  const place = { storage, dir: DIR, segmentBytes: SEGMENT_BYTES };
  const compactor = new Compactor(shared, jobs, outbox, place, {
    reply: (_owner, _request, status) => answers.push(status),
    recall: () => {},
  });
  compactor.ask(3, 1);
  compactor.step(0);
  expect(shared.control[Word.ROLL]).toBe(1);
  shared.control[Word.ROLL] = 0;
  while (compactor.step(0) > 0);
  return { storage, shared, compactor, answers, files: () => storage.list(DIR) };
}

it('what is below a HEAD record goes when that is committed, and not before', () => {
  const { storage, shared, compactor, answers, files } = compaction();
  const slots = shared.slots;
  const at = shared.slotOffset(RING_SLOTS);
  expect([typeOf(slots, at), idOf(slots, at)]).toEqual([RecordType.HEAD, NEWEST]);
  expect(compactor.step(0)).toBe(0);
  expect([files().length, answers]).toEqual([NEWEST, []]);

  compactor.headCommitted();
  expect(files()).toEqual([segmentName(NEWEST)]);
  expect(answers).toEqual([1]);
  expect(shared.cells[Cell.SEGMENT_FIRST]).toBe(NEWEST);
  // The lowest first, so that a crash in between leaves no gap; their names are gone for good at the end.
  expect(storage.operations.map(({ kind, name }) => (kind === 'remove' ? Number.parseInt(name, 10) : kind))).toEqual([
    1,
    2,
    3,
    'syncDirectory',
  ]);
  expect(storage.crash().list(DIR)).toEqual([segmentName(NEWEST)]);
});

it('a segment that cannot be removed is the end of the broker, and nothing more is touched', () => {
  const { storage, shared, compactor, answers, files } = compaction();
  storage.fault = ({ name }) => {
    if (name === segmentName(2)) throw errno('EIO');
  };
  compactor.headCommitted();
  expect(shared.control[Word.POISON]).toBeGreaterThan(0);
  expect(files()).toEqual([2, 3, 4].map(segmentName));
  expect(storage.operations.at(-1)).toMatchObject({ kind: 'remove', name: segmentName(2) });
  expect([shared.cells[Cell.SEGMENT_FIRST], answers]).toEqual([1, []]);
});
