/**
 * Lines out of a stream of bytes, numbered from 1, with bounded memory whatever the stream holds. Main thread; used for
 * standard input, and for the results file of an earlier run.
 *
 * I1  A line ends with "\n" or "\r\n"; bytes behind the last one are a line too, `ended` tells.
 * I2  A line that is too long, or not UTF-8, has its number and a `problem`, and no text: the lines around it are whole.
 * I3  A line never holds on to the chunk it came in: its text is a copy.
 */
import { isUtf8 } from 'node:buffer';
import type { Readable } from 'node:stream';

export interface Line {
  /** 1 is the first. */
  readonly line: number;
  readonly text: string;
  /** Bytes in the stream, with the line's end. */
  readonly bytes: number;
  /** Whether a line end was there. */
  readonly ended: boolean;
  /** Why there is no text. */
  readonly problem?: string;
}

const NEWLINE = 10;
const RETURN = 13;

export class LineSplitter {
  /** Lines given so far. */
  count = 0;
  /** Bytes taken so far. */
  bytes = 0;
  readonly #bytesMax: number;
  #parts: Uint8Array[] = [];
  #held = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /** The lines that end in `chunk`. The iteration must be run to its end before the next chunk. */
  *take(chunk: Uint8Array): Generator<Line> {
    let from = 0;
    for (let at = chunk.indexOf(NEWLINE); at >= 0; at = chunk.indexOf(NEWLINE, from)) {
      yield this.#line(chunk.subarray(from, at), true);
      from = at + 1;
    }
    if (from < chunk.length) this.#hold(chunk.subarray(from));
  }

  /** What stands behind the last line end. */
  *rest(): Generator<Line> {
    if (this.#held > 0) yield this.#line(new Uint8Array(0), false);
  }

  #hold(part: Uint8Array): void {
    // Of a line that is too long only its length is kept.
    if (this.#held + part.length <= this.#bytesMax + 1) this.#parts.push(part);
    else this.#parts.length = 0;
    this.#held += part.length;
  }

  #line(last: Uint8Array, ended: boolean): Line {
    const length = this.#held + last.length;
    const line = ++this.count;
    const bytes = length + (ended ? 1 : 0);
    this.bytes += bytes;
    const parts = this.#parts;
    const held = this.#held;
    this.#parts = [];
    this.#held = 0;
    if (length > this.#bytesMax + 1) return this.#without(line, bytes, ended, this.#tooLong(length));
    const whole = held === 0 ? last : Buffer.concat([...parts, last]);
    const size = ended && whole[length - 1] === RETURN ? length - 1 : length;
    if (size > this.#bytesMax) return this.#without(line, bytes, ended, this.#tooLong(size));
    const view = Buffer.from(whole.buffer, whole.byteOffset, size);
    if (!isUtf8(view)) return this.#without(line, bytes, ended, 'not valid UTF-8');
    return { line, text: view.toString(), bytes, ended };
  }

  #tooLong(bytes: number): string {
    return `${bytes} bytes long, the limit is ${this.#bytesMax}`;
  }

  #without(line: number, bytes: number, ended: boolean, problem: string): Line {
    return { line, text: '', bytes, ended, problem };
  }
}

/** The lines of a stream, until it ends or `signal` aborts. */
export async function* readLines(stream: Readable, splitter: LineSplitter, signal: AbortSignal): AsyncGenerator<Line> {
  const stop = (): void => void stream.destroy();
  signal.addEventListener('abort', stop, { once: true });
  try {
    for await (const chunk of stream as AsyncIterable<Uint8Array>) {
      for (const line of splitter.take(chunk)) {
        if (signal.aborted) return;
        yield line;
      }
    }
    if (!signal.aborted) yield* splitter.rest();
  } catch (error) {
    if (!signal.aborted) throw error;
  } finally {
    signal.removeEventListener('abort', stop);
  }
}
