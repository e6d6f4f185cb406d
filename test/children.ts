/**
 * Programs of their own for tests (test/programs, compiled with everything else): started, listened to, killed, and
 * never left behind.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { onTestFinished } from 'vitest';

const GIVE_UP_MS = 30_000;

export function programPath(name: string): string {
  return fileURLToPath(new URL(`../dist/test/programs/${name}.js`, import.meta.url));
}

export interface ChildOptions {
  /** In front of node: a tracer. */
  readonly under?: readonly string[];
  readonly nodeOptions?: readonly string[];
}

export class Child {
  readonly process: ChildProcess;
  /** Exit code, or signal. */
  readonly ended: Promise<number | string>;
  stdout = '';
  stderr = '';
  readonly #messages: unknown[] = [];
  #wake: (() => void) | undefined;
  #gone = false;

  constructor(name: string, args: readonly string[], options: ChildOptions = {}) {
    const command = [
      ...(options.under ?? []),
      process.execPath,
      ...(options.nodeOptions ?? []),
      programPath(name),
      ...args,
    ];
    this.process = spawn(command[0]!, command.slice(1), { stdio: ['ignore', 'pipe', 'pipe', 'ipc'] });
    this.process.stdout!.on('data', (chunk: Buffer) => {
      this.stdout += chunk.toString();
    });
    this.process.stderr!.on('data', (chunk: Buffer) => {
      this.stderr += chunk.toString();
    });
    this.process.on('message', (message) => {
      this.#messages.push(message);
      this.#wake?.();
    });
    // Not 'exit': the last messages and lines may come after it.
    this.ended = once(this.process, 'close').then(([code, signal]) => {
      this.#gone = true;
      this.#wake?.();
      return (signal ?? code) as number | string;
    });
    onTestFinished(async () => {
      this.process.kill('SIGKILL');
      await this.ended;
    });
  }

  /** The next message that is `wanted`; those before it are dropped. */
  async message<T>(wanted: (message: T) => boolean = () => true): Promise<T> {
    const end = performance.now() + GIVE_UP_MS;
    for (;;) {
      while (this.#messages.length > 0) {
        const message = this.#messages.shift() as T;
        if (wanted(message)) return message;
      }
      if (this.#gone) throw new Error(`the program ended without the message\n${this.stdout}\n${this.stderr}`);
      const left = end - performance.now();
      if (left <= 0) throw new Error(`the program sent no such message\n${this.stdout}\n${this.stderr}`);
      let timer: NodeJS.Timeout | undefined;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
        timer = setTimeout(resolve, left);
      });
      clearTimeout(timer);
    }
  }

  /** Ends by itself; a failure where it would go on for ever. */
  async end(): Promise<number | string> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(
        () => reject(new Error(`the program did not end\n${this.stdout}\n${this.stderr}`)),
        GIVE_UP_MS,
      );
    });
    try {
      return await Promise.race([this.ended, late]);
    } finally {
      clearTimeout(timer);
    }
  }

  async kill(): Promise<void> {
    this.process.kill('SIGKILL');
    await this.ended;
  }
}
