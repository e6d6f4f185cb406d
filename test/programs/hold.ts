/** `hold DIR`: opens a directory and holds it until it is killed, or says why it cannot. */
import { open } from 'millrace';

try {
  const broker = await open(process.argv[2]!);
  await broker.queue('jobs').enqueue(1);
  process.send!('open');
  setInterval(() => {}, 1000);
} catch (error) {
  const { code, pid } = error as { code?: string; pid?: number };
  process.send!({ code, pid });
  process.disconnect();
}
