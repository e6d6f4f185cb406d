/** `levels DIR`: accepts 100 jobs of each durability and then waits to be killed. */
import { open } from 'millrace';

const broker = await open(process.argv[2]!);
let last = 0;
for (const durability of ['fsync', 'os', 'memory'] as const) {
  const queue = broker.queue<number>(durability, { durability });
  const jobs = await queue.enqueueMany(Array.from({ length: 100 }, (_, i) => i));
  last = jobs.at(-1)!.id;
}
process.send!({ id: last });
setInterval(() => {}, 1000);
