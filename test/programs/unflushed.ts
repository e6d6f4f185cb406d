/** `unflushed DIR`: three jobs that are flushed, then one batch that is written and not flushed; waits to be killed. */
import { open } from 'millrace';

const broker = await open(process.argv[2]!);
await broker.queue<string>('jobs').enqueueMany(['a', 'b', 'c']);
await broker.queue<string>('jobs').enqueue('d', { durability: 'os' });
process.send!('written');
setInterval(() => {}, 1000);
