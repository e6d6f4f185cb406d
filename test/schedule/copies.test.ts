/** What compaction writes again about queues and bindings must not undo what was said before it got into the log. */
import { describe, expect, it } from 'vitest';
import { Arena } from '../../native-free/arena.js';
import { Encoder } from '../../native-free/encoder.js';
import { allocateShared, QueueFlag, QueueWord, Shared } from '../../native-free/layout.js';
import { BODY, COPIED, ImageState, Level, limitsWord, RecordType } from '../../native-free/record.js';
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

function replaying(): { shared: Shared; jobs: Jobs } {
  const shared = new Shared(allocateShared({ ringSlots: 4096, rows: 5000, arenaBytes: 1 << 20 }));
  const arena = new Arena(shared.arena.u8.buffer as SharedArrayBuffer, 64, 1 << 20);
  const log = { storage: new MemoryStorage(), dir: '/data', memoryBytes: 1 << 20 };
  return { shared, jobs: new Jobs(shared, arena, new Outcomes(new Replies(shared, arena)), log, 0, 0) };
}

function after(...said: Said[]): { paused: boolean; attempts: number; routed: boolean } {
  const { shared, jobs } = replaying();
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

describe('a checkpoint that stands before the image of its job, in a log whose head was dropped', () => {
  /** What a replay of [CHECKPOINT of a run after `attempts` failed ones][IMAGE with another checkpoint] ends with. */
  function checkpointAfter(attempts: number): string {
    const { jobs } = replaying();
    const encoder = new Encoder();
    const body = encoder.appendEnqueue({
      queue: 1,
      level: Level.FSYNC,
      priority: 0,
      enqueuedAtMs: 1,
      attemptsMax: 9,
      crashesMax: 3,
      runAtMs: Number.NaN,
      visibilityMs: 0,
      timeoutMs: 0,
      keyRetentionMs: Number.NaN,
      expiresAtMs: Number.NaN,
      watcher: 0,
      request: 0,
      tenant: '',
      key: '',
    });
    encoder.payloadText(body, '1');
    const bodyBytes = encoder.bytes - body - BODY;
    encoder.finish(body);
    const log = new Encoder();
    const checkpoint = log.append(RecordType.CHECKPOINT, Level.FSYNC, 7, 1, 0, 0, limitsWord(attempts, 0, 0));
    log.payloadText(checkpoint, 'later');
    log.finish(checkpoint);
    const image = log.bytes;
    const older = Buffer.from('older');
    const counts = limitsWord(2, 0, ImageState.LIVE);
    log.appendImage(
      7,
      1,
      0,
      Level.FSYNC,
      encoder.memory,
      body + BODY,
      bodyBytes,
      1,
      counts,
      0,
      new Uint8Array(0),
      older,
    );
    for (const at of [checkpoint, image]) jobs.apply(log.memory, at, 64);
    return Buffer.from(jobs.checkpoints.get(jobs.find(7))!).toString();
  }

  it('is the later of the two when it is of the run that the image shows', () => {
    expect(checkpointAfter(2)).toBe('later');
  });

  it('is an earlier run’s otherwise, and the image knows better', () => {
    expect(checkpointAfter(1)).toBe('older');
  });
});
