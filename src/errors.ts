/**
 * The one error class. A message says what was attempted, then the facts; the facts are properties too.
 */

export const ERROR_CODES = [
  'ERR_MILLRACE_CLOSED',
  'ERR_MILLRACE_FULL',
  'ERR_MILLRACE_PAYLOAD_TOO_LARGE',
  'ERR_MILLRACE_PAYLOAD_INVALID',
  'ERR_MILLRACE_OPTION_INVALID',
  'ERR_MILLRACE_NAME_INVALID',
  'ERR_MILLRACE_LOCKED',
  'ERR_MILLRACE_CORRUPT',
  'ERR_MILLRACE_NEWER_VERSION',
  'ERR_MILLRACE_IO',
  'ERR_MILLRACE_NO_SPACE',
  'ERR_MILLRACE_OUTCOME_UNKNOWN',
  'ERR_MILLRACE_THREAD_DIED',
  'ERR_MILLRACE_HANDLER_NOT_FOUND',
  'ERR_MILLRACE_TIMEOUT',
  'ERR_MILLRACE_CANCELLED',
  'ERR_MILLRACE_CRASHED',
  'ERR_MILLRACE_DEAD',
  'ERR_MILLRACE_RESULT_EXPIRED',
] as const;
export type ErrorCode = (typeof ERROR_CODES)[number];

/** Facts that an error carries as properties: file, position, reason, limit, pid, ... */
export type ErrorFacts = Readonly<Record<string, unknown>>;

/** Every error that millrace throws or rejects with. `code` is one of `ERROR_CODES`. */
export class MillraceError extends Error {
  override readonly name = 'MillraceError';
  readonly code: ErrorCode;
  readonly [fact: string]: unknown;

  constructor(code: ErrorCode, message: string, facts: ErrorFacts = {}, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.code = code;
    for (const [name, value] of Object.entries(facts)) {
      if (!(name in this)) Object.defineProperty(this, name, { value, enumerable: true });
    }
  }
}

/** Text with everything a terminal or a log line could take as more than text (control, bidi, format) escaped. */
export function printable(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: escaping them is the point.
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (unit) => {
    return `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`;
  });
}

/** A value as it stands in an error message: printable, text in quotes, cut at `max`. */
export function shown(value: unknown, max = 80): string {
  const text = typeof value === 'string' ? JSON.stringify(value) : spoken(value);
  return printable(text.length > max ? `${text.slice(0, max)}...` : text);
}

/** What is shown may be anything, also something that throws when it is made text of. */
function spoken(value: unknown): string {
  try {
    return String(value);
  } catch {
    return 'an object without a text form';
  }
}
