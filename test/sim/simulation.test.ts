/**
 * The simulation over many seeds. MILLRACE_SEED says where they begin, MILLRACE_SIMULATIONS how many there are. Every
 * tenth is run again and has to do the same. `npm run sim -- --seed N` shows what a seed does.
 */
import { expect, it } from 'vitest';
import { FAULTS, type FaultKind, simulate } from './simulation.js';

const FIRST = Number(process.env.MILLRACE_SEED ?? 1);
const COUNT = Number(process.env.MILLRACE_SIMULATIONS ?? 2000);

it(`loses nothing and comes to its end, seeds ${FIRST} to ${FIRST + COUNT - 1}`, {
  timeout: COUNT * 1000,
}, async () => {
  const sum = { steps: 0, lives: 0, accepted: 0, leases: 0, done: 0, dead: 0, cancelled: 0 };
  const faults = Object.fromEntries(FAULTS.map((kind) => [kind, 0])) as Record<FaultKind, number>;
  let compared = 0;
  for (let seed = FIRST; seed < FIRST + COUNT; seed++) {
    const report = await simulate(seed);
    for (const key of Object.keys(sum) as (keyof typeof sum)[]) sum[key] += report[key];
    for (const kind of FAULTS) faults[kind] += report.faults[kind];
    if (seed % 10 !== 0) continue;
    expect((await simulate(seed)).hash, `seed ${seed} does the same again`).toBe(report.hash);
    compared++;
  }
  const told = (counts: Record<string, number>): string =>
    Object.entries(counts)
      .map(([what, count]) => `${what} ${count}`)
      .join(', ');
  console.log(
    `simulation: seeds from ${FIRST}, runs ${COUNT}, ${told(sum)}; faults: ${told(faults)}; ` +
      `lost 0 of ${sum.accepted}, stalled 0 of ${COUNT}, other traces 0 of ${compared}`,
  );
  for (const kind of FAULTS)
    expect(faults[kind], `there were faults of kind ${kind}`).toBeGreaterThan(COUNT < 100 ? -1 : 0);
});
