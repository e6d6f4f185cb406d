/**
 * What a log directory holds, without changing a byte of it: for `verify`, `repair` and `dump`.
 */
import { existsSync, statSync } from 'node:fs';
import { idOf, type Memory, RecordType, typeOf } from '../../native-free/record.js';
import { useChecksum } from '../log/checksum.js';
import { whileUnused } from '../log/lock.js';
import { type LogVisitor, type Scan, scan } from '../log/scan.js';
import { DiskStorage } from '../log/storage.js';
import { NotFoundError, UsageError } from './usage.js';

const NAMES = new Map<number, string>(Object.entries(RecordType).map(([name, type]) => [type, name]));

export function typeName(type: number): string {
  return NAMES.get(type) ?? `type ${type}`;
}

/** The directory that was named; it must be there. */
export function directoryOf(positionals: readonly string[], command: string): string {
  const [dir, more] = positionals;
  if (dir === undefined || more !== undefined) {
    throw new UsageError(dir === undefined ? 'no directory is named' : `${command} takes one directory`);
  }
  if (dir === '' || dir.includes('\0')) throw new UsageError('DIR names nothing');
  if (!existsSync(dir)) throw new NotFoundError(`there is no directory ${dir}`);
  if (!statSync(dir).isDirectory()) throw new UsageError(`${dir} is not a directory`);
  return dir;
}

/** Reads all of the log, while nobody else may. Throws ERR_MILLRACE_LOCKED. */
export function inspect(dir: string, visitor: LogVisitor): Promise<Scan> {
  useChecksum({ nativeFree: false });
  return whileUnused(dir, () => scan(new DiskStorage(), dir, visitor));
}

export interface Tally {
  readonly scan: Scan;
  /** Records by type. */
  readonly records: ReadonlyMap<string, number>;
  /** Ids of jobs whose enqueue is there. */
  readonly jobs: ReadonlySet<number>;
}

/** Counts what there is. */
export async function tally(dir: string): Promise<Tally> {
  const records = new Map<string, number>();
  const jobs = new Set<number>();
  const found = await inspect(dir, {
    record(memory: Memory, offset: number) {
      const type = typeOf(memory, offset);
      const name = typeName(type);
      records.set(name, (records.get(name) ?? 0) + 1);
      if (type === RecordType.ENQUEUE || type === RecordType.IMAGE) jobs.add(idOf(memory, offset));
    },
  });
  return { scan: found, records, jobs };
}
