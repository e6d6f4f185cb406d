/**
 * Puts each mutant into a copy of the sources, runs the tests that must kill it, and prints who survived:
 * `npm run mutants [-- PARTS OF NAMES]`. First the same tests must pass on the copy as it is.
 *
 * A mutant is killed when a test fails, or when the tests hang and are stopped. One that breaks the run in another way,
 * such as a file that cannot be loaded, shows nothing and counts as a survivor.
 */
import { spawn } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import { MUTANTS, type Mutant } from './mutants.js';

const HANGS_AFTER_MS = Number(process.env.MILLRACE_MUTANT_MS ?? 60_000);
const root = fileURLToPath(new URL('../../..', import.meta.url));
const COPIED = ['src', 'native-free', 'test', 'dist', 'package.json', 'tsconfig.json', 'vitest.config.ts'];

type Outcome = 'passed' | 'failed' | 'hung' | 'broken';

const wanted = process.argv.slice(2);
const mutants = MUTANTS.filter(({ name }) => wanted.length === 0 || wanted.some((part) => name.includes(part)));
const copy = mkdtempSync(join(tmpdir(), 'millrace-mutants-'));
try {
  for (const name of COPIED) cpSync(join(root, name), join(copy, name), { recursive: true });
  symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'));
  const { outcome, output } = await run([...new Set(mutants.flatMap(({ tests }) => tests))], undefined);
  if (outcome !== 'passed') throw new Error(`the tests do not pass on the sources as they are\n${output}`);

  const survivors: string[] = [];
  for (const mutant of mutants) {
    const restore = apply(mutant);
    const { outcome, output } = await run(mutant.tests, mutant.only);
    restore();
    console.log(`${outcome === 'passed' ? 'SURVIVED' : outcome.padEnd(8)} ${mutant.name}`);
    if (outcome === 'broken') console.log(output);
    if (outcome === 'passed' || outcome === 'broken') survivors.push(mutant.name);
  }
  const killed = mutants.length - survivors.length;
  console.log(`${mutants.length} mutants, ${killed} killed, survivors: ${survivors.join('; ') || 'none'}`);
  process.exitCode = survivors.length === 0 ? 0 : 1;
} finally {
  rmSync(copy, { recursive: true, force: true });
}

/** Changes the source and what was built of it; returns how to change them back. */
function apply({ name, file, from, to }: Mutant): () => void {
  const source = join(copy, file);
  const built = join(copy, 'dist', file.replace(/\.ts$/, '.js'));
  const before = readFileSync(source, 'utf8');
  const builtBefore = readFileSync(built, 'utf8');
  const parts = before.split(from);
  if (parts.length !== 2) throw new Error(`'${name}': its old text stands ${parts.length - 1} times in ${file}`);
  const after = parts.join(to);
  writeFileSync(source, after);
  const compilerOptions = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext, verbatimModuleSyntax: true };
  writeFileSync(built, ts.transpileModule(after, { compilerOptions, fileName: file }).outputText);
  return () => {
    writeFileSync(source, before);
    writeFileSync(built, builtBefore);
  };
}

async function run(tests: readonly string[], only: string | undefined): Promise<{ outcome: Outcome; output: string }> {
  const report = join(copy, 'report.json');
  rmSync(report, { force: true });
  const args = ['run', ...tests, '--bail=1', '--reporter=default', '--reporter=json', `--outputFile.json=${report}`];
  if (only !== undefined) args.push('-t', only);
  const child = spawn(process.execPath, [join(root, 'node_modules/vitest/vitest.mjs'), ...args], {
    cwd: copy,
    // A group of its own: the processes that run the tests end with it.
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (text) => (output += text));
  let hung = false;
  const timer = setTimeout(
    () => {
      hung = true;
      process.kill(-child.pid!, 'SIGKILL');
    },
    HANGS_AFTER_MS * (only === undefined ? tests.length : 1),
  );
  const status = await new Promise((resolve) => child.once('close', resolve));
  clearTimeout(timer);
  if (hung) return { outcome: 'hung', output };
  if (status === 0) return { outcome: 'passed', output };
  const failed = /"numFailedTests":([1-9]\d*)/.test(reportOf(report));
  return { outcome: failed ? 'failed' : 'broken', output };
}

function reportOf(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}
