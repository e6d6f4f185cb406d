/** Replays one seed of the simulation and prints what happens: `npm run sim -- --seed N`. */
import { parseArgs } from 'node:util';
import { simulate } from './simulation.js';

const { values } = parseArgs({ options: { seed: { type: 'string' } } });
const seed = Number(values.seed);
if (values.seed === undefined || !Number.isSafeInteger(seed)) {
  console.error('usage: npm run sim -- --seed N');
  process.exit(2);
}
try {
  const report = await simulate(seed, (line) => console.log(line));
  console.log(JSON.stringify(report));
} catch (error) {
  console.error((error as Error).stack);
  console.error(((error as Error).cause as Error).stack);
  process.exit(1);
}
