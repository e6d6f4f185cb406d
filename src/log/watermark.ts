/**
 * The `watermark` file: how far the log is known to be durable, for the one batch that no later batch can vouch for
 * (FORMAT.md, "Watermark"). Written lazily by the writer, mostly without a flush; read by recovery.
 *
 * 1. Two slots, each in a sector of its own, written in turn: a torn write leaves the other.
 * 2. A slot that is damaged, or of another directory, is ignored: the file may only ever make recovery stricter.
 */
import { crc32cWords } from '../../native-free/crc32c.js';
import { type Memory, memoryOver } from '../../native-free/record.js';
import { errnoOf, type Storage, type StorageFile } from './storage.js';

export const WATERMARK_NAME = 'watermark';
export const WATERMARK_BYTES = 1024;
const SLOT_BYTES = 512;
const USED_WORDS = 8;
/** "mlrW" */
const MAGIC = 0x57726c6d;

const WatermarkAt = { MAGIC: 0, CRC: 4, SALT: 8, RESERVED: 12, POSITION: 16, BATCH: 24 } as const;

export interface Watermark {
  /** Everything below was durable. */
  readonly position: number;
  /** The last batch that ends at or below `position`. */
  readonly batchNumber: number;
  readonly salt: number;
}

/** The highest intact watermark there is. */
export function readWatermark(storage: Storage, path: string): Watermark | undefined {
  let file: StorageFile;
  try {
    file = storage.open(path, 'read');
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
  const memory = memoryOver(new ArrayBuffer(WATERMARK_BYTES));
  try {
    file.read(memory.u8, 0);
  } finally {
    file.close();
  }
  let best: Watermark | undefined;
  for (let offset = 0; offset < WATERMARK_BYTES; offset += SLOT_BYTES) {
    const word = offset >>> 2;
    if (memory.i32[word] !== MAGIC || memory.i32[word + 1] !== checksum(memory, word)) continue;
    const position = memory.f64[(offset + WatermarkAt.POSITION) >>> 3];
    if (best !== undefined && best.position >= position) continue;
    best = {
      position,
      batchNumber: memory.f64[(offset + WatermarkAt.BATCH) >>> 3],
      salt: memory.i32[(offset + WatermarkAt.SALT) >>> 2] >>> 0,
    };
  }
  return best;
}

/** The writer's end of the file. */
export class WatermarkFile {
  readonly #file: StorageFile;
  readonly #salt: number;
  readonly #memory = memoryOver(new ArrayBuffer(SLOT_BYTES));
  readonly #buffers = [this.#memory.u8];
  #turn = 0;

  constructor(storage: Storage, path: string, salt: number) {
    this.#salt = salt;
    this.#file = storage.open(path, 'create');
  }

  write(position: number, batchNumber: number): void {
    const { i32, f64 } = this.#memory;
    i32[WatermarkAt.MAGIC >>> 2] = MAGIC;
    i32[WatermarkAt.SALT >>> 2] = this.#salt;
    f64[WatermarkAt.POSITION >>> 3] = position;
    f64[WatermarkAt.BATCH >>> 3] = batchNumber;
    i32[WatermarkAt.CRC >>> 2] = checksum(this.#memory, 0);
    // No room, or for a part of it only: at worst a damaged slot, which is ignored. The log does not need it.
    try {
      this.#file.write(this.#buffers, this.#turn * SLOT_BYTES);
    } catch (error) {
      if (errnoOf(error) !== 'ENOSPC') throw error;
    }
    this.#turn ^= 1;
  }

  sync(): void {
    this.#file.sync();
  }

  close(): void {
    this.#file.close();
  }
}

function checksum(memory: Memory, word: number): number {
  return crc32cWords(memory.i32, word + 2, word + USED_WORDS) | 0;
}
