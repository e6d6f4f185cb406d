/**
 * `millrace repair`: makes a corrupt log open again, at the price of what stands behind the damage.
 *
 * R1  Nothing is changed without --accept-loss; then a copy of the whole directory is durable first.
 * R2  Segments behind the damaged one go, newest first, then that one is cut: a stop anywhere leaves a log that is
 *     still refused, or one that opens, and the copy.
 * R3  A log that opens is left alone.
 * R4  Ids and epochs that were in use behind the damage are not given out again: a batch that says so ends the log.
 */
import { cpSync, existsSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { crc32cMix } from '../../native-free/crc32c.js';
import { Encoder } from '../../native-free/encoder.js';
import { idOf, Level, type Memory, memoryOver, RecordType, typeOf } from '../../native-free/record.js';
import { MillraceError } from '../errors.js';
import {
  BATCH_ALIGNMENT,
  BATCH_HEADER_BYTES,
  type BatchHeader,
  checkBody,
  emptyBatchHeader,
  isBatchHeader,
  readBatchHeader,
} from '../log/batch.js';
import { LOCK_NAME, lockDirectory } from '../log/lock.js';
import { recover } from '../log/recovery.js';
import { segmentNumberOf } from '../log/segment.js';
import { FileSink, SEGMENT_BYTES } from '../log/sink.js';
import { DiskStorage, type Storage } from '../log/storage.js';
import { WATERMARK_NAME } from '../log/watermark.js';
import { Window } from '../log/window.js';
import { directoryOf, type Tally, tally } from './inspection.js';
import { count, many, size } from './terminal.js';
import { ExitCode } from './usage.js';

export const REPAIR_HELP = `Usage: millrace repair DIR [options]

Makes a corrupt log open again: cuts it where the damage begins, and drops what
stands behind. Without --accept-loss it only says what that would be. A log that
is sound, or that the next open mends by itself, is left as it is.

  --accept-loss  do it; the directory is copied to DIR.corrupt-N before
  -h, --help     this text

Exit codes: 0 nothing to do, or done, 1 it cannot be repaired, 2 usage, 3 no
such directory, 4 the directory is in use, 5 corrupt, and --accept-loss is not
given.
`;

const IDS_SHOWN = 20;
/** More than can stand in the batches that could not be read. */
const EPOCHS_APART = 16;
const IDS_APART = 2 ** 24;

export async function repair(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: { 'accept-loss': { type: 'boolean' }, help: { type: 'boolean', short: 'h' } },
  });
  if (values.help === true) {
    process.stdout.write(REPAIR_HELP);
    return ExitCode.OK;
  }
  const dir = directoryOf(positionals, 'repair');
  const found = await tally(dir);
  const { verdict } = found.scan;
  const say = (line: string): void => void process.stdout.write(`${line}\n`);
  if (verdict.action === 'newer') {
    say(`${verdict.file} was written by a newer version of millrace: use that one`);
    return ExitCode.FAILED;
  }
  if (verdict.action !== 'refuse') {
    say(`nothing to repair: ${dir} opens`);
    return ExitCode.OK;
  }
  const storage = new DiskStorage();
  const lost = lossOf(storage, dir, found);
  say(`${verdict.file} is corrupt at position ${verdict.position} (offset ${verdict.offset}): ${verdict.reason}`);
  say(`kept: ${many(found.scan.records, 'record')} in ${many(found.scan.batches, 'batch', 'batches')}`);
  say(
    `lost: ${size(lost.bytes)}, of which still readable: ${many(lost.records, 'record')}, ${many(lost.jobs.length, 'job')}`,
  );
  if (lost.jobs.length > 0) {
    const more = lost.jobs.length > IDS_SHOWN ? ` and ${count(lost.jobs.length - IDS_SHOWN)} more` : '';
    say(`      jobs ${lost.jobs.slice(0, IDS_SHOWN).join(', ')}${more}`);
  }
  if (lost.segments === undefined) {
    say('it cannot be repaired by cutting: the log does not begin where it should');
    return ExitCode.FAILED;
  }
  if (values['accept-loss'] !== true) {
    say('nothing was changed; --accept-loss does it');
    return ExitCode.CORRUPT;
  }
  const lock = await lockDirectory(dir);
  try {
    const copy = keep(storage, dir);
    say(`the directory as it was: ${copy}`);
    cut(storage, dir, found, lost.segments);
    end(storage, dir, lost);
  } finally {
    await lock.release();
  }
  const { verdict: after } = (await tally(dir)).scan;
  if (after.action !== 'end') throw new Error(`the repaired log is not sound: ${after.reason}`);
  say(`repaired: ${dir} opens`);
  return ExitCode.OK;
}

interface Loss {
  readonly bytes: number;
  readonly records: number;
  readonly jobs: readonly number[];
  /** The highest that headers behind the damage name. */
  readonly epoch: number;
  readonly idHigh: number;
  /** Files to remove, newest first; undefined when the damage is in front of everything that is intact. */
  readonly segments: readonly string[] | undefined;
}

/** What stands behind the damage and could still be read. */
function lossOf(storage: Storage, dir: string, { scan }: Tally): Loss {
  const { verdict, segments, salt } = scan;
  const names = storage.list(dir).filter((name) => segmentNumberOf(name) !== undefined);
  names.sort((a, b) => segmentNumberOf(a)! - segmentNumberOf(b)!);
  const last = segments.at(-1)?.name;
  const behind = names.filter((name) => last === undefined || segmentNumberOf(name)! > segmentNumberOf(last)!);
  let bytes = 0;
  let records = 0;
  let { epoch, idHigh } = scan;
  const jobs: number[] = [];
  const look = (name: string, from: number): void => {
    const file = storage.open(join(dir, name), 'read');
    try {
      bytes += Math.max(0, file.size() - from);
      if (salt === undefined) return;
      const window = new Window();
      window.open(file);
      eachRecord(window, from, salt, (header, memory, offset) => {
        epoch = Math.max(epoch, header.epoch);
        idHigh = Math.max(idHigh, header.idHigh);
        records++;
        if (typeOf(memory, offset) === RecordType.ENQUEUE) jobs.push(idOf(memory, offset));
      });
    } finally {
      file.close();
    }
  };
  if (last === verdict.file) look(last, verdict.offset);
  for (const name of behind) look(name, 0);
  const begins = segments.length > 0 && scan.headSegment >= segmentNumberOf(names[0]!)!;
  return { bytes, records, jobs, epoch, idHigh, segments: begins ? behind.reverse() : undefined };
}

/** Records of intact batches, wherever they stand. */
function eachRecord(
  window: Window,
  from: number,
  salt: number,
  visit: (header: BatchHeader, memory: Memory, offset: number) => void,
): void {
  const header = emptyBatchHeader();
  const last = window.size - BATCH_HEADER_BYTES;
  for (let at = (from + BATCH_ALIGNMENT - 1) & ~(BATCH_ALIGNMENT - 1); at <= last; at += BATCH_ALIGNMENT) {
    let offset = window.at(at, BATCH_HEADER_BYTES);
    if (!isBatchHeader(window.memory, offset, salt)) continue;
    readBatchHeader(window.memory, offset, header);
    const bytes = BATCH_HEADER_BYTES + header.bodyBytes;
    if (bytes > window.size - at) continue;
    offset = window.at(at, bytes);
    if (checkBody(window.memory, offset + BATCH_HEADER_BYTES, header) !== 'intact') continue;
    for (let record = offset + BATCH_HEADER_BYTES; record < offset + bytes; ) {
      visit(header, window.memory, record);
      record += ((window.memory.i32[(record + 4) >>> 2]! & 0xffffff) + 31) & ~31;
    }
    at += bytes - BATCH_ALIGNMENT;
  }
}

/** Copies the directory, durably (R1). */
function keep(storage: Storage, dir: string): string {
  const base = dir.replace(/\/+$/, '');
  for (let n = 1; ; n++) {
    const copy = `${base}.corrupt-${n}`;
    if (existsSync(copy)) continue;
    storage.ensureDirectory(copy);
    for (const name of storage.list(dir)) {
      if (name === LOCK_NAME) continue;
      cpSync(join(dir, name), join(copy, name));
      const file = storage.open(join(copy, name), 'update');
      file.sync();
      file.close();
    }
    storage.syncDirectory(copy);
    return copy;
  }
}

/** R2. The watermark goes too: it says that more was durable than is kept. */
function cut(storage: Storage, dir: string, { scan: { verdict, segments } }: Tally, behind: readonly string[]): void {
  for (const name of [...behind, WATERMARK_NAME]) {
    if (!storage.list(dir).includes(name)) continue;
    storage.remove(join(dir, name));
    storage.syncDirectory(dir);
  }
  if (segments.at(-1)?.name !== verdict.file) return;
  const file = storage.open(join(dir, verdict.file), 'update');
  file.truncate(verdict.offset);
  file.sync();
  file.close();
}

/** R4. */
function end(storage: Storage, dir: string, { epoch, idHigh }: Loss): void {
  const recovery = recover(storage, dir, () => {});
  const sink = new FileSink({
    storage,
    dir,
    recovery,
    epoch: epoch + EPOCHS_APART,
    segmentBytes: SEGMENT_BYTES,
    asideBytes: 0,
    now: () => performance.now(),
  });
  const encoder = new Encoder(256);
  encoder.finish(encoder.append(RecordType.EPOCH, Level.FSYNC, idHigh, 0, 0, Date.now(), 0));
  const record = memoryOver(new ArrayBuffer(encoder.bytes));
  encoder.moveInto(record, 0, 0, encoder.bytes, idHigh);
  const full = new MillraceError('ERR_MILLRACE_NO_SPACE', `cannot repair ${dir}: the disk is full`, { dir });
  if (!sink.tryOpen()) throw full;
  sink.buffers().push(record.u8);
  const recordsCrc = crc32cMix(0, record.i32[0]!);
  if (!sink.tryAppend({ records: 1, bytes: record.u8.length, recordsCrc }, idHigh + IDS_APART)) throw full;
  sink.close();
}
