/**
 * Where results go: one JSON line `{"line":1,"input":...,"result":...}` each, to a file that a later run goes on with,
 * or to standard output. Main thread. The file is the user's, not the log's, hence plain node:fs and the umask's mode.
 *
 * O1  Only whole lines are appended, by one writer; after a kill only the last line can be torn, and that one is cut.
 * O2  A file that does not look like results is refused before a byte of it changes.
 * O3  `finish` returns when every result is durable: what the broker keeps of them may be forgotten after that.
 */
import * as fs from 'node:fs';
import { dirname, resolve } from 'node:path';
import { crc32 } from 'node:zlib';
import { LineSplitter } from './input.js';
import { tameJson } from './terminal.js';
import { UsageError } from './usage.js';

/** A result as it stands in the file. */
export interface ResultLine {
  readonly line: number;
  readonly input: unknown;
  readonly result: unknown;
}

export interface Output {
  /** Called when a write fails later on. */
  failed: (error: Error) => void;
  /** Lines that have their result already. */
  readonly finished: FinishedLines;
  /** `input` and `result` are JSON text. */
  write(line: number, input: string, result: string): void;
  /** Something to wait for before more is asked for; undefined: go on. */
  full(): Promise<void> | undefined;
  finish(): Promise<void>;
}

/** JSON text of an input that is the same however it was spaced: what inputs are compared by. */
export function canonical(value: unknown): string {
  return JSON.stringify(value) ?? 'null';
}

const PAGE = 4096;

/** Line numbers with a CRC of each one's input: four bytes a line. */
export class FinishedLines {
  count = 0;
  last = 0;
  readonly #pages = new Map<number, Uint32Array>();

  /** False: it is there already. */
  tryAdd(line: number, input: string): boolean {
    const page = Math.floor(line / PAGE);
    let marks = this.#pages.get(page);
    if (marks === undefined) {
      marks = new Uint32Array(PAGE);
      this.#pages.set(page, marks);
    }
    if (marks[line % PAGE] !== 0) return false;
    marks[line % PAGE] = mark(input);
    this.count++;
    this.last = Math.max(this.last, line);
    return true;
  }

  has(line: number): boolean {
    return (this.#pages.get(Math.floor(line / PAGE))?.[line % PAGE] ?? 0) !== 0;
  }

  /** Whether the finished line had this input. */
  agrees(line: number, input: string): boolean {
    return this.#pages.get(Math.floor(line / PAGE))?.[line % PAGE] === mark(input);
  }
}

/** 0 stands for "not there". */
function mark(input: string): number {
  return crc32(input) || 1;
}

const LINE_BYTES_MAX = 64 << 20;
const CHUNK_BYTES = 256 << 10;
const HEAD = '{"line":';

function resultLine(line: number, input: string, result: string): string {
  return `${HEAD}${line},"input":${input},"result":${result}}\n`;
}

export class ResultFile implements Output {
  failed: (error: Error) => void = rethrown;
  readonly finished = new FinishedLines();
  readonly #path: string;
  readonly #fd: number;
  readonly #plain: boolean;
  #waiting: string[] = [];
  #scheduled = false;
  #size = 0;
  #error: Error | undefined;
  #closed = false;

  /** `kept` gets every result that is there. */
  constructor(path: string, kept: (found: ResultLine) => void = () => {}) {
    this.#path = path;
    const fresh = !fs.existsSync(path);
    const { O_RDWR, O_CREAT, O_APPEND } = fs.constants;
    this.#fd = fs.openSync(path, O_RDWR | O_CREAT | O_APPEND, 0o666);
    this.#plain = fs.fstatSync(this.#fd).isFile();
    if (!this.#plain) return;
    try {
      this.#read(kept);
    } catch (error) {
      fs.closeSync(this.#fd);
      throw error;
    }
    if (fresh) syncDirectoryOf(path);
  }

  write(line: number, input: string, result: string): void {
    // A run that cannot go on may still hear of results: the directory has them too.
    if (this.#closed) return;
    this.#waiting.push(resultLine(line, input, result));
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(() => {
      try {
        this.#flush();
      } catch (error) {
        this.failed(error as Error);
      }
    });
  }

  full(): undefined {
    return undefined;
  }

  async finish(): Promise<void> {
    try {
      this.#flush();
      if (this.#plain) fs.fsyncSync(this.#fd);
    } finally {
      this.#closed = true;
      fs.closeSync(this.#fd);
    }
  }

  /** One write for whatever came together in this turn of the event loop (O1). */
  #flush(): void {
    this.#scheduled = false;
    if (this.#error !== undefined) throw this.#error;
    if (this.#waiting.length === 0 || this.#closed) return;
    const bytes = Buffer.from(this.#waiting.join(''));
    this.#waiting = [];
    const from = this.#size;
    try {
      for (let done = 0; done < bytes.length; ) done += fs.writeSync(this.#fd, bytes, done, bytes.length - done);
      this.#size += bytes.length;
    } catch (error) {
      this.#error = error as Error;
      // The next run would cut it too.
      if (this.#plain) fs.ftruncateSync(this.#fd, from);
      throw error;
    }
  }

  /** Takes in what an earlier run has written, and cuts a torn last line (O1, O2). */
  #read(kept: (found: ResultLine) => void): void {
    const splitter = new LineSplitter(LINE_BYTES_MAX);
    const chunk = Buffer.allocUnsafe(CHUNK_BYTES);
    for (let at = 0; ; ) {
      const bytes = fs.readSync(this.#fd, chunk, 0, chunk.length, at);
      if (bytes === 0) break;
      at += bytes;
      for (const { line, text, problem } of splitter.take(Buffer.from(chunk.subarray(0, bytes)))) {
        this.#take(line, problem === undefined ? text : '', kept);
      }
    }
    this.#size = splitter.bytes;
    for (const { line, text } of splitter.rest()) {
      if (!this.#isTornFrom(this.#size) && !/^\0+$/.test(text)) this.#refuse(line, 'is not a result of millrace run');
      fs.ftruncateSync(this.#fd, this.#size);
    }
  }

  #take(at: number, text: string, kept: (found: ResultLine) => void): void {
    const found = parsedResult(text);
    if (found === undefined) this.#refuse(at, 'is not a result of millrace run');
    if (!this.finished.tryAdd(found.line, canonical(found.input))) {
      this.#refuse(at, `is a second result for line ${found.line} of the input`);
    }
    kept(found);
  }

  /** Whether what stands at `position` can be the start of a result: the user's own notes must not be cut. */
  #isTornFrom(position: number): boolean {
    const start = Buffer.alloc(HEAD.length);
    const bytes = fs.readSync(this.#fd, start, 0, start.length, position);
    return HEAD.startsWith(start.toString('latin1', 0, bytes));
  }

  #refuse(line: number, why: string): never {
    throw new UsageError(
      `cannot go on with ${this.#path}: its line ${line} ${why}; move the file away, or name another`,
    );
  }
}

function rethrown(error: Error): never {
  throw error;
}

function parsedResult(text: string): ResultLine | undefined {
  if (!text.startsWith(HEAD)) return undefined;
  try {
    const found = JSON.parse(text) as Partial<ResultLine>;
    const isResult = Number.isSafeInteger(found.line) && found.line! > 0 && 'input' in found && 'result' in found;
    return isResult ? (found as ResultLine) : undefined;
  } catch {
    return undefined;
  }
}

function syncDirectoryOf(path: string): void {
  // Windows cannot open a directory to flush it.
  if (process.platform === 'win32') return;
  const fd = fs.openSync(dirname(resolve(path)), 'r');
  try {
    fs.fsyncSync(fd);
  } finally {
    fs.closeSync(fd);
  }
}

/** Results on standard output. Nothing can be read back from there. */
export class ResultStream implements Output {
  failed: (error: Error) => void = rethrown;
  readonly finished = new FinishedLines();
  readonly #stream: NodeJS.WriteStream;
  #waiting: string[] = [];
  #draining: Promise<void> | undefined;

  constructor(stream: NodeJS.WriteStream) {
    this.#stream = stream;
  }

  write(line: number, input: string, result: string): void {
    const text = resultLine(line, input, result);
    this.#waiting.push(this.#stream.isTTY ? `${tameJson(text.slice(0, -1))}\n` : text);
    if (this.#waiting.length === 1) setImmediate(() => this.#flush());
  }

  full(): Promise<void> | undefined {
    return this.#draining;
  }

  async finish(): Promise<void> {
    this.#flush();
    await this.#draining;
  }

  #flush(): void {
    if (this.#waiting.length === 0) return;
    const text = this.#waiting.join('');
    this.#waiting = [];
    if (this.#stream.destroyed || this.#stream.write(text) || this.#draining !== undefined) return;
    this.#draining = new Promise((resolve) => {
      const go = (): void => {
        this.#stream.off('drain', go).off('close', go).off('error', go);
        this.#draining = undefined;
        resolve();
      };
      this.#stream.on('drain', go).on('close', go).on('error', go);
    });
  }
}

/** For results that nobody asked to have written. */
export class Unwritten implements Output {
  failed: (error: Error) => void = rethrown;
  readonly finished = new FinishedLines();

  write(): void {}

  full(): undefined {
    return undefined;
  }

  async finish(): Promise<void> {}
}
