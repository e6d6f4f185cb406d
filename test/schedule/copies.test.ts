/** What compaction writes again about queues and bindings must not undo what was said before it got into the log. */
import { expect, it } from 'vitest';
import { Arena } from '../../native-free/arena.js';
import { Encoder } from '../../native-free/encoder.js';
import { allocateShared, QueueFlag, QueueWord, Shared } from '../../native-free/layout.js';
import { COPIED, Level, RecordType } from '../../native-free/record.js';
import { Jobs } from '../../src/schedule/jobs.js';
import { Outcomes } from '../../src/schedule/outcomes.js';
import { Replies } from '../../src/schedule/replies.js';
import { MemoryStorage } from '../log/memory-storage.js';

const CONFIG = {
  name: 'q',
  attempts: 1,
  crashes: 1,
  base: 0,
  max: 0,
  jitter: 'none',
  visibility: 1000,
  resultRetention: 0,
  level: 0,
};

/** The jobs of a broker that replays, or has replayed, these records; `serve` ends the replay where it stands. */
type Said = 'serve' | [type: number, row: number, text?: string];

function after(...said: Said[]): { paused: boolean; attempts: number; routed: boolean } {
  const shared = new Shared(allocateShared({ ringSlots: 4096, rows: 5000, arenaBytes: 1 << 20 }));
  const arena = new Arena(shared.arena.u8.buffer as SharedArrayBuffer, 64, 1 << 20);
  const log = { storage: new MemoryStorage(), dir: '/data', memoryBytes: 1 << 20 };
  const jobs = new Jobs(shared, arena, new Outcomes(new Replies(shared, arena)), log, 0, 0);
  const encoder = new Encoder();
  for (const each of [[RecordType.QUEUE, 0, JSON.stringify(CONFIG)] as Said, ...said]) {
    if (each === 'serve') {
      jobs.serve();
      continue;
    }
    const [type, row, text] = each;
    encoder.clear();
    const at =
      text === undefined
        ? encoder.appendShort(type, Level.FSYNC, 0, 1, row, 0)
        : encoder.append(type, Level.FSYNC, 0, 1, row, 0, 0);
    if (text !== undefined) encoder.payloadText(at, text);
    encoder.finish(at);
    jobs.apply(encoder.memory, at, 64);
  }
  return {
    paused: (shared.queues[QueueWord.WORDS + QueueWord.FLAGS]! & QueueFlag.PAUSED) !== 0,
    attempts: jobs.queues[1]!.config.attempts,
    routed: jobs.bindings.match('t').length === 1,
  };
}

const PAUSE: Said = [RecordType.PAUSE, 0];
const RESUME: Said = [RecordType.RESUME, 0];
const PAUSE_COPY: Said = [RecordType.PAUSE, COPIED];
const BIND: Said = [RecordType.BIND, 0, 't'];
const UNBIND: Said = [RecordType.UNBIND, 0, 't'];
const BIND_COPY: Said = [RecordType.BIND, COPIED, 't'];
const declared = (attempts: number, head?: number): Said => [
  RecordType.QUEUE,
  0,
  JSON.stringify({ ...CONFIG, attempts, ...(head === undefined ? {} : { head, done: 0 }) }),
];

it.each<[string, boolean, Said[]]>([
  ['a copy alone pauses in a replay', true, [PAUSE_COPY]],
  ['a copy behind a resume does not', false, [RESUME, PAUSE_COPY]],
  ['a copy behind a pause changes nothing', true, [PAUSE, PAUSE_COPY]],
  ['a resume behind a copy counts', false, [PAUSE_COPY, RESUME]],
  ['a copy in a run says nothing new', false, ['serve', PAUSE, RESUME, PAUSE_COPY]],
  ['a copy in a run leaves a pause', true, ['serve', PAUSE, PAUSE_COPY]],
])('pauses: %s', (_, paused, said) => {
  expect(after(...said).paused).toBe(paused);
});

it.each<[string, boolean, Said[]]>([
  ['a copy alone binds in a replay', true, [BIND_COPY]],
  ['a copy behind an unbind does not', false, [UNBIND, BIND_COPY]],
  ['a copy behind an unbind and a bind does', true, [UNBIND, BIND, BIND_COPY]],
  ['an unbind behind a copy counts', false, [BIND_COPY, UNBIND]],
  ['a copy in a run says nothing new', false, ['serve', BIND, UNBIND, BIND_COPY]],
  ['what was unbound in a replay may be bound in the run', true, [UNBIND, 'serve', BIND]],
])('bindings: %s', (_, routed, said) => {
  expect(after(...said).routed).toBe(routed);
});

it.each<[string, number, Said[]]>([
  ['a copy behind a later declaration changes nothing', 7, [declared(7), declared(3, 2)]],
  ['nor in a run', 7, ['serve', declared(7), declared(3, 2)]],
  ['a declaration behind a copy counts', 9, [declared(3, 2), declared(9)]],
])('declarations: %s', (_, attempts, said) => {
  expect(after(...said).attempts).toBe(attempts);
});
