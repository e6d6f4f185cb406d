#!/usr/bin/env node
/**
 * The command line: which command, and what its errors look like. Data goes to standard output, talk to standard error;
 * exit codes are in `usage.ts`. Only a bug of ours shows a stack.
 */
import { readFileSync } from 'node:fs';
import { MillraceError } from '../errors.js';
import { DUMP_HELP, dump } from './dump.js';
import { FINGERPRINT_HELP, fingerprint } from './fingerprint.js';
import { REPAIR_HELP, repair } from './repair.js';
import { RUN_HELP, run } from './run.js';
import { oneLine, paint } from './terminal.js';
import { ExitCode, NotFoundError, UsageError } from './usage.js';
import { VERIFY_HELP, verify } from './verify.js';

interface Command {
  readonly summary: string;
  readonly help: string;
  run(args: readonly string[]): Promise<number>;
}

const COMMANDS: Readonly<Record<string, Command>> = {
  run: { summary: 'a handler over the lines of standard input, durably', help: RUN_HELP, run },
  fingerprint: { summary: 'hash, count and gzip every file of a directory', help: FINGERPRINT_HELP, run: fingerprint },
  verify: { summary: 'check every byte of a log', help: VERIFY_HELP, run: verify },
  repair: { summary: 'make a corrupt log open again', help: REPAIR_HELP, run: repair },
  dump: { summary: 'the records of a log as lines of JSON', help: DUMP_HELP, run: dump },
};

const HELP = `Usage: millrace COMMAND [options]

An embedded, durable job queue for Node.js, at work on the command line.

Commands:
${Object.entries(COMMANDS)
  .map(([name, { summary }]) => `  ${name.padEnd(14)}${summary}`)
  .join('\n')}

  millrace COMMAND --help says more; --version prints the version.
`;

async function main([first, ...rest]: readonly string[]): Promise<number> {
  switch (first) {
    case undefined:
      process.stderr.write(HELP);
      return ExitCode.USAGE;
    case '--help':
    case '-h':
      process.stdout.write(HELP);
      return ExitCode.OK;
    case '--version':
    case '-v':
      process.stdout.write(`${version()}\n`);
      return ExitCode.OK;
    case 'help': {
      const command = rest[0] === undefined ? undefined : commandOf(rest[0]);
      process.stdout.write(command?.help ?? HELP);
      return ExitCode.OK;
    }
    default:
      return await commandOf(first).run(rest);
  }
}

function commandOf(name: string): Command {
  const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined;
  if (command === undefined) throw new UsageError(`there is no command ${name}`);
  return command;
}

function version(): string {
  const { version: ours } = JSON.parse(readFileSync(new URL('../../../package.json', import.meta.url), 'utf8')) as {
    version: string;
  };
  return ours;
}

/** The exit code of an error, after it has been told. */
function told(error: unknown): number {
  const tell = (message: string): void => {
    process.stderr.write(`${paint(process.stderr, 'red', 'millrace:')} ${oneLine(message)}\n`);
  };
  if (!(error instanceof Error)) {
    tell(String(error));
    return ExitCode.FAILED;
  }
  const code = (error as NodeJS.ErrnoException).code ?? '';
  if (error instanceof UsageError || code.startsWith('ERR_PARSE_ARGS_')) {
    tell(error.message.split('. To specify a positional')[0]!);
    const command = Object.hasOwn(COMMANDS, process.argv[2] ?? '') ? ` ${process.argv[2]}` : '';
    process.stderr.write(`Try 'millrace${command} --help'.\n`);
    return ExitCode.USAGE;
  }
  if (error instanceof NotFoundError) {
    tell(error.message);
    return ExitCode.NOT_FOUND;
  }
  if (error instanceof MillraceError) {
    tell(error.message);
    return exitCodeOf(error);
  }
  // The system said no: its message names the file and the reason.
  if (/^E[A-Z0-9]+$/.test(code)) tell(error.message);
  else process.stderr.write(`${error.stack ?? error.message}\n`);
  return ExitCode.FAILED;
}

function exitCodeOf({ code }: MillraceError): number {
  switch (code) {
    case 'ERR_MILLRACE_OPTION_INVALID':
      return ExitCode.USAGE;
    case 'ERR_MILLRACE_HANDLER_NOT_FOUND':
      return ExitCode.NOT_FOUND;
    case 'ERR_MILLRACE_LOCKED':
      return ExitCode.LOCKED;
    case 'ERR_MILLRACE_CORRUPT':
      return ExitCode.CORRUPT;
    default:
      return ExitCode.FAILED;
  }
}

process.exitCode = await main(process.argv.slice(2)).catch(told);
