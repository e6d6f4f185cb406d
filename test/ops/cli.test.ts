/** The command line itself: help, version, and calls that make no sense. */
import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { millrace } from './command.js';

it.each([
  [['--help'], 'Usage: millrace COMMAND'],
  [['-h'], 'Usage: millrace COMMAND'],
  [['help'], 'Usage: millrace COMMAND'],
  [['run', '--help'], 'Usage: millrace run HANDLER'],
  [['help', 'run'], 'Usage: millrace run HANDLER'],
  [['fingerprint', '-h'], 'Usage: millrace fingerprint [DIR]'],
])('%j prints help on standard output', async (args, usage) => {
  const { code, stdout, stderr } = await millrace(args);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expect(stdout.startsWith(usage)).toBe(true);
  expect(Math.max(...stdout.split('\n').map((line) => line.length))).toBeLessThanOrEqual(80);
});

it('names each option of its commands in their help', async () => {
  const { stdout } = await millrace(['run', '--help']);
  for (const option of ['--dir', '--out', '--threads', '--attempts', '--timeout', '--lines']) {
    expect(stdout).toContain(`  ${option} `);
  }
});

it('prints the version of the package', async () => {
  const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
    version: string;
  };
  expect(await millrace(['--version'])).toMatchObject({ code: 0, stdout: `${version}\n`, stderr: '' });
});

it('prints help on standard error when it is called with nothing', async () => {
  const { code, stdout, stderr } = await millrace([]);
  expect({ code, stdout }).toEqual({ code: 2, stdout: '' });
  expect(stderr).toContain('Usage: millrace COMMAND');
});

it.each([['bogus'], ['constructor'], ['--bogus'], ['\u001b[31mred']])('refuses the command %j', async (name) => {
  const { code, stdout, stderr } = await millrace([name]);
  expect({ code, stdout }).toEqual({ code: 2, stdout: '' });
  expect(stderr).toContain('millrace: there is no command ');
  expect(stderr).not.toContain('\u001b');
});
