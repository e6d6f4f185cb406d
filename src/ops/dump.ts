/** `millrace dump`: the records of a log, a line of JSON each. Changes nothing. */
import { writeSync } from 'node:fs';
import { parseArgs } from 'node:util';
import * as record from '../../native-free/record.js';
import { At, Attribute, BODY, ImageAt, type Memory, RecordType } from '../../native-free/record.js';
import { directoryOf, inspect, typeName } from './inspection.js';
import { oneLine, paint, tameJson } from './terminal.js';
import { ExitCode } from './usage.js';

export const DUMP_HELP = `Usage: millrace dump DIR [options]

Prints the records of a broker's log as lines of JSON, oldest first, up to its
end or to the first damage. Changes nothing, and takes the directory's lock
while it reads. Payloads that are JSON are shown as such, others in base64.

  -h, --help  this text

Exit codes: 0 all of it, 1 written by a newer version, 2 usage, 3 no such
directory, 4 the directory is in use, 5 corrupt: what is intact was printed.
`;

const PIECE_BYTES = 64 * 1024;
const STATES = ['live', 'dead', 'done'] as const;

export async function dump(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: { help: { type: 'boolean', short: 'h' } },
  });
  if (values.help === true) {
    process.stdout.write(DUMP_HELP);
    return ExitCode.OK;
  }
  const dir = directoryOf(positionals, 'dump');
  let piece = '';
  const write = (): void => {
    const bytes = Buffer.from(piece);
    piece = '';
    for (let at = 0; at < bytes.length; ) at += writeSome(bytes, at);
  };
  const { verdict } = await inspect(dir, {
    record(memory, offset, position) {
      const line = JSON.stringify(shown(memory, offset, position));
      piece += `${process.stdout.isTTY ? tameJson(line) : line}\n`;
      if (piece.length > PIECE_BYTES) write();
    },
  });
  write();
  if (verdict.action === 'end') return ExitCode.OK;
  const { file, position, offset, reason } = verdict;
  const place = `${file}, position ${position} (offset ${offset})`;
  const message = oneLine(`the log ends at ${place}: ${reason}`);
  process.stderr.write(`${paint(process.stderr, 'red', 'millrace:')} ${message}\n`);
  if (verdict.action === 'refuse') return ExitCode.CORRUPT;
  return verdict.action === 'newer' ? ExitCode.FAILED : ExitCode.OK;
}

/** A pipe that is full for the moment refuses; who reads it needs its turn. */
function writeSome(bytes: Uint8Array, at: number): number {
  for (;;) {
    try {
      return writeSync(process.stdout.fd, bytes, at);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    }
  }
}

function shown(memory: Memory, offset: number, position: number): object {
  const type = record.typeOf(memory, offset);
  const common = {
    position,
    type: typeName(type),
    id: record.idOf(memory, offset),
    queue: record.queueOf(memory, offset),
  };
  const time = record.timeOf(memory, offset);
  switch (type) {
    case RecordType.ENQUEUE:
      return { ...common, ...job(memory, offset), payload: payload(memory, record.bodyEnd(memory, offset), offset) };
    case RecordType.IMAGE: {
      const tail = record.imageTail(memory, offset);
      const counts = memory.i32[(tail + ImageAt.COUNTS) >>> 2]!;
      return {
        ...common,
        ...job(memory, offset),
        state: STATES[counts >>> 24] ?? counts >>> 24,
        attempts: counts & 0xffff,
        crashes: (counts >>> 16) & 0xff,
        runAt: memory.f64[(tail + ImageAt.RUN_AT) >>> 3],
        payload: payload(memory, record.bodyEnd(memory, offset), offset),
      };
    }
    case RecordType.RETRY:
    case RecordType.DEAD: {
      const reason = record.reasonOf(memory, offset);
      const [attempts, crashes] = [record.attemptsOf(memory, offset), record.crashesOf(memory, offset)];
      const when = type === RecordType.RETRY ? { runAt: time } : { time };
      return { ...common, ...when, attempts, crashes, reason, error: text(memory, offset) };
    }
    case RecordType.ACK:
      return record.bytesOf(memory, offset) > record.HEADER_BYTES
        ? { ...common, time, result: text(memory, offset) }
        : { ...common, time };
    case RecordType.ACK_MANY: {
      const ids: number[] = [];
      const end = offset + record.bytesOf(memory, offset);
      for (let at = offset + record.HEADER_BYTES; at < end; at += 16) ids.push(memory.f64[at >>> 3]!);
      return { position, type: common.type, time, ids };
    }
    case RecordType.QUEUE:
    case RecordType.BIND:
    case RecordType.UNBIND:
    case RecordType.CHECKPOINT:
      return { ...common, time, value: text(memory, offset) };
    default:
      return { ...common, time };
  }
}

function job(memory: Memory, offset: number): object {
  const label = (attribute: number): string | undefined => {
    const at = record.attributeAt(memory, offset, attribute);
    if (at < 0) return undefined;
    return Buffer.from(memory.u8.slice(at + 2, at + 2 + (memory.u8[at]! | (memory.u8[at + 1]! << 8)))).toString();
  };
  const expiresAt = record.attributeAt(memory, offset, Attribute.EXPIRES_AT);
  return {
    priority: memory.i32[(offset + At.ROW) >>> 2],
    enqueuedAt: record.timeOf(memory, offset),
    runAt: record.runAtOf(memory, offset),
    attemptsMax: record.attemptsOf(memory, offset),
    tenant: label(Attribute.TENANT),
    key: label(Attribute.KEY),
    ...(expiresAt < 0 ? {} : { expiresAt: memory.f64[expiresAt >>> 3] }),
  };
}

function payload(memory: Memory, end: number, offset: number): unknown {
  return value(memory.u8.slice(end - record.sizeOf(memory, offset), end));
}

/** What stands behind the fixed part of a record that is not a job. */
function text(memory: Memory, offset: number): unknown {
  const from = offset + BODY + 16;
  return value(memory.u8.slice(from, offset + record.bytesOf(memory, offset)));
}

function value(bytes: Uint8Array): unknown {
  const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  if (buffer.length === 0) return undefined;
  const decoded = buffer.toString();
  try {
    return JSON.parse(decoded) as unknown;
  } catch {
    return Buffer.compare(Buffer.from(decoded), buffer) === 0 ? decoded : { base64: buffer.toString('base64') };
  }
}
