/**
 * `millrace fingerprint`: what a directory holds, file by file, as durable jobs of a handler that keeps every core busy.
 * The project's own real work, and what `npm start` runs. Main thread.
 */
import { existsSync, readdirSync, realpathSync, statSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import type { Fingerprint } from './fingerprint-handler.js';
import { Interrupts } from './interrupts.js';
import { ResultFile, Unwritten } from './output.js';
import { placeOf, temporaryPlace } from './place.js';
import { Progress } from './progress.js';
import { carryOut, farewell, type Offered } from './session.js';
import { Summary } from './summary.js';
import { many } from './terminal.js';
import { ExitCode, NotFoundError, pathName, UsageError, wholeNumber } from './usage.js';

export const FINGERPRINT_HELP = `Usage: millrace fingerprint [DIR] [options]

Takes the SHA-256, lines, words and gzipped size of every file under DIR
(default: the node_modules at hand), each file a durable job in a worker thread,
and prints a summary.

  --out FILE    also append each file's figures to FILE, as lines of JSON
  --dir DIR     keep the jobs in DIR: killed and started again with the same
                --dir and --out, the run goes on
  --threads N   worker threads (default: one for each core)
  --json        the summary as JSON
  -h, --help    this text
`;

export async function fingerprint(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: {
      out: { type: 'string' },
      dir: { type: 'string' },
      threads: { type: 'string' },
      json: { type: 'boolean' },
      help: { type: 'boolean', short: 'h' },
    },
  });
  if (values.help === true) {
    process.stdout.write(FINGERPRINT_HELP);
    return ExitCode.OK;
  }
  if (positionals.length > 1) throw new UsageError('one directory is enough');
  const threads = wholeNumber('--threads', values.threads, 1, 128) ?? availableParallelism();
  const root = rootOf(positionals[0]);
  const out = pathName('--out', values.out);
  const dir = pathName('--dir', values.dir);
  const progress = new Progress(process.stderr, 'files');
  const files = filesUnder(root, new Set([dir, out].filter((path) => path !== undefined).map((path) => resolve(path))));
  if (files.length === 0) throw new NotFoundError(`there are no files in ${root}`);
  const summary = new Summary((path) => relative(root, path));
  const place = dir === undefined && out === undefined ? temporaryPlace(true) : placeOf(dir, out);
  const interrupts = new Interrupts((signal) => {
    progress.say(`${signal}: waiting for the files that are running; once more to stop at once`);
  });
  try {
    const ending = await carryOut({
      place,
      options: {
        queue: 'fingerprint',
        handler: new URL('./fingerprint-handler.js', import.meta.url),
        threads,
        attempts: 2,
        timeoutMs: undefined,
      },
      output: () =>
        out === undefined
          ? new Unwritten()
          : new ResultFile(out, ({ input, result }) => summary.add(String(input), result as Fingerprint)),
      inputs: offered(files),
      total: () => ({ total: files.length, estimated: false }),
      name: ({ value }) => relative(root, String(value)),
      done: ({ value }, result) => summary.add(String(value), result as Fingerprint),
      interrupts,
      progress,
    });
    if (ending.interrupted) {
      progress.say(`stopped after ${many(ending.ended + ending.before, 'file')}; ${farewell(place)}`);
      return interrupts.exitCode;
    }
    process.stdout.write(
      values.json === true ? summary.json(ending) : summary.text(process.stdout, root, ending, threads),
    );
    return ending.failed > 0 ? ExitCode.FAILED : ExitCode.OK;
  } finally {
    interrupts.end();
  }
}

/** The directory that was named, or the node_modules of where we are, or of the package. */
function rootOf(named: string | undefined): string {
  const choices = named === undefined ? ['node_modules', packageModules()] : [named];
  const found = choices.find((path) => existsSync(path));
  if (found === undefined) throw new NotFoundError(`there is no directory ${choices[0]}`);
  if (!statSync(found).isDirectory()) throw new UsageError(`${found} is not a directory`);
  return realpathSync(found);
}

function packageModules(): string {
  return fileURLToPath(new URL('../../../node_modules', import.meta.url));
}

/** Every plain file, in an order that is the same each time. Links are not followed. */
function filesUnder(root: string, apart: ReadonlySet<string>): string[] {
  const files: string[] = [];
  const walk = (dir: string): void => {
    const entries = readdirSync(dir, { withFileTypes: true }).sort((a, b) => (a.name < b.name ? -1 : 1));
    for (const entry of entries) {
      const path = join(dir, entry.name);
      if (apart.has(path)) continue;
      if (entry.isDirectory()) walk(path);
      else if (entry.isFile()) files.push(path);
    }
  };
  walk(root);
  return files;
}

async function* offered(files: readonly string[]): AsyncGenerator<Offered> {
  for (const [index, path] of files.entries()) {
    const json = JSON.stringify(path);
    yield { number: index + 1, value: path, json, bytes: json.length };
  }
}
