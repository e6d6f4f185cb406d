/**
 * `millrace run`: a handler over the lines of standard input. Main thread.
 */
import { existsSync, fstatSync } from 'node:fs';
import { resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { PAYLOAD_BYTES_MAX } from './durable-map.js';
import { type Line, LineSplitter, readLines } from './input.js';
import { Interrupts } from './interrupts.js';
import { ResultFile, ResultStream } from './output.js';
import { placeOf } from './place.js';
import { Progress } from './progress.js';
import { carryOut, type Ending, farewell, type Offered } from './session.js';
import { count, duration, figures, many } from './terminal.js';
import { ExitCode, NotFoundError, pathName, UsageError, wholeNumber } from './usage.js';

export const RUN_HELP = `Usage: millrace run HANDLER [options] < LINES

Runs a handler for every line of standard input, in worker threads, and writes
each result as a line of JSON, {"line":1,"input":...,"result":...}, in the order
in which they come. HANDLER is a module whose default export is a function of
one input; it may be async.

  --dir DIR     keep the jobs in DIR: killed at any moment and started again
                with the same --dir, --out and input, the run goes on
  --out FILE    append results to FILE instead of writing them to standard
                output; lines whose result is in FILE are not run again
                (without --dir the jobs are in FILE.millrace until all is done)
  --threads N   worker threads (default: one for each core)
  --attempts N  runs of a line before it counts as failed (default: 3)
  --timeout MS  milliseconds one run may take (default: no limit)
  --lines       a line is text, not JSON; an empty line is an empty text
                (without --lines blank lines are skipped, but counted)
  -h, --help    this text

A line that is not valid JSON, or that fails in all its attempts, is listed on
standard error with its reason; the others go on. A run that is started again
tries failed lines again, last of all those that were running each time when the
process died.

Exit codes: 0 every line has its result, 1 some failed, 2 usage, 3 no such
handler, 4 the directory is in use, 5 the directory is corrupt, 130 and 143
interrupted.
`;

export async function run(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: {
      dir: { type: 'string' },
      out: { type: 'string' },
      threads: { type: 'string' },
      attempts: { type: 'string' },
      timeout: { type: 'string' },
      lines: { type: 'boolean' },
      help: { type: 'boolean', short: 'h' },
    },
  });
  if (values.help === true) {
    process.stdout.write(RUN_HELP);
    return ExitCode.OK;
  }
  if (positionals.length !== 1) {
    throw new UsageError(positionals.length === 0 ? 'no handler is named' : `one handler is enough`);
  }
  const options = {
    queue: 'run',
    threads: wholeNumber('--threads', values.threads, 1, 128),
    attempts: wholeNumber('--attempts', values.attempts, 1, 65_535) ?? 3,
    timeoutMs: wholeNumber('--timeout', values.timeout, 1, 2 ** 31 - 1),
  };
  const out = pathName('--out', values.out);
  const dir = pathName('--dir', values.dir);
  const handler = handlerUrl(positionals[0]!);
  const progress = new Progress(process.stderr, 'lines');
  if (process.stdin.isTTY) progress.say('reading lines from the terminal; ctrl-d ends them');
  const place = placeOf(dir, out);
  const interrupts = new Interrupts((signal) => {
    progress.say(`${signal}: waiting for the lines that are running; once more to stop at once`);
  });
  try {
    const input = new StandardInput(values.lines === true, interrupts.signal);
    const ending = await carryOut({
      place,
      options: { ...options, handler },
      output: () => (out === undefined ? new ResultStream(process.stdout) : new ResultFile(out)),
      inputs: input.offered(),
      total: () => input.total(),
      name: ({ number }) => `line ${number}`,
      interrupts,
      progress,
    });
    // Who has gone away with the pipe has heard enough.
    if (interrupts.pipeLost) return interrupts.exitCode;
    progress.say(`${told(ending)}${ending.interrupted ? `; ${farewell(place)}` : ''}`);
    if (ending.interrupted) return interrupts.exitCode;
    return ending.failed > 0 ? ExitCode.FAILED : ExitCode.OK;
  } finally {
    interrupts.end();
  }
}

/** What came of it, in one line. */
function told({ ended, failed, before, elapsedMs, interrupted }: Ending): string {
  const rate = elapsedMs >= 1000 && ended > 0 ? ` (${figures((ended / elapsedMs) * 1000)}/s)` : '';
  const parts = [`${many(ended, 'line')} in ${duration(elapsedMs)}${rate}`];
  if (before > 0) parts.push(`${count(before)} done before`);
  if (failed > 0) parts.push(`${count(failed)} failed`);
  return `${interrupted ? 'stopped after ' : ''}${parts.join(', ')}`;
}

function handlerUrl(named: string): URL {
  let url: URL;
  try {
    url = named.startsWith('file:') ? new URL(named) : pathToFileURL(resolve(named));
    if (existsSync(fileURLToPath(url))) return url;
  } catch {
    // Not a file's URL, whatever it is.
  }
  throw new NotFoundError(`there is no handler ${named}`);
}

/** Standard input as inputs. */
class StandardInput {
  readonly #splitter = new LineSplitter(PAYLOAD_BYTES_MAX);
  readonly #lines: boolean;
  readonly #signal: AbortSignal;
  /** Bytes in all, where standard input is a file. */
  readonly #bytes: number | undefined;
  #offered = 0;
  #over = false;

  constructor(lines: boolean, signal: AbortSignal) {
    this.#lines = lines;
    this.#signal = signal;
    const stats = fstatSync(process.stdin.fd);
    this.#bytes = stats.isFile() ? stats.size : undefined;
  }

  async *offered(): AsyncGenerator<Offered> {
    for await (const line of readLines(process.stdin, this.#splitter, this.#signal)) {
      const offered = this.#lines ? offeredText(line) : offeredJson(line);
      if (offered === undefined) continue;
      this.#offered++;
      yield offered;
    }
    this.#over = true;
  }

  total(): { total: number | undefined; estimated: boolean } {
    if (this.#over) return { total: this.#offered, estimated: false };
    const { bytes } = this.#splitter;
    if (this.#bytes === undefined || bytes === 0) return { total: undefined, estimated: false };
    return { total: Math.max(this.#offered, Math.round((this.#offered * this.#bytes) / bytes)), estimated: true };
  }
}

const BYTE_ORDER_MARK = '\ufeff';

function offeredText({ line, text, bytes, problem }: Line): Offered {
  const value = line === 1 && text.startsWith(BYTE_ORDER_MARK) ? text.slice(1) : text;
  return { number: line, value, json: JSON.stringify(value), bytes, problem };
}

/** undefined: a blank line. */
function offeredJson(line: Line): Offered | undefined {
  const { value, bytes, problem, number } = { ...offeredText(line), number: line.line };
  const json = (value as string).trim();
  if (problem !== undefined) return { number, value: null, json: 'null', bytes, problem };
  if (json === '') return undefined;
  try {
    return { number, value: JSON.parse(json) as unknown, json, bytes };
  } catch (error) {
    return { number, value: null, json: 'null', bytes, problem: `not valid JSON: ${(error as Error).message}` };
  }
}
