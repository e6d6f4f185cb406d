/**
 * What ends a command early: SIGINT, SIGTERM, SIGHUP, and a reader of standard output that went away. Main thread.
 * The first one asks for a clean stop, by `signal`; a second one ends the process at once, which loses nothing either.
 */
import { constants } from 'node:os';

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

export class Interrupts {
  readonly signal: AbortSignal;
  /** What the process ends with when it was interrupted, as shells count: 128 and the signal's number. */
  exitCode = 0;
  /** Nobody reads standard output any more. */
  pipeLost = false;
  readonly #stop = new AbortController();
  readonly #onStop: (signal: string) => void;
  readonly #listeners = new Map<string, () => void>();

  /** `onStop` hears of the first signal; not of a lost reader, whom nobody needs to tell. */
  constructor(onStop: (signal: string) => void) {
    this.signal = this.#stop.signal;
    this.#onStop = onStop;
    for (const name of SIGNALS) {
      const listener = (): void => this.#interrupt(name);
      this.#listeners.set(name, listener);
      process.on(name, listener);
    }
    process.stdout.on('error', this.#onPipe);
    // Talk that nobody hears is no reason to stop.
    process.stderr.on('error', ignore);
  }

  end(): void {
    for (const [name, listener] of this.#listeners) process.off(name, listener);
  }

  readonly #onPipe = (error: NodeJS.ErrnoException): void => {
    if (error.code !== 'EPIPE') throw error;
    this.pipeLost = true;
    this.exitCode ||= 128 + constants.signals.SIGPIPE;
    this.#stop.abort();
  };

  #interrupt(name: (typeof SIGNALS)[number]): void {
    const exitCode = 128 + constants.signals[name];
    if (this.#stop.signal.aborted) process.exit(exitCode);
    this.exitCode = exitCode;
    this.#onStop(name);
    this.#stop.abort();
  }
}

function ignore(): void {}
