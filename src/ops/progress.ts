/**
 * What a command says on standard error: messages, and under them, on a terminal alone, one line that shows how far it
 * is. Main thread.
 *
 * P1  Whatever is said while the line stands goes above it: the line is wiped first and drawn again.
 * P2  Drawing costs nothing the work would notice: at most ten times a second, on a timer that keeps nothing open.
 */
import { count, duration, figures, oneLine, paint } from './terminal.js';

/** How far a run is. */
export interface Standing {
  /** Jobs that ended in this run, well or not. */
  readonly ended: number;
  /** Of these the failed ones. */
  readonly failed: number;
  /** Jobs that are done since an earlier run. */
  readonly before: number;
  /** All there are, done ones of earlier runs with them; undefined when nobody knows yet. */
  readonly total: number | undefined;
  /** True: `total` is an estimate. */
  readonly estimated: boolean;
}

const EVERY_MS = 100;
/** The rate is an average over about this long, at first over all the time there was: it neither jumps nor sticks. */
const RATE_OVER_MS = 5000;
const BAR_COLUMNS = 24;
const WIPE = '\r\u001b[K';

export class Progress {
  readonly #stream: NodeJS.WriteStream;
  readonly #what: string;
  readonly #draws: boolean;
  #standing: (() => Standing) | undefined;
  #timer: NodeJS.Timeout | undefined;
  #drawn = false;
  #atMs = 0;
  #ended = 0;
  #rate = 0;
  #startedMs = 0;

  /** `what` the jobs are, in the plural. */
  constructor(stream: NodeJS.WriteStream, what: string) {
    this.#stream = stream;
    this.#what = what;
    this.#draws = stream.isTTY === true && process.env.TERM !== 'dumb';
  }

  /** Starts to show how far `standing` says the run is. */
  show(standing: () => Standing): void {
    if (!this.#draws) return;
    this.#standing = standing;
    this.#startedMs = performance.now();
    this.#atMs = this.#startedMs;
    this.#ended = standing().ended;
    this.#timer = setInterval(() => this.#draw(), EVERY_MS);
    this.#timer.unref();
    this.#draw();
  }

  /** Takes the line away for good. */
  hide(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
    this.#standing = undefined;
    this.#wipe();
  }

  /** A message in one line (P1). */
  say(message: string): void {
    this.#wipe();
    this.#stream.write(`millrace: ${oneLine(message)}\n`);
    if (this.#standing !== undefined) this.#draw();
  }

  /** What became of a job that failed. */
  complain(about: string, reason: string): void {
    this.#wipe();
    this.#stream.write(`${paint(this.#stream, 'red', `${oneLine(about)}:`)} ${oneLine(reason)}\n`);
  }

  #wipe(): void {
    if (!this.#drawn) return;
    this.#stream.write(WIPE);
    this.#drawn = false;
  }

  #draw(): void {
    const standing = this.#standing?.();
    if (standing === undefined) return;
    this.#measure(standing.ended);
    const columns = this.#stream.columns || 80;
    this.#stream.write(`${WIPE}${this.#line(standing, columns - 1)}`);
    this.#drawn = true;
  }

  #measure(ended: number): void {
    const nowMs = performance.now();
    const passedMs = nowMs - this.#atMs;
    if (passedMs < EVERY_MS / 2) return;
    const rate = ((ended - this.#ended) / passedMs) * 1000;
    const overMs = Math.min(RATE_OVER_MS, nowMs - this.#startedMs);
    this.#rate += (passedMs / Math.max(overMs, passedMs)) * (rate - this.#rate);
    this.#atMs = nowMs;
    this.#ended = ended;
  }

  /** The parts that fit, the most important first. */
  #line(standing: Standing, columns: number): string {
    const { ended, failed, before, total, estimated } = standing;
    const so = before + ended;
    const parts: { readonly text: string; readonly style?: 'dim' | 'red' | 'cyan' }[] = [];
    const of = total === undefined ? '' : ` of ${estimated ? 'about ' : ''}${count(total)}`;
    if (total !== undefined && total > 0) {
      const part = Math.min(1, so / total);
      parts.push({ text: bar(part), style: 'cyan' }, { text: `${String(Math.floor(part * 100)).padStart(3)}%` });
    }
    parts.push({ text: `${count(so)}${of} ${this.#what}` });
    if (failed > 0) parts.push({ text: `${count(failed)} failed`, style: 'red' });
    if (this.#rate > 0) {
      parts.push({ text: `${figures(this.#rate)}/s`, style: 'dim' });
      if (total !== undefined) {
        parts.push({ text: `${duration((Math.max(0, total - so) / this.#rate) * 1000)} left`, style: 'dim' });
      }
    }
    let line = '';
    let used = 0;
    for (const { text, style } of parts) {
      if (used + text.length + 2 > columns) continue;
      line += `${used === 0 ? '' : '  '}${style === undefined ? text : paint(this.#stream, style, text)}`;
      used += text.length + 2;
    }
    return line;
  }
}

const EIGHTHS = ['', '\u258f', '\u258e', '\u258d', '\u258c', '\u258b', '\u258a', '\u2589'] as const;

/** A bar that moves by eighths of a column. */
function bar(part: number): string {
  const eighths = Math.round(part * BAR_COLUMNS * 8);
  const full = '\u2588'.repeat(Math.floor(eighths / 8)) + EIGHTHS[eighths % 8]!;
  return full.padEnd(BAR_COLUMNS, '\u2591');
}
