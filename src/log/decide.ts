/**
 * What recovery does, as two tables: one for the head of a segment file, one for the place where the next batch is due.
 * Read by `scan`, which gathers the facts; a test enumerates every combination of them and demands exactly one row.
 *
 * 1. Damage is corruption when anything says that the place was durable, else it is a torn tail (design: a valid
 *    record behind a bad one proves nothing, sectors reach the disk in any order).
 * 2. A newer version is neither: only bytes whose checksums are right can claim it.
 * 3. A file that has a successor was flushed before that was created: whatever is wrong in it is corruption.
 * After TigerBeetle's recovery cases.
 */
import { BreachError } from '../../native-free/assert.js';

/** What stands where a batch is due. */
export const FOUND = [
  /** Nothing: the file ends here. */
  'end',
  /** Only zeros up to the end of the file. */
  'zeros',
  /** No intact header. */
  'bad',
  /** An intact header of this place, left by an earlier epoch. */
  'stale',
  /** An intact header that says it stands elsewhere. */
  'elsewhere',
  /** An intact header of this place whose number, epoch or marks do not follow from the batch before. */
  'unexpected',
  /** An intact header of this place, of a version or with flags that are not known. */
  'newer',
  /** The header that is due. */
  'good',
] as const;
export type Found = (typeof FOUND)[number];

/** The records behind that header; damaged also when there is no header to say where they are. */
export const BODIES = ['damaged', 'newer', 'intact'] as const;
export type BodyFound = (typeof BODIES)[number];

export interface BatchFacts {
  readonly found: Found;
  readonly body: BodyFound;
  /** Is this the segment with the highest number? */
  readonly newest: boolean;
  /** Does a later header or the watermark say that bytes behind this place were durable? */
  readonly durable: boolean;
}

export type BatchAction = 'apply' | 'next segment' | 'end' | 'cut' | 'refuse' | 'newer';

interface BatchRow {
  readonly label: string;
  readonly found: readonly Found[];
  readonly body: readonly BodyFound[];
  readonly newest: readonly boolean[];
  readonly durable: readonly boolean[];
  readonly action: BatchAction;
}

const ANY = [true, false] as const;
const YES = [true] as const;
const NO = [false] as const;

export const BATCH_TABLE = [
  { label: 'a batch as due', found: ['good'], body: ['intact'], newest: ANY, durable: ANY, action: 'apply' },
  { label: 'end of a full segment', found: ['end'], body: BODIES, newest: NO, durable: ANY, action: 'next segment' },
  { label: 'end of the log', found: ['end', 'zeros'], body: BODIES, newest: YES, durable: NO, action: 'end' },
  {
    label: 'the log ends below a position that was durable',
    found: ['end'],
    body: BODIES,
    newest: YES,
    durable: YES,
    action: 'refuse',
  },
  {
    label: 'written by a newer version',
    found: ['newer'],
    body: BODIES,
    newest: ANY,
    durable: ANY,
    action: 'newer',
  },
  {
    label: 'a record type of a newer version',
    found: ['good'],
    body: ['newer'],
    newest: ANY,
    durable: ANY,
    action: 'newer',
  },
  {
    label: 'a batch that belongs to another place',
    found: ['elsewhere'],
    body: ['newer', 'intact'],
    newest: ANY,
    durable: ANY,
    action: 'refuse',
  },
  {
    label: 'a batch that does not follow from the one before',
    found: ['unexpected'],
    body: BODIES,
    newest: ANY,
    durable: ANY,
    action: 'refuse',
  },
  {
    label: 'damage in a segment that has a successor',
    found: ['zeros', 'bad'],
    body: BODIES,
    newest: NO,
    durable: ANY,
    action: 'refuse',
  },
  {
    label: 'damage where the log was durable',
    found: ['zeros', 'bad'],
    body: BODIES,
    newest: YES,
    durable: YES,
    action: 'refuse',
  },
  { label: 'a torn tail', found: ['bad'], body: BODIES, newest: YES, durable: NO, action: 'cut' },
  {
    label: 'damaged records in a segment that has a successor',
    found: ['good', 'elsewhere'],
    body: ['damaged'],
    newest: NO,
    durable: ANY,
    action: 'refuse',
  },
  {
    label: 'damaged records where the log was durable',
    found: ['good', 'elsewhere'],
    body: ['damaged'],
    newest: YES,
    durable: YES,
    action: 'refuse',
  },
  {
    label: 'a torn batch',
    found: ['good', 'elsewhere'],
    body: ['damaged'],
    newest: YES,
    durable: NO,
    action: 'cut',
  },
  {
    label: 'bytes of an earlier epoch in a segment that has a successor',
    found: ['stale'],
    body: BODIES,
    newest: NO,
    durable: ANY,
    action: 'refuse',
  },
  {
    label: 'bytes of an earlier epoch where the log was durable',
    found: ['stale'],
    body: BODIES,
    newest: YES,
    durable: YES,
    action: 'refuse',
  },
  {
    label: 'bytes of an earlier epoch behind the end',
    found: ['stale'],
    body: BODIES,
    newest: YES,
    durable: NO,
    action: 'cut',
  },
] as const satisfies readonly BatchRow[];

/** What stands in the first 64 bytes of a segment file. */
export const HEADS = ['good', 'bad', 'misplaced', 'newer'] as const;
export type Head = (typeof HEADS)[number];

export interface SegmentFacts {
  /** misplaced: intact, but its number, base, batch number or salt does not follow from the segment before. */
  readonly head: Head;
  /** Is there a byte other than zero behind the header's place? */
  readonly bytesBehind: boolean;
  readonly newest: boolean;
  /** Does the watermark say that bytes of this segment were durable? */
  readonly durable: boolean;
}

export type SegmentAction = 'enter' | 'remove' | 'refuse' | 'newer';

interface SegmentRow {
  readonly label: string;
  readonly head: readonly Head[];
  readonly bytesBehind: readonly boolean[];
  readonly newest: readonly boolean[];
  readonly durable: readonly boolean[];
  readonly action: SegmentAction;
}

export const SEGMENT_TABLE = [
  { label: 'a segment as due', head: ['good'], bytesBehind: ANY, newest: ANY, durable: ANY, action: 'enter' },
  {
    label: 'written by a newer version',
    head: ['newer'],
    bytesBehind: ANY,
    newest: ANY,
    durable: ANY,
    action: 'newer',
  },
  {
    label: 'a segment that belongs to another place',
    head: ['misplaced'],
    bytesBehind: ANY,
    newest: ANY,
    durable: ANY,
    action: 'refuse',
  },
  {
    label: 'a damaged header in a segment that has a successor',
    head: ['bad'],
    bytesBehind: ANY,
    newest: NO,
    durable: ANY,
    action: 'refuse',
  },
  {
    label: 'a damaged header, which was durable before the batches behind it were written',
    head: ['bad'],
    bytesBehind: YES,
    newest: YES,
    durable: ANY,
    action: 'refuse',
  },
  {
    label: 'a damaged header in a segment that was durable',
    head: ['bad'],
    bytesBehind: NO,
    newest: YES,
    durable: YES,
    action: 'refuse',
  },
  {
    label: 'a segment that was being created',
    head: ['bad'],
    bytesBehind: NO,
    newest: YES,
    durable: NO,
    action: 'remove',
  },
] as const satisfies readonly SegmentRow[];

export function matchesBatch(row: BatchRow, facts: BatchFacts): boolean {
  return (
    row.found.includes(facts.found) &&
    row.body.includes(facts.body) &&
    row.newest.includes(facts.newest) &&
    row.durable.includes(facts.durable)
  );
}

export function matchesSegment(row: SegmentRow, facts: SegmentFacts): boolean {
  return (
    row.head.includes(facts.head) &&
    row.bytesBehind.includes(facts.bytesBehind) &&
    row.newest.includes(facts.newest) &&
    row.durable.includes(facts.durable)
  );
}

export function decideBatch(facts: BatchFacts): BatchRow {
  for (const row of BATCH_TABLE) if (matchesBatch(row, facts)) return row;
  throw new BreachError(`no row for ${JSON.stringify(facts)}`);
}

export function decideSegment(facts: SegmentFacts): SegmentRow {
  for (const row of SEGMENT_TABLE) if (matchesSegment(row, facts)) return row;
  throw new BreachError(`no row for ${JSON.stringify(facts)}`);
}
