/**
 * What the files of `millrace fingerprint` come to, as text for people and as JSON. Built up in whatever order results
 * come; bounded memory.
 */
import { createHash } from 'node:crypto';
import type { Fingerprint } from './fingerprint-handler.js';
import type { Ending } from './session.js';
import { count, duration, figures, many, oneLine, paint, size, table } from './terminal.js';

const SHOWN = 5;
/** Smaller files are not worth a place among those that pack best or worst. */
const PACKED_BYTES_MIN = 4096;
const NAME_COLUMNS = 56;

interface Entry {
  readonly path: string;
  readonly print: Fingerprint;
  readonly rank: number;
}

export class Summary {
  readonly #shortName: (path: string) => string;
  readonly #sum = { files: 0, empty: 0, bytes: 0, lines: 0, words: 0, gzipBytes: 0 };
  readonly #all = Buffer.alloc(32);
  readonly #largest: Entry[] = [];
  readonly #densest: Entry[] = [];

  constructor(shortName: (path: string) => string) {
    this.#shortName = shortName;
  }

  add(path: string, print: Fingerprint): void {
    const sum = this.#sum;
    sum.files++;
    if (print.bytes === 0) sum.empty++;
    sum.bytes += print.bytes;
    sum.lines += print.lines;
    sum.words += print.words;
    sum.gzipBytes += print.gzipBytes;
    // A sum that does not depend on the order: the hashes of (name, content), bit by bit.
    const hash = createHash('sha256')
      .update(`${this.#shortName(path)}\0${print.sha256}`)
      .digest();
    for (let i = 0; i < hash.length; i++) this.#all[i]! ^= hash[i]!;
    rank(this.#largest, { path, print, rank: print.bytes });
    if (print.bytes >= PACKED_BYTES_MIN) rank(this.#densest, { path, print, rank: print.bytes / print.gzipBytes });
  }

  text(stream: NodeJS.WriteStream, root: string, ending: Ending, threads: number): string {
    const { files, empty, bytes, lines, words, gzipBytes } = this.#sum;
    const { ended, failed, before, elapsedMs, stats } = ending;
    const seconds = elapsedMs / 1000;
    const facts: [string, string][] = [
      ['files', `${count(files)}${empty > 0 ? ` (${count(empty)} empty)` : ''}`],
      ['bytes', `${size(bytes)}, ${size(gzipBytes)} gzipped${bytes > 0 ? ` (${percent(gzipBytes / bytes)})` : ''}`],
      ['text', `${many(lines, 'line')}, ${many(words, 'word')}`],
      ['fingerprint', this.#all.toString('hex')],
      ['time', `${duration(elapsedMs)}: ${figures(ended / seconds)} jobs/s on ${many(threads, 'thread')}`],
      [
        'log',
        `${many(stats.records, 'record')} in ${many(stats.batches, 'batch', 'batches')}, ` +
          `${many(stats.flushes, 'flush', 'flushes')}, ${size(stats.bytes)}`,
      ],
    ];
    if (before > 0) facts.push(['before', `${many(before, 'file')} of an earlier run`]);
    if (failed > 0) facts.push(['failed', many(failed, 'file')]);
    const out = ['', paint(stream, 'bold', oneLine(root)), ''];
    const width = Math.max(...facts.map(([name]) => name.length));
    for (const [name, value] of facts) out.push(`  ${paint(stream, 'dim', name.padEnd(width))}  ${value}`);
    out.push('', ...this.#ranking(stream, 'largest', this.#largest));
    if (this.#densest.length > 0) out.push('', ...this.#ranking(stream, 'packs best', this.#densest));
    return `${out.join('\n')}\n\n`;
  }

  json({ ended, failed, before, elapsedMs, stats }: Ending): string {
    const list = (entries: readonly Entry[]) =>
      entries.map(({ path, print }) => ({ file: this.#shortName(path), ...print }));
    return `${JSON.stringify({
      ...this.#sum,
      fingerprint: this.#all.toString('hex'),
      ended,
      failed,
      before,
      elapsedMs: Math.round(elapsedMs),
      records: stats.records,
      batches: stats.batches,
      flushes: stats.flushes,
      logBytes: stats.bytes,
      largest: list(this.#largest),
      densest: list(this.#densest),
    })}\n`;
  }

  #ranking(stream: NodeJS.WriteStream, title: string, entries: readonly Entry[]): string[] {
    const rows = entries.map(({ path, print }) => [
      shortened(oneLine(this.#shortName(path)), NAME_COLUMNS),
      size(print.bytes),
      size(print.gzipBytes),
      percent(print.bytes === 0 ? 1 : print.gzipBytes / print.bytes),
    ]);
    const [head, ...body] = table([[title, 'bytes', 'gzipped', ''], ...rows], new Set([0]));
    return [`  ${paint(stream, 'dim', head!)}`, ...body.map((row) => `  ${row}`)];
  }
}

/** Keeps the first few by rank; of equals, by name, so that the order they came in does not show. */
function rank(entries: Entry[], entry: Entry): void {
  const last = entries[SHOWN - 1];
  if (last !== undefined && last.rank > entry.rank) return;
  entries.push(entry);
  entries.sort((a, b) => b.rank - a.rank || (a.path < b.path ? -1 : 1));
  if (entries.length > SHOWN) entries.pop();
}

function percent(part: number): string {
  return `${(part * 100).toFixed(part < 0.0995 ? 1 : 0)}%`;
}

/** A path with its middle left out: both ends say more. */
function shortened(path: string, columns: number): string {
  if (path.length <= columns) return path;
  const head = Math.floor((columns - 3) / 3);
  return `${path.slice(0, head)}...${path.slice(path.length - (columns - 3 - head))}`;
}
