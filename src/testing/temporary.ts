/** A broker for tests that leaves nothing behind. */
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Broker, type CloseOptions, open } from '../client/broker.js';
import type { BrokerOptions } from '../options.js';

/** Where Linux keeps files in memory. */
const SHARED_MEMORY = '/dev/shm';

/**
 * Opens a broker in a new directory, in memory where the system has such a place; `close` removes it. The queues'
 * durability is 'memory' unless the options say otherwise: the same code, and nothing to wait for.
 */
export async function openTemporary(options: BrokerOptions = {}): Promise<Broker> {
  const dir = mkdtempSync(join(existsSync(SHARED_MEMORY) ? SHARED_MEMORY : tmpdir(), 'millrace-'));
  const remove = (): void => rmSync(dir, { recursive: true, force: true });
  try {
    const broker = await open(dir, { durability: 'memory', ...options });
    const close = broker.close.bind(broker);
    broker.close = async (closeOptions?: CloseOptions) => {
      await close(closeOptions);
      remove();
    };
    return broker;
  } catch (error) {
    remove();
    throw error;
  }
}
