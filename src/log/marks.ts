/**
 * Claim marks: which jobs a thread's handlers were running, written before they start and never flushed. They survive
 * the process, which is what they are for: after a crash, recovery charges it to the jobs that were running. A job that
 * takes the whole process down every time therefore ends dead instead of looping for ever.
 *
 * The file `marks` has one slot an owner: magic, CRC32C of the rest, epoch, count, then (id, attempts and crashes) a job.
 *
 * M1  Each slot has one writer, and a torn one fails its CRC: it charges nobody.
 * M2  A mark counts only if the job is live and has the attempts and crashes that the mark names: anything that ended
 *     the run and reached the log has changed them.
 * M3  Losing marks (a full disk, a power cut) loses a charge, never a job. Nothing waits for them, nothing fails by them.
 */
import { crc32c } from '../../native-free/crc32c.js';
import { OWNERS } from '../../native-free/layout.js';
import { DiskStorage, errnoOf, type Storage, type StorageFile } from './storage.js';

const NAME = 'marks';
const MAGIC = 0x4d726c6d;
const SLOT_BYTES = 8192;
const HEADER_BYTES = 16;
const ENTRY_BYTES = 16;
const ENTRIES_MAX = (SLOT_BYTES - HEADER_BYTES) / ENTRY_BYTES - 1;

/** A run that is about to start. */
export interface Marked {
  readonly id: number;
  readonly attempts: number;
  readonly crashes: number;
}

/** One thread's slot. */
export class ClaimMarks {
  readonly #path: string;
  readonly #owner: number;
  readonly #bytes = new Uint8Array(SLOT_BYTES);
  readonly #view = new DataView(this.#bytes.buffer);
  readonly #running = new Set<Marked>();
  #file: StorageFile | undefined;
  #isOff = false;

  constructor(dir: string, owner: number, epoch: number) {
    this.#path = `${dir}/${NAME}`;
    this.#owner = owner;
    this.#view.setUint32(0, MAGIC, true);
    this.#view.setUint32(8, epoch, true);
  }

  add(run: Marked): void {
    this.#running.add(run);
  }

  /** The run is over; its mark in the file is harmless once its record is in the log (M2). */
  delete(run: Marked): void {
    this.#running.delete(run);
  }

  /** Writes what runs now, before it starts. With more than a slot holds, the latest are written. */
  write(): void {
    if (this.#isOff) return;
    let count = 0;
    let skip = Math.max(0, this.#running.size - ENTRIES_MAX);
    for (const { id, attempts, crashes } of this.#running) {
      if (skip-- > 0) continue;
      const at = HEADER_BYTES + count++ * ENTRY_BYTES;
      this.#view.setFloat64(at, id, true);
      this.#view.setUint32(at + 8, attempts | (crashes << 16), true);
    }
    const end = HEADER_BYTES + count * ENTRY_BYTES;
    this.#view.setUint32(12, count, true);
    this.#view.setUint32(4, crc32c(this.#bytes, 8, end), true);
    try {
      this.#file ??= new DiskStorage().open(this.#path, 'create');
      this.#file.write([this.#bytes.subarray(0, end)], this.#owner * SLOT_BYTES);
    } catch {
      this.#isOff = true;
    }
  }

  close(): void {
    this.#file?.close();
    this.#file = undefined;
    this.#isOff = true;
  }
}

/** Calls `visit` for every run that was marked in this epoch. */
export function readMarks(storage: Storage, dir: string, epoch: number, visit: (run: Marked) => void): void {
  let file: StorageFile;
  try {
    file = storage.open(`${dir}/${NAME}`, 'read');
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return;
    throw error;
  }
  try {
    const bytes = new Uint8Array(SLOT_BYTES);
    const view = new DataView(bytes.buffer);
    const slots = Math.min(OWNERS, Math.ceil(file.size() / SLOT_BYTES));
    for (let owner = 0; owner < slots; owner++) {
      const found = file.read(bytes, owner * SLOT_BYTES);
      const count = view.getUint32(12, true);
      if (found < HEADER_BYTES || view.getUint32(0, true) !== MAGIC || view.getUint32(8, true) !== epoch) continue;
      const end = HEADER_BYTES + count * ENTRY_BYTES;
      if (count > ENTRIES_MAX || end > found || view.getUint32(4, true) !== crc32c(bytes, 8, end)) continue;
      for (let at = HEADER_BYTES; at < end; at += ENTRY_BYTES) {
        const counts = view.getUint32(at + 8, true);
        visit({ id: view.getFloat64(at, true), attempts: counts & 0xffff, crashes: (counts >>> 16) & 0xff });
      }
    }
  } finally {
    file.close();
  }
}

/** After a close in good order nobody was running. */
export function clearMarks(storage: Storage, dir: string): void {
  try {
    storage.remove(`${dir}/${NAME}`);
  } catch (error) {
    if (errnoOf(error) !== 'ENOENT') throw error;
  }
}
