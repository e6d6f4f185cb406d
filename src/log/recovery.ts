/**
 * Opens a log after whatever happened to it: replays what is intact, cuts a torn tail, refuses corruption.
 * Called once, by the scheduler, on its own thread, under the directory's lock and before the writer starts.
 * The numbered steps are in FORMAT.md, "Recovery"; what is decided is in `decide`, how it is read in `scan`.
 *
 * V1  A refusal changes no byte: everything that writes comes after the verdict.
 * V2  What is cut is kept beside the log, and is durable there, before the log loses it.
 * V3  What was replayed is durable before `recover` returns: the process may have died before its own flush.
 * V4  recover(recover(x)) = recover(x), wherever the first one died: each step either has no effect on the log or is
 *     the single truncation or removal that the verdict called for.
 */
import type { Memory } from '../../native-free/record.js';
import { MillraceError } from '../errors.js';
import { type Scan, type ScannedSegment, type ScanOptions, scan, type Verdict } from './scan.js';
import { errnoOf, type Storage, type StorageFile } from './storage.js';
import { Window } from './window.js';

/** What the writer and the opener need to go on. Structured-cloneable. */
export interface Recovery {
  /** There was not one batch. */
  readonly fresh: boolean;
  /** The newest segment's number; 0 when there is none yet. */
  readonly segment: number;
  readonly segmentBase: number;
  /** All segments there are, oldest first. */
  readonly segments: readonly { readonly number: number; readonly base: number }[];
  /** Where the next batch goes. */
  readonly position: number;
  /** The last batch's number, 0 = none. */
  readonly batchNumber: number;
  /** The last batch's epoch, 0 = none. */
  readonly epoch: number;
  /** No id at or above this was ever given out. */
  readonly idHigh: number;
  /** The directory's, unsigned; new when it is fresh. */
  readonly salt: number;
  readonly records: number;
  readonly batches: number;
  readonly cut?: Cut;
}

export interface Cut {
  readonly file: string;
  readonly position: number;
  readonly bytes: number;
  readonly reason: string;
  /** Where the cut bytes are now; undefined when they were zeros, or the disk had no room for them. */
  readonly kept?: string;
}

export interface RecoverOptions extends ScanOptions {
  /** In [0, 1): makes the salt of a fresh directory. */
  readonly random?: () => number;
  /** Told of each segment before its records are applied. */
  readonly segment?: (segment: ScannedSegment) => void;
}

export function recover(
  storage: Storage,
  dir: string,
  apply: (memory: Memory, offset: number, position: number) => void,
  options: RecoverOptions = {},
): Recovery {
  try {
    const found = scan(storage, dir, { record: apply, segment: options.segment }, options);
    const cut = settle(storage, dir, found);
    const segments = dropBelowHead(storage, dir, found);
    const last = segments.at(-1);
    return {
      fresh: found.batches === 0 && found.batchNumber === 0,
      segment: last?.number ?? 0,
      segmentBase: last?.base ?? 0,
      segments: segments.map(({ number, base }) => ({ number, base })),
      position: found.position,
      batchNumber: found.batchNumber,
      epoch: found.epoch,
      idHigh: found.idHigh,
      salt: found.salt ?? Math.floor((options.random ?? Math.random)() * 2 ** 32),
      records: found.records,
      batches: found.batches,
      ...(cut === undefined ? {} : { cut }),
    };
  } catch (error) {
    throw asIoError(error, `cannot recover the log in ${dir}`);
  }
}

/** Storage errors as ERR_MILLRACE_IO; anything else as it is. */
export function asIoError(error: unknown, attempted: string): unknown {
  if (!(error instanceof Error) || !/^(E[A-Z0-9]+|UNKNOWN)$/.test((error as NodeJS.ErrnoException).code ?? '')) {
    return error;
  }
  const errno = errnoOf(error);
  const file = (error as NodeJS.ErrnoException).path;
  return new MillraceError('ERR_MILLRACE_IO', `${attempted}: ${error.message}`, { errno, file }, error);
}

function settle(storage: Storage, dir: string, found: Scan): Cut | undefined {
  const { verdict } = found;
  const file = `${dir}/${verdict.file}`;
  const { position, offset, reason } = verdict;
  switch (verdict.action) {
    case 'refuse':
      throw new MillraceError(
        'ERR_MILLRACE_CORRUPT',
        `cannot open ${dir}: ${verdict.file} is corrupt at position ${position} (offset ${offset}): ${reason}`,
        { file, position, offset, reason },
      );
    case 'newer':
      throw new MillraceError(
        'ERR_MILLRACE_NEWER_VERSION',
        `cannot open ${dir}: ${verdict.file} was written by a newer version, at position ${position}: ${reason}`,
        { file, position, offset, reason },
      );
    case 'end': {
      const last = found.segments.at(-1);
      if (last !== undefined) flush(storage, `${dir}/${last.name}`);
      storage.syncDirectory(dir);
      return undefined;
    }
    case 'cut':
    case 'remove': {
      const kept = keep(storage, dir, verdict);
      if (verdict.action === 'cut') truncate(storage, file, offset);
      else storage.remove(file);
      // The segment before one that is removed has had a successor, so it was flushed.
      storage.syncDirectory(dir);
      return { file, position, bytes: verdict.bytes, reason, ...(kept === undefined ? {} : { kept }) };
    }
  }
}

/** Ends a compaction that died between its HEAD record and the last removal. */
function dropBelowHead(storage: Storage, dir: string, found: Scan): readonly ScannedSegment[] {
  const dropped = found.segments.filter(({ number }) => number < found.headSegment);
  for (const { name } of dropped) storage.remove(`${dir}/${name}`);
  if (dropped.length > 0) storage.syncDirectory(dir);
  return found.segments.slice(dropped.length);
}

function flush(storage: Storage, path: string): void {
  const file = storage.open(path, 'update');
  try {
    file.sync();
  } finally {
    file.close();
  }
}

function truncate(storage: Storage, path: string, bytes: number): void {
  const file = storage.open(path, 'update');
  try {
    file.truncate(bytes);
    file.sync();
  } finally {
    file.close();
  }
}

/** Copies what is about to be cut to a file beside the log, durably (V2). Zeros are not worth a file. */
function keep(storage: Storage, dir: string, verdict: Verdict): string | undefined {
  const file = storage.open(`${dir}/${verdict.file}`, 'read');
  try {
    const window = new Window();
    window.open(file);
    if (window.isZeroFrom(verdict.offset)) return undefined;
    for (let copy = 1; ; copy++) {
      const path = `${dir}/${verdict.file}.cut-${verdict.position}${copy === 1 ? '' : `-${copy}`}`;
      const target = storage.open(path, 'create');
      try {
        // A name in use holds another cut at the same position, or what a recovery that died had copied of this one.
        if (!isPrefix(target, window, verdict.offset)) continue;
        if (!copyTo(target, window, verdict.offset)) {
          storage.remove(path);
          return undefined;
        }
        target.sync();
      } finally {
        target.close();
      }
      storage.syncDirectory(dir);
      return path;
    }
  } finally {
    file.close();
  }
}

function isPrefix(target: StorageFile, window: Window, offset: number): boolean {
  const size = target.size();
  if (size > window.size - offset) return false;
  const held = new Uint8Array(64 << 10);
  for (let at = 0; at < size; ) {
    const bytes = target.read(held.subarray(0, Math.min(held.length, size - at)), at);
    const from = window.at(offset + at, bytes);
    for (let i = 0; i < bytes; i++) if (held[i] !== window.memory.u8[from + i]) return false;
    at += bytes;
  }
  return true;
}

/** False: there is no room. The bytes were never promised to anybody, and a full disk must open. */
function copyTo(target: StorageFile, window: Window, offset: number): boolean {
  for (let at = offset; at < window.size; ) {
    const bytes = Math.min(window.size - at, 1 << 20);
    const from = window.at(at, bytes);
    try {
      if (target.write([window.memory.u8.subarray(from, from + bytes)], at - offset) < bytes) return false;
    } catch (error) {
      if (errnoOf(error) === 'ENOSPC') return false;
      throw error;
    }
    at += bytes;
  }
  return true;
}
