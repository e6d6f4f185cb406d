/** `millrace run` as its user meets it: what it writes where, and what it ends with. */
import { once } from 'node:events';
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect, it } from 'vitest';
import { opened } from '../brokers.js';
import { handler, holds, linesIn, millrace, numbers, results, resultsIn, scratch, start } from './command.js';

const DOUBLE = 'export default (value) => value * 2;';
const ECHO = 'export default (value) => value;';

it('runs the handler for every line and writes each result as a line of JSON', async () => {
  const dir = scratch();
  const { code, stdout, stderr } = await millrace(['run', handler(dir, DOUBLE)], { stdin: numbers(500) });
  expect(code).toBe(0);
  expect(results(stdout)).toEqual(
    Array.from({ length: 500 }, (_, index) => ({ line: index + 1, input: index + 1, result: 2 * (index + 1) })),
  );
  expect(stderr).toMatch(/^millrace: 500 lines in [^\n]*\n$/);
});

it('gives async handlers their payload whatever JSON it is, and blank lines nothing', async () => {
  const dir = scratch();
  const echo = handler(dir, 'export default async (value, job) => ({ value, attempt: job.attempt });');
  const inputs = ['null', 'true', '-0.5', '"text"', '[1,[2]]', '{"a":{"b":"\\u00e9"},"__proto__":1}'];
  const { code, stdout } = await millrace(['run', echo], { stdin: ['', ...inputs, '  ', ''].join('\n') });
  expect(code).toBe(0);
  expect(results(stdout)).toEqual(
    inputs.map((input, index) => ({
      line: index + 2,
      input: JSON.parse(input) as unknown,
      result: { value: JSON.parse(input) as unknown, attempt: 1 },
    })),
  );
});

it('takes lines as text with --lines, empty ones too', async () => {
  const dir = scratch();
  const stdin = '\ufeffone\r\n\n  two "2" \n\u0007 three';
  const { code, stdout } = await millrace(['run', handler(dir, ECHO), '--lines'], { stdin });
  expect(code).toBe(0);
  expect(results(stdout).map(({ input, result }) => [input, result])).toEqual(
    ['one', '', '  two "2" ', '\u0007 three'].map((text) => [text, text]),
  );
});

it('writes null for a handler that returns nothing, and bytes as base64', async () => {
  const dir = scratch();
  const source = 'export default (value) => (value === 1 ? undefined : new Uint8Array([1, 2, 255]));';
  const { stdout } = await millrace(['run', handler(dir, source)], { stdin: '1\n2\n' });
  expect(results(stdout).map(({ result }) => result)).toEqual([null, 'AQL/']);
});

it('ends well on no input at all', async () => {
  const dir = scratch();
  expect(await millrace(['run', handler(dir, DOUBLE)])).toMatchObject({ code: 0, stdout: '' });
});

it('lists lines that are no JSON or no text and goes on with the others', async () => {
  const dir = scratch();
  const stdin = Buffer.concat([
    Buffer.from('1\n{oops\n3\n'),
    Buffer.from([0xff, 0x0a]),
    Buffer.from('"\u001b[31m" x\n6'),
  ]);
  const { code, stdout, stderr } = await millrace(['run', handler(dir, DOUBLE)], { stdin });
  expect(code).toBe(1);
  expect(results(stdout).map(({ line }) => line)).toEqual([1, 3, 6]);
  expect(stderr).toContain('line 2: not valid JSON: ');
  expect(stderr).toContain('line 4: not valid UTF-8\n');
  expect(stderr).toContain('line 5: not valid JSON: ');
  expect(stderr).toContain('3 failed');
  expect(stderr).not.toContain('\u001b');
});

it('lists lines that fail in all their attempts, with the last reason, in one line that steers no terminal', async () => {
  const dir = scratch();
  const runs = join(dir, 'runs');
  const source = `
    import { appendFileSync } from 'node:fs';
    export default (value, job) => {
      appendFileSync(${JSON.stringify(runs)}, value + '\\n');
      if (value === 1) throw new RangeError('no \\u001b[31mluck\\n  in attempt ' + job.attempt);
      if (value === 2) throw Object.assign(new Error('hopeless'), { name: 'Dead' });
      if (value === 3 && job.attempt === 1) throw new Error('not yet');
      if (value === 4) throw 'a text';
      return value;
    };`;
  const args = ['run', handler(dir, source), '--attempts', '2'];
  const { code, stdout, stderr } = await millrace(args, { stdin: numbers(5) });
  expect(code).toBe(1);
  expect(results(stdout).map(({ line }) => line)).toEqual([3, 5]);
  expect(stderr).toContain('line 1: RangeError: no \\u001b[31mluck in attempt 2 (2 attempts)\n');
  expect(stderr).toContain('line 2: given up by the handler: hopeless\n');
  expect(stderr).toContain('line 4: Error: a text (2 attempts)\n');
  expect(stderr).toContain('3 failed');
  expect(stderr).not.toContain('    at ');
  expect(readFileSync(runs, 'utf8').split('\n').filter(Boolean).sort()).toEqual([
    '1',
    '1',
    '2',
    '3',
    '3',
    '4',
    '4',
    '5',
  ]);
});

it('lists a result that cannot be JSON, one that is too large, and an input that is too large', async () => {
  const dir = scratch();
  const source = `export default (value) => (value === 1 ? NaN : value === 2 ? 'x'.repeat(9 << 20) : 'ok');`;
  const stdin = `1\n2\n"${'y'.repeat(8 << 20)}"\n4\n`;
  const { code, stdout, stderr } = await millrace(['run', handler(dir, source), '--attempts', '1'], { stdin });
  expect(code).toBe(1);
  expect(results(stdout)).toEqual([{ line: 4, input: 4, result: 'ok' }]);
  expect(stderr).toMatch(/line 1: cannot ack job \d+: .* is NaN\n/);
  expect(stderr).toMatch(/line 2: cannot ack job \d+: the result is \d+ bytes, the limit is 8388608\n/);
  expect(stderr).toContain('line 3: 8388610 bytes long, the limit is 8388608\n');
});

it('ends runs that take longer than --timeout, and the lines behind them go on', async () => {
  const dir = scratch();
  const source = 'export default (value) => { while (value === 1); return value; };';
  const args = ['run', handler(dir, source), '--timeout', '100', '--attempts', '1', '--threads', '1'];
  const { code, stdout, stderr } = await millrace(args, { stdin: numbers(3) });
  expect(code).toBe(1);
  expect(results(stdout).map(({ line }) => line)).toEqual([2, 3]);
  expect(stderr).toContain('line 1: took longer than 0.1 s\n');
});

it('lists a line that ends its thread, and the others go on', async () => {
  const dir = scratch();
  const source = 'export default (value) => { if (value === 2) process.exit(9); return value; };';
  const { code, stdout, stderr } = await millrace(['run', handler(dir, source), '--threads', '2'], {
    stdin: numbers(4),
  });
  expect(code).toBe(1);
  expect(results(stdout).map(({ line }) => line)).toEqual([1, 3, 4]);
  expect(stderr).toContain('line 2: took its thread down: ');
});

it.each([
  ['no handler', ['run'], 'no handler is named'],
  ['two handlers', ['run', 'a.js', 'b.js'], 'one handler'],
  ['an unknown option', ['run', '--bogus', 'a.js'], "Unknown option '--bogus'"],
  ['an option without its value', ['run', 'a.js', '--dir'], '--dir'],
  ['no threads', ['run', 'a.js', '--threads', '0'], '--threads is "0"'],
  ['a number that is none', ['run', 'a.js', '--attempts', '1e3'], '--attempts is "1e3"'],
  ['a time-out below 1', ['run', 'a.js', '--timeout', '-1'], '--timeout'],
  ['an empty name', ['run', 'a.js', '--out', ''], '--out'],
])('refuses %s', async (_, args, message) => {
  const { code, stdout, stderr } = await millrace(args);
  expect({ code, stdout }).toEqual({ code: 2, stdout: '' });
  expect(stderr).toContain(message);
  expect(stderr).toContain("Try 'millrace run --help'.");
});

it.each([
  ['is not there', undefined, 'there is no handler'],
  ['is not JavaScript', 'export default (', 'cannot load the handler module'],
  ['fails when it is loaded', 'throw new Error("no database");', 'no database'],
  ['ends its thread when it is loaded', 'process.exit(0);', 'cannot load the handler module'],
  ['imports what is missing', 'import "./missing.js"; export default () => 1;', 'missing.js'],
  ['exports nothing by default', 'export const handler = () => 1;', 'its default export is undefined'],
  ['exports something else', 'export default { run() {} };', 'not a function'],
])('ends with 3 and does nothing when the handler %s', async (_, source, message) => {
  const dir = scratch();
  const path = source === undefined ? join(dir, 'nothing.mjs') : handler(dir, source);
  const data = join(dir, 'data');
  const { code, stdout, stderr } = await millrace(['run', path, '--dir', data], { stdin: numbers(3) });
  expect({ code, stdout }).toEqual({ code: 3, stdout: '' });
  expect(stderr).toContain(message);
  expect(stderr).not.toContain('    at ');
  if (existsSync(data)) {
    const broker = await opened({}, data);
    expect(broker.stats()).toMatchObject({ jobs: 0, enqueued: 0 });
  }
});

it('ends with 4 when another process has the directory, and leaves the results file alone', async () => {
  const dir = scratch();
  const data = join(dir, 'data');
  const out = join(dir, 'out');
  // What looks torn is being written by whoever has the directory.
  writeFileSync(out, '{"line":');
  await opened({}, data);
  const { code, stderr } = await millrace(['run', handler(dir, DOUBLE), '--dir', data, '--out', out], { stdin: '1' });
  expect(code).toBe(4);
  expect(stderr).toBe(`millrace: cannot open ${data}: it is in use by process ${process.pid}\n`);
  expect(readFileSync(out, 'utf8')).toBe('{"line":');
});

it('ends with 5 when the directory is corrupt, saying where, and leaves it as it was', async () => {
  const dir = scratch();
  const data = join(dir, 'data');
  const args = ['run', handler(dir, DOUBLE), '--dir', data];
  expect(await millrace(args, { stdin: numbers(50) })).toMatchObject({ code: 0 });
  const log = join(data, readdirSync(data).find((name) => name.endsWith('.log'))!);
  const bytes = readFileSync(log);
  bytes[Math.floor(bytes.length / 3)]! ^= 1;
  writeFileSync(log, bytes);

  const { code, stdout, stderr } = await millrace(args, { stdin: numbers(50) });

  expect({ code, stdout }).toEqual({ code: 5, stdout: '' });
  expect(stderr).toMatch(/^millrace: cannot open .*\.log is corrupt at position \d+ .*\n$/);
  expect(readFileSync(log)).toEqual(bytes);
});

it('says what the system said when the results file cannot be opened', async () => {
  const dir = scratch();
  mkdirSync(join(dir, 'out'));
  const { code, stderr } = await millrace(['run', handler(dir, DOUBLE), '--out', join(dir, 'out')], { stdin: '1' });
  expect(code).toBe(1);
  expect(stderr).toMatch(/^millrace: EISDIR: [^\n]*\n$/);
});

it('refuses a results file that is somebody else’s', async () => {
  const dir = scratch();
  const out = join(dir, 'notes');
  writeFileSync(out, 'buy milk');
  const { code, stderr } = await millrace(['run', handler(dir, DOUBLE), '--out', out], { stdin: '1' });
  expect(code).toBe(2);
  expect(stderr).toContain('its line 1 is not a result of millrace run');
  expect(readFileSync(out, 'utf8')).toBe('buy milk');
  expect(existsSync(`${out}.millrace`)).toBe(false);
});

it('tries failed lines again when it is started again, and only these', async () => {
  const dir = scratch();
  const out = join(dir, 'out');
  const runs = join(dir, 'runs');
  const source = `
    import { appendFileSync, existsSync } from 'node:fs';
    export default (value) => {
      appendFileSync(${JSON.stringify(runs)}, value + '\\n');
      if (value % 10 === 0 && !existsSync(${JSON.stringify(join(dir, 'mended'))})) throw new Error('broken');
      return value;
    };`;
  const args = ['run', handler(dir, source), '--dir', join(dir, 'data'), '--out', out, '--attempts', '2'];
  expect(await millrace(args, { stdin: numbers(30) })).toMatchObject({ code: 1 });
  expect(resultsIn(out)).toHaveLength(27);
  writeFileSync(runs, '');
  expect(await millrace(args, { stdin: numbers(30) })).toMatchObject({ code: 1 });
  expect(readFileSync(runs, 'utf8').split('\n').filter(Boolean).sort()).toEqual(['10', '10', '20', '20', '30', '30']);
  writeFileSync(join(dir, 'mended'), '');
  writeFileSync(runs, '');

  expect(await millrace(args, { stdin: numbers(30) })).toMatchObject({ code: 0 });

  expect(resultsIn(out)).toHaveLength(30);
  expect(readFileSync(runs, 'utf8').split('\n').filter(Boolean).sort()).toEqual(['10', '20', '30']);
  const broker = await opened({}, join(dir, 'data'));
  expect(broker.queue('run').counts()).toMatchObject({ ready: 0, delayed: 0, leased: 0, dead: 0 });
});

it.each(['--out', '--dir'])('refuses another input where %s knows of an earlier one', async (option) => {
  const dir = scratch();
  const args = ['run', handler(dir, DOUBLE), option, join(dir, 'place')];
  expect(await millrace(args, { stdin: numbers(20) })).toMatchObject({ code: 0 });
  const { code, stderr } = await millrace(args, { stdin: numbers(20).replace('7\n', '70\n') });
  expect(code).toBe(2);
  expect(stderr).toContain('line 7 of the input is not the line 7 that');
});

it('refuses an input that ends before the results do', async () => {
  const dir = scratch();
  const args = ['run', handler(dir, DOUBLE), '--out', join(dir, 'out')];
  expect(await millrace(args, { stdin: numbers(20) })).toMatchObject({ code: 0 });
  const { code, stderr } = await millrace(args, { stdin: numbers(19) });
  expect(code).toBe(2);
  expect(stderr).toContain('result for line 20, the input ended with line 19');
});

it('takes the same input however it is spaced, and goes on with lines that were added', async () => {
  const dir = scratch();
  const out = join(dir, 'out');
  const args = ['run', handler(dir, 'export default ({ n }) => n;'), '--out', out];
  expect(await millrace(args, { stdin: '{"n":1}\n' })).toMatchObject({ code: 0 });
  expect(await millrace(args, { stdin: ' { "n" : 1 }\r\n{"n":2}' })).toMatchObject({ code: 0 });
  expect(resultsIn(out).map(({ result }) => result)).toEqual([1, 2]);
});

it.each([
  ['SIGINT', 130],
  ['SIGTERM', 143],
] as const)('stops in order at %s and ends with %i; the same command goes on from there', async (signal, code) => {
  const dir = scratch();
  const out = join(dir, 'out');
  const runs = join(dir, 'runs');
  const source = `
    import { appendFileSync } from 'node:fs';
    export default (value) => {
      appendFileSync(${JSON.stringify(runs)}, value + '\\n');
      return value;
    };`;
  const args = ['run', handler(dir, source), '--dir', join(dir, 'data'), '--out', out];
  writeFileSync(out, '');
  // The input stays open: there is always more to come.
  const { child, ended } = start(args);
  child.stdin.write(numbers(100));
  await holds(out, 100, ended);
  child.kill(signal);

  const first = await ended;

  expect(first.code).toBe(code);
  expect(first.stderr).toContain(signal);
  expect(first.stderr).toContain('stopped after 100 lines');
  expect(first.stderr).toContain('the same command goes on from there');
  expect(await millrace(args, { stdin: numbers(150) })).toMatchObject({ code: 0 });
  expect(resultsIn(out)).toHaveLength(150);
  expect(readFileSync(runs, 'utf8').split('\n').filter(Boolean)).toHaveLength(150);
});

/** A handler that says in the file `begun` that it runs, and goes on when `gate` has text in it. */
function gated(dir: string): string {
  const [begun, gate] = [join(dir, 'begun'), join(dir, 'gate')];
  writeFileSync(begun, '');
  writeFileSync(gate, '');
  return handler(
    dir,
    `import { appendFileSync, readFileSync } from 'node:fs';
     export default (value) => {
       appendFileSync(${JSON.stringify(begun)}, value + '\\n');
       while (readFileSync(${JSON.stringify(gate)}, 'utf8') === '');
       return value;
     };`,
  );
}

it('takes the results of what is running at the first signal, and leaves the rest', async () => {
  const dir = scratch();
  const out = join(dir, 'out');
  const { child, ended } = start(['run', gated(dir), '--threads', '2', '--out', out]);
  child.stdin.write(numbers(4000));
  await holds(join(dir, 'begun'), 2, ended);
  child.kill('SIGTERM');
  await once(child.stderr, 'data');
  writeFileSync(join(dir, 'gate'), 'open');
  const { code, stderr } = await ended;
  expect(code).toBe(143);
  const begun = linesIn(join(dir, 'begun')).map(Number);
  expect(resultsIn(out).map(({ line }) => line)).toEqual(begun.sort((a, b) => a - b));
  // A thread that was in a handler may begin a few more before it hears of the stop.
  expect(begun.length).toBeLessThan(4000);
  expect(stderr).toContain('SIGTERM: waiting for the lines that are running');
  expect(stderr).toContain(`stopped after ${begun.length.toLocaleString('en-US')} lines`);
  expect(stderr).toContain('the same command goes on from there');
});

it('waits for nothing at the second signal, and leaves nothing behind', async () => {
  const dir = scratch();
  const tmp = join(dir, 'tmp');
  mkdirSync(tmp);
  const { child, ended } = start(['run', gated(dir), '--threads', '1'], { env: { TMPDIR: tmp } });
  child.stdin.end('1\n');
  await holds(join(dir, 'begun'), 1, ended);
  child.kill('SIGINT');
  await once(child.stderr, 'data');
  child.kill('SIGINT');
  expect(await ended).toMatchObject({ code: 130, stdout: '' });
  expect(readdirSync(tmp)).toEqual([]);
});

it('stops quietly when nobody reads its results any more', async () => {
  const dir = scratch();
  const { child, ended } = start(['run', handler(dir, DOUBLE)]);
  child.stdout.once('data', () => child.stdout.destroy());
  child.stdin.end(numbers(50_000));
  const { code, stderr } = await ended;
  expect(code).toBe(141);
  expect(stderr).toBe('');
});

it('flushes its results before it removes the directory that could give them again', async () => {
  const dir = scratch();
  const out = join(dir, 'out');
  const log = join(dir, 'log');
  const spy = handler(
    dir,
    `import fs from 'node:fs';
     import { syncBuiltinESMExports } from 'node:module';
     import { isMainThread } from 'node:worker_threads';
     const { fsyncSync, rmSync, appendFileSync, readlinkSync } = fs;
     const tell = (text) => appendFileSync(${JSON.stringify(log)}, text + '\\n');
     if (isMainThread) {
       fs.fsyncSync = (fd) => {
         fsyncSync(fd);
         tell('fsync ' + readlinkSync('/proc/self/fd/' + fd) + ' ' + fs.fstatSync(fd).size);
       };
       fs.rmSync = (path, options) => {
         tell('rm ' + path);
         rmSync(path, options);
       };
       syncBuiltinESMExports();
     }`,
    'spy.mjs',
  );
  const env = { NODE_OPTIONS: `--import=${pathToFileURL(spy).href}` };
  const args = ['run', handler(dir, DOUBLE), '--out', out];
  expect(await millrace(args, { stdin: numbers(3), env })).toMatchObject({ code: 0 });
  const told = readFileSync(log, 'utf8').trim().split('\n');
  const { size } = statSync(out);
  expect(told.slice(-2)).toEqual([`fsync ${out} ${size}`, `rm ${out}.millrace`]);
  // Its name, too, must be durable.
  expect(told.some((line) => line.startsWith(`fsync ${dir} `))).toBe(true);
});

it('leaves nothing behind without --dir and --out', async () => {
  const dir = scratch();
  const tmp = join(dir, 'tmp');
  mkdirSync(tmp);
  for (const source of [DOUBLE, 'export default () => { throw new Error("no"); };', 'export default 1;']) {
    await millrace(['run', handler(dir, source)], { stdin: numbers(3), env: { TMPDIR: tmp } });
    expect(readdirSync(tmp)).toEqual([]);
  }
});

it('finds a handler by relative path and by file URL', async () => {
  const dir = scratch();
  handler(dir, DOUBLE, 'a b#c.mjs');
  for (const name of ['a b#c.mjs', './a b#c.mjs', `file://${dir}/a%20b%23c.mjs`]) {
    expect(await millrace(['run', name], { stdin: '21', cwd: dir })).toMatchObject({
      code: 0,
      stdout: '{"line":1,"input":21,"result":42}\n',
    });
  }
});
