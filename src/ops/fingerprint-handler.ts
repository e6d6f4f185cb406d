/** The handler of `millrace fingerprint`: all of a file in five figures. CPU-bound; runs in worker threads. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';

export interface Fingerprint {
  readonly sha256: string;
  readonly bytes: number;
  /** As `wc` counts: line ends, and runs of bytes that are not white space. */
  readonly lines: number;
  readonly words: number;
  readonly gzipBytes: number;
}

export default function fingerprint(path: string): Fingerprint {
  const content = readFileSync(path);
  return {
    sha256: createHash('sha256').update(content).digest('hex'),
    bytes: content.length,
    ...counted(content),
    gzipBytes: gzipSync(content).length,
  };
}

const NEWLINE = 10;
const SPACE = 32;

function counted(content: Uint8Array): { lines: number; words: number } {
  let lines = 0;
  let words = 0;
  let inWord = false;
  for (let at = 0; at < content.length; at++) {
    const byte = content[at]!;
    if (byte === NEWLINE) lines++;
    const isSpace = byte === SPACE || (byte >= 9 && byte <= 13);
    if (!isSpace && !inWord) words++;
    inWord = !isSpace;
  }
  return { lines, words };
}
