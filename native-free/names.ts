/**
 * Queue names: an insert-only hash table in shared memory, so that any thread can name a queue synchronously.
 * Called by clients (find or insert) and by recovery (insert under the id the log gave).
 *
 * N1  A bucket holds 0 or a queue id, and never changes once set.
 * N2  A queue's name is written before its id is put into a bucket; the loser of that CAS leaves its id unused.
 */
import { add, compareExchange, load, store } from './atomics.js';
import { NAME_BUCKETS, QUEUES_MAX, QueueWord, type Shared, Word } from './layout.js';

const encoder = new TextEncoder();
const decoder = new TextDecoder();

function hashOf(bytes: Uint8Array): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < bytes.length; i++) hash = Math.imul(hash ^ bytes[i]!, 0x01000193);
  return hash ^ (hash >>> 15);
}

function isNamed(shared: Shared, queue: number, bytes: Uint8Array): boolean {
  const block = queue * QueueWord.WORDS;
  if (shared.queues[block + QueueWord.NAME_BYTES] !== bytes.length) return false;
  const from = shared.queues[block + QueueWord.NAME]!;
  for (let i = 0; i < bytes.length; i++) if (shared.nameBytes[from + i] !== bytes[i]) return false;
  return true;
}

/** The id of the queue called `name`, made if need be; -1 when there is room for no more. `id` is for recovery. */
export function queueNamed(shared: Shared, name: string, id = 0): number {
  const bytes = encoder.encode(name);
  let made = 0;
  for (let bucket = hashOf(bytes) & (NAME_BUCKETS - 1); ; bucket = (bucket + 1) & (NAME_BUCKETS - 1)) {
    let found = load(shared.nameBuckets, bucket);
    if (found === 0) {
      if (made === 0) {
        made = id;
        // Looked at first: calls that are refused must not count, or the count would go round one day.
        if (id === 0 && load(shared.control, Word.QUEUES) >= QUEUES_MAX - 1) return -1;
        if (id === 0) made = add(shared.control, Word.QUEUES, 1) + 1;
        else if (load(shared.control, Word.QUEUES) < id) store(shared.control, Word.QUEUES, id);
        const from = add(shared.control, Word.NAME_BYTES, bytes.length);
        if (made >= QUEUES_MAX || from + bytes.length > shared.nameBytes.length) return -1;
        shared.nameBytes.set(bytes, from);
        shared.queues[made * QueueWord.WORDS + QueueWord.NAME] = from;
        shared.queues[made * QueueWord.WORDS + QueueWord.NAME_BYTES] = bytes.length;
      }
      found = compareExchange(shared.nameBuckets, bucket, 0, made);
      if (found === 0) return made;
    }
    if (isNamed(shared, found, bytes)) return found;
  }
}

/** The name of a queue; '' when the id names none. */
export function nameOf(shared: Shared, queue: number): string {
  const block = queue * QueueWord.WORDS;
  const from = shared.queues[block + QueueWord.NAME]!;
  return decoder.decode(shared.nameBytes.slice(from, from + shared.queues[block + QueueWord.NAME_BYTES]!));
}
