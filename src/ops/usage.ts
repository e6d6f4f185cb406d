/** What the commands end with: exit codes, and the error for a call that makes no sense. */
export const ExitCode = { OK: 0, FAILED: 1, USAGE: 2, NOT_FOUND: 3, LOCKED: 4, CORRUPT: 5 } as const;

/** The call itself is wrong: arguments, options, or an input and files that do not belong together. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}

/** What the command needs is not there. */
export class NotFoundError extends Error {
  override readonly name = 'NotFoundError';
}

/** A whole number given as an option. */
export function wholeNumber(option: string, text: string | undefined, min: number, max: number): number | undefined {
  if (text === undefined) return undefined;
  const value = /^\d+$/.test(text) ? Number(text) : Number.NaN;
  if (value >= min && value <= max) return value;
  throw new UsageError(`${option} is ${JSON.stringify(text)}, allowed is a whole number from ${min} to ${max}`);
}

/** An option that names a file or directory. */
export function pathName(option: string, path: string | undefined): string | undefined {
  if (path === '' || path?.includes('\0')) throw new UsageError(`${option} names nothing`);
  return path;
}
