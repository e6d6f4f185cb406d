/**
 * One run from its first input to its last result: what `run` and `fingerprint` have in common. Main thread.
 *
 * R1  An input whose result is in the output is not asked for again, and must be the same input as then.
 * R2  The output is durable before the directory that could give its results again is removed.
 * R3  However it ends, it ends in order: inputs, handlers, results, output, broker.
 */
import type { BrokerStats } from '../index.js';
import { DurableMap, differs, type Input, type MapOptions } from './durable-map.js';
import type { Interrupts } from './interrupts.js';
import { canonical, type Output } from './output.js';
import type { Place } from './place.js';
import type { Progress, Standing } from './progress.js';
import { UsageError } from './usage.js';

/** An input, or why there is none. */
export type Offered = Input & { readonly problem?: string };

export interface Session {
  readonly place: Place;
  readonly options: Omit<MapOptions, 'dir' | 'keeps'>;
  /** Called when the directory is ours: two runs of one command must not meet in its results. */
  output(): Output;
  readonly inputs: AsyncIterable<Offered>;
  /** Of the inputs that have been offered so far, and how many there are in all, as far as is known. */
  total(): { readonly total: number | undefined; readonly estimated: boolean };
  /** What a failed input is called. */
  name(input: Input): string;
  done?(input: Input, result: unknown): void;
  readonly interrupts: Interrupts;
  readonly progress: Progress;
}

export interface Ending {
  /** Jobs that ended in this run, without those whose result was there before. */
  readonly ended: number;
  readonly failed: number;
  readonly before: number;
  readonly elapsedMs: number;
  readonly interrupted: boolean;
  readonly stats: BrokerStats;
}

export async function carryOut(session: Session): Promise<Ending> {
  const { place, interrupts, progress } = session;
  const { map, output } = await begun(session);
  let before = 0;
  const standing = (): Standing => ({
    ended: Math.max(0, map.ended - map.found),
    failed: map.failed,
    before: before + map.found,
    ...session.total(),
  });
  const startedMs = performance.now();
  progress.show(standing);
  try {
    try {
      await untilOver(feed(), map, interrupts.signal);
    } finally {
      // Whatever came is worth keeping, also when the run cannot go on.
      await output.finish();
    }
    const stats = map.broker.stats();
    await map.close();
    const interrupted = interrupts.signal.aborted;
    if (!interrupted) place.finished();
    return { ...standing(), elapsedMs: performance.now() - startedMs, interrupted, stats };
  } finally {
    progress.hide();
    await map.close();
  }

  async function feed(): Promise<void> {
    let last = 0;
    for await (const input of session.inputs) {
      if (interrupts.signal.aborted) return;
      last = input.number;
      if (input.problem !== undefined) {
        map.refuse(input, input.problem);
      } else if (output.finished.has(input.number)) {
        if (!output.finished.agrees(input.number, canonical(input.value))) throw differs(input.number, 'the output');
        before++;
      } else {
        await map.push(input);
        await output.full();
      }
    }
    if (interrupts.signal.aborted) return;
    await map.idle();
    if (output.finished.last > last && !interrupts.signal.aborted) {
      throw new UsageError(
        `the output has a result for line ${output.finished.last}, the input ended with line ${last}: not the same input`,
      );
    }
  }
}

/** The map and the output, or neither. */
async function begun(session: Session): Promise<{ map: DurableMap; output: Output }> {
  const { place, options, progress } = session;
  let map: DurableMap | undefined;
  try {
    map = await DurableMap.open(
      { ...options, dir: place.dir, keeps: place.keeps },
      {
        done: (input, result) => {
          output.write(input.number, input.json, resultJson(result));
          session.done?.(input, result);
        },
        failed: (input, reason) => progress.complain(session.name(input), reason),
      },
    );
    const output = session.output();
    output.failed = map.abort;
    return { map, output };
  } catch (error) {
    await map?.close();
    place.unused();
    throw error;
  }
}

/** Until everything is fed and has ended, or has been stopped. */
async function untilOver(fed: Promise<void>, map: DurableMap, signal: AbortSignal): Promise<void> {
  const stopped = new Promise<void>((resolve) => {
    if (signal.aborted) resolve();
    signal.addEventListener('abort', () => resolve(), { once: true });
  });
  await Promise.race([fed, stopped]);
  if (!signal.aborted) return;
  fed.catch(() => {});
  await map.stop();
  await fed;
}

/** No result is null; bytes are base64. */
function resultJson(result: unknown): string {
  if (result instanceof Uint8Array) return JSON.stringify(Buffer.from(result).toString('base64'));
  return JSON.stringify(result) ?? 'null';
}

/** For messages: how to go on after a stop. */
export function farewell(place: Place): string {
  return place.keeps ? 'the same command goes on from there' : `nothing was kept, as neither --dir nor --out was given`;
}
