/** `millrace verify`: is a log directory sound? Changes nothing. */
import { parseArgs } from 'node:util';
import { directoryOf, type Tally, tally } from './inspection.js';
import { count, many, paint, size, table } from './terminal.js';
import { ExitCode } from './usage.js';

export const VERIFY_HELP = `Usage: millrace verify DIR [options]

Checks every byte of a broker's log and says what is in it. Changes nothing, and
takes the directory's lock while it reads.

  --json      the findings as one JSON object
  -h, --help  this text

Exit codes: 0 sound (an end that was torn by a crash is, the next open cuts it),
1 written by a newer version, 2 usage, 3 no such directory, 4 the directory is
in use, 5 corrupt.
`;

export async function verify(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: { json: { type: 'boolean' }, help: { type: 'boolean', short: 'h' } },
  });
  if (values.help === true) {
    process.stdout.write(VERIFY_HELP);
    return ExitCode.OK;
  }
  const dir = directoryOf(positionals, 'verify');
  const found = await tally(dir);
  process.stdout.write(values.json === true ? `${JSON.stringify(asJson(dir, found))}\n` : asText(dir, found));
  return exitCodeOf(found);
}

export function exitCodeOf({ scan: { verdict } }: Tally): number {
  if (verdict.action === 'refuse') return ExitCode.CORRUPT;
  return verdict.action === 'newer' ? ExitCode.FAILED : ExitCode.OK;
}

/** The verdict in a word: sound, torn (the next open cuts the end), corrupt, newer. */
function wordOf({ scan: { verdict } }: Tally): 'sound' | 'torn' | 'corrupt' | 'newer' {
  switch (verdict.action) {
    case 'end':
      return 'sound';
    case 'refuse':
      return 'corrupt';
    case 'newer':
      return 'newer';
    default:
      return 'torn';
  }
}

function asJson(dir: string, found: Tally): object {
  const { scan, records } = found;
  const { file, position, offset, bytes, reason } = scan.verdict;
  const verdict = wordOf(found);
  return {
    dir,
    verdict,
    ...(verdict === 'sound' ? {} : { file, position, offset, bytes, reason }),
    segments: scan.segments.map(({ name, base, bytes }) => ({ file: name, position: base, bytes })),
    position: scan.position,
    batches: scan.batches,
    records: Object.fromEntries(records),
    epoch: scan.epoch,
    idHigh: scan.idHigh,
  };
}

function asText(dir: string, found: Tally): string {
  const { scan, records } = found;
  const { verdict } = scan;
  const out: string[] = [''];
  const facts: [string, string][] = [
    ['directory', dir],
    ['segments', `${count(scan.segments.length)}, ${size(scan.segments.reduce((sum, { bytes }) => sum + bytes, 0))}`],
    ['batches', `${count(scan.batches)}, up to position ${scan.position}`],
    ['records', count(scan.records)],
    ['epoch', count(scan.epoch)],
  ];
  for (const [name, value] of facts) out.push(`  ${paint(process.stdout, 'dim', name.padEnd(9))}  ${value}`);
  if (records.size > 0) {
    const rows = [...records].sort(([, a], [, b]) => b - a).map(([name, value]) => [name, count(value)]);
    out.push('', ...table(rows, new Set([0])).map((line) => `    ${line}`));
  }
  const place = `${verdict.file}, position ${verdict.position} (offset ${verdict.offset})`;
  const said = {
    sound: paint(process.stdout, 'green', 'sound'),
    torn: `${paint(process.stdout, 'yellow', 'torn')}: ${verdict.reason}: ${place}; the next open cuts ${many(verdict.bytes, 'byte')} that nobody was told of`,
    corrupt: `${paint(process.stdout, 'red', 'corrupt')}: ${verdict.reason}: ${place}`,
    newer: `${paint(process.stdout, 'red', 'newer')}: ${verdict.reason}: ${place}`,
  }[wordOf(found)];
  out.push('', `  ${said}`, '');
  return `${out.join('\n')}\n`;
}
