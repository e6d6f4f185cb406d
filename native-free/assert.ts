// The assertions that stay on in production. A breach means that our own code broke one of its rules: it is never a
// fact about the user, the disk or the load (those are MillraceErrors). Called from every layer, on every thread.

/** Thrown when the code breaks one of its own rules. Nothing catches it to carry on. */
export class BreachError extends Error {
  override readonly name = 'BreachError';
  readonly code = 'ERR_MILLRACE_BREACH';
}

/** `what` states the rule, and must be a constant: a message built on every call would cost more than the check. */
export function assert(condition: boolean, what: string): asserts condition {
  if (!condition) breach(what);
}

/** Ends a `switch` over a union: a member without a case no longer compiles, and throws should one arrive anyway. */
export function unreachable(x: never): never {
  throw new BreachError(`unreachable: ${String(x)}`);
}

// Kept apart from assert so that assert stays small enough to be inlined everywhere.
function breach(what: string): never {
  throw new BreachError(`broken rule: ${what}`);
}
