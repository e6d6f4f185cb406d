/**
 * The last step of every enqueue: the finished records in the port's encoder go into the ring under one reservation, now
 * or when there is room, and whoever waits is told when they are durable.
 */
import { reservationSlotsMax } from '../../native-free/layout.js';
import { SLOT_BYTES } from '../../native-free/record.js';
import { MillraceError } from '../errors.js';
import type { Port, RoomWaiter } from './port.js';

/** Resolves with what `accepted` made of the records' place (`port.firstId`, `port.end`), when they are durable. */
export function submit<Accepted>(port: Port, jobs: number, accepted: () => Accepted): Promise<Accepted> {
  port.wantDurable();
  if (port.crowded || !port.trySubmitJobs(jobs)) return submitLater(port, jobs, accepted);
  const promise = new Promise<Accepted>(port.executor as never);
  port.awaitDurable(port.end, port.resolve, accepted());
  return promise;
}

/** Waits for room with a copy of what is in the encoder, then for durability. */
function submitLater<Accepted>(port: Port, jobs: number, accepted: () => Accepted): Promise<Accepted> {
  const { encoder } = port;
  const bytes = encoder.memory.u8.slice(0, encoder.bytes);
  return new Promise<Accepted>((resolve, reject) => {
    const waiter: RoomWaiter = {
      slots: bytes.length / SLOT_BYTES,
      jobs,
      attempt: () => {
        encoder.clear();
        encoder.appendCopies(bytes);
        port.wantDurable();
        if (!port.trySubmitJobs(jobs)) return false;
        port.awaitDurable(port.end, resolve as (outcome: unknown) => void, accepted());
        return true;
      },
      reject,
    };
    port.awaitRoom(waiter);
  });
}

/** Refuses records that can never be under one reservation. */
export function checkReservation(port: Port, attempted: string, jobs: number): void {
  const { encoder } = port;
  const slotsMax = reservationSlotsMax(port.shared.sizes);
  if (encoder.slots <= slotsMax) return;
  throw new MillraceError(
    'ERR_MILLRACE_PAYLOAD_TOO_LARGE',
    `cannot ${attempted} ${jobs} jobs at once: together they take ${encoder.slots} slots of the ring, the limit is ${slotsMax}`,
    { bytes: encoder.bytes, limit: slotsMax * SLOT_BYTES },
  );
}
