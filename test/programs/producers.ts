/**
 * `producers DIR COUNT ROUNDS`: COUNT producers enqueue ROUNDS jobs each, every one awaited, and write a line for each
 * job they were told is durable: for a tracer that wants to see what was flushed before. Once one alone, once all.
 */
import { writeSync } from 'node:fs';
import { open } from 'millrace';

const [dir, count, rounds] = process.argv.slice(2);
const broker = await open(dir!);
const queue = broker.queue<number>('jobs');
await queue.enqueue(0);

async function produce(): Promise<void> {
  for (let i = 0; i < Number(rounds); i++) {
    await queue.enqueue(i);
    writeSync(1, 'durable\n');
  }
}

writeSync(1, 'alone\n');
await produce();
writeSync(1, 'together\n');
await Promise.all(Array.from({ length: Number(count) }, produce));
writeSync(1, 'over\n');
await broker.close();
