/**
 * Payloads and results to bytes and back. JSON by default, checked first: what JSON would lose in silence (NaN,
 * functions, Maps, half surrogate pairs, ...) is refused with ERR_MILLRACE_PAYLOAD_INVALID, naming where it stands.
 */
import { MillraceError, shown } from '../errors.js';
import type { Codec } from '../options.js';

const DEPTH_MAX = 1000;

/** What a queue does with values. Text or bytes go straight into the record being built. */
export interface Coding {
  encode(value: unknown, attempted: string): string | Uint8Array;
  /** `bytes` is private memory; it may be kept. */
  decode(bytes: Uint8Array): unknown;
}

function invalid(attempted: string, why: string, cause?: unknown): MillraceError {
  return new MillraceError('ERR_MILLRACE_PAYLOAD_INVALID', `cannot ${attempted}: ${why}`, { reason: why }, cause);
}

/** The first thing in `value` that JSON would not keep, as a path and a reason; undefined when there is none. */
function lossy(value: unknown, path: string, depth: number): string | undefined {
  switch (typeof value) {
    case 'string':
      return value.isWellFormed() ? undefined : `${path} holds half a surrogate pair`;
    case 'number':
      return Number.isFinite(value) ? undefined : `${path} is ${value}`;
    case 'boolean':
    case 'undefined':
      return undefined;
    case 'object':
      break;
    default:
      return `${path} is a ${typeof value}`;
  }
  if (value === null) return undefined;
  if (depth > DEPTH_MAX) return `it is nested more than ${DEPTH_MAX} levels deep or holds itself`;
  if (Array.isArray(value)) {
    for (let i = 0; i < value.length; i++) {
      if (value[i] === undefined) return `${path}[${i}] is undefined`;
      const found = lossy(value[i], depth < 8 ? `${path}[${i}]` : path, depth + 1);
      if (found !== undefined) return found;
    }
    return undefined;
  }
  if (typeof (value as { toJSON?: unknown }).toJSON === 'function') return undefined;
  if (value instanceof Map || value instanceof Set || value instanceof RegExp || value instanceof Promise) {
    return `${path} is a ${value.constructor.name}`;
  }
  if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer || value instanceof SharedArrayBuffer) {
    return `${path} is a ${value.constructor.name}`;
  }
  for (const key of Object.keys(value)) {
    const found = lossy((value as Record<string, unknown>)[key], depth < 8 ? `${path}.${shown(key)}` : path, depth + 1);
    if (found !== undefined) return found;
  }
  return undefined;
}

/** Reading a value may run the user's code: getters, proxies. */
function lossyOrThrowing(value: unknown): string | undefined {
  try {
    return lossy(value, 'the payload', 0);
  } catch (error) {
    return `reading it threw ${shown(error)}`;
  }
}

const json: Coding = {
  encode(value, attempted) {
    if (typeof value === 'string' || typeof value === 'number') {
      const found = lossy(value, 'the payload', 0);
      if (found !== undefined) throw invalid(attempted, found);
      return JSON.stringify(value);
    }
    const found = value === undefined ? 'it is undefined' : lossyOrThrowing(value);
    if (found !== undefined) throw invalid(attempted, found);
    let text: string | undefined;
    try {
      text = JSON.stringify(value);
    } catch (cause) {
      throw invalid(attempted, `it cannot be written as JSON (${shown(cause)})`, cause);
    }
    if (text === undefined) throw invalid(attempted, 'it has no JSON form');
    return text;
  },
  decode(bytes) {
    return JSON.parse(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString('utf8'));
  },
};

const raw: Coding = {
  encode(value, attempted) {
    if (!(value instanceof Uint8Array)) throw invalid(attempted, `it is ${shown(value)}, not a Uint8Array`);
    return value;
  },
  decode(bytes) {
    return bytes;
  },
};

/** The option that a coding comes from: 'own' stands for one that only the thread that gave it has. */
export function codecOf(coding: Coding): 'json' | 'bytes' | 'own' {
  return coding === json ? 'json' : coding === raw ? 'bytes' : 'own';
}

/** How a queue's `codec` option codes. */
export function codingOf(codec: 'json' | 'bytes' | Codec<never> | undefined): Coding {
  if (codec === undefined || codec === 'json') return json;
  if (codec === 'bytes') return raw;
  if (
    typeof codec !== 'object' ||
    codec === null ||
    typeof codec.encode !== 'function' ||
    typeof codec.decode !== 'function'
  ) {
    throw new MillraceError(
      'ERR_MILLRACE_OPTION_INVALID',
      `cannot use a queue: codec is ${shown(codec)}, allowed is 'json', 'bytes' or { encode, decode }`,
      { option: 'codec', value: codec },
    );
  }
  return {
    encode(value, attempted) {
      let bytes: unknown;
      try {
        bytes = codec.encode(value as never);
      } catch (cause) {
        throw invalid(attempted, `its codec threw ${shown(cause)}`, cause);
      }
      if (!(bytes instanceof Uint8Array))
        throw invalid(attempted, `its codec returned ${shown(bytes)}, not a Uint8Array`);
      return bytes;
    },
    decode: (bytes) => codec.decode(bytes),
  };
}
