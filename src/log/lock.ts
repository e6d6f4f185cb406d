/**
 * One broker per directory. Called by the opener, on its own thread, before anything in the directory is read.
 *
 * L1  The lock is held by the kernel for as long as the process lives, and by nothing else: there is no time-out that
 *     could hand it over while its holder is stopped, and nothing to clean up after a kill.
 * L2  The `lock` file is for people and for the loser's error message. Whoever reads it decides nothing by it.
 *
 * Linux: an abstract Unix socket named by the directory's device and inode. It is per network namespace: two containers
 * that share a directory but not the network do not see each other's lock. Windows: a named pipe, which works alike.
 * Elsewhere (macOS, BSD): the `lock` file opened with O_EXLOCK.
 */

import { createServer, type Server } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { MillraceError } from '../errors.js';
import { DiskStorage, errnoOf, type Storage, tryLockFile } from './storage.js';

export const LOCK_NAME = 'lock';
const PID_BYTES_MAX = 32;
/** The loser of a race may look before the winner has written its pid. */
const PID_LOOKS = 50;
const PID_LOOK_EVERY_MS = 4;

export interface DirectoryLock {
  release(): Promise<void>;
}

/** Makes the directory if it is missing. Rejects with ERR_MILLRACE_LOCKED (dir, pid) when somebody has it. */
export async function lockDirectory(dir: string, storage: Storage = new DiskStorage()): Promise<DirectoryLock> {
  storage.ensureDirectory(dir);
  const holder = await tryHold(dir, storage);
  if (holder === undefined) throw await inUse(storage, dir);
  try {
    writePid(storage, dir, `${process.pid}\n`);
  } catch (error) {
    await holder();
    throw error;
  }
  return {
    async release() {
      // Emptied first: a pid that no longer holds the directory must not be blamed.
      try {
        writePid(storage, dir, '');
      } finally {
        await holder();
      }
    },
  };
}

/** For tools that change nothing: whether somebody has the directory; while `look` runs nobody can take it. */
export async function whileUnused<Result>(dir: string, look: () => Result): Promise<Result> {
  const storage = new DiskStorage();
  const holder = await tryHold(dir, storage);
  if (holder === undefined) throw await inUse(storage, dir);
  try {
    return look();
  } finally {
    await holder();
  }
}

async function inUse(storage: Storage, dir: string): Promise<MillraceError> {
  const pid = await holderPid(storage, dir);
  const by = pid === undefined ? 'another process' : pid === process.pid ? `this process (${pid})` : `process ${pid}`;
  return new MillraceError('ERR_MILLRACE_LOCKED', `cannot open ${dir}: it is in use by ${by}`, { dir, pid });
}

/** undefined: somebody else has it; otherwise lets go. */
async function tryHold(dir: string, storage: Storage): Promise<(() => Promise<void>) | undefined> {
  const name = `millrace-${storage.identity(dir)}`;
  if (process.platform === 'linux') return await tryListen(`\0${name}`);
  if (process.platform === 'win32') return await tryListen(`\\\\.\\pipe\\${name}`);
  const unlock = tryLockFile(`${dir}/${LOCK_NAME}`);
  return unlock === undefined ? undefined : async () => unlock();
}

async function tryListen(path: string): Promise<(() => Promise<void>) | undefined> {
  const server: Server = createServer((socket) => socket.destroy());
  server.unref();
  return await new Promise((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EADDRINUSE') resolve(undefined);
      else reject(error);
    });
    server.listen({ path, exclusive: true }, () => {
      resolve(() => new Promise((closed) => server.close(() => closed())));
    });
  });
}

function writePid(storage: Storage, dir: string, text: string): void {
  const file = storage.open(`${dir}/${LOCK_NAME}`, 'create');
  try {
    file.truncate(0);
    if (text !== '') file.write([new TextEncoder().encode(text)], 0);
  } finally {
    file.close();
  }
}

async function holderPid(storage: Storage, dir: string): Promise<number | undefined> {
  for (let look = 0; look < PID_LOOKS; look++) {
    const pid = readPid(storage, dir);
    if (pid !== undefined && isAlive(pid)) return pid;
    await delay(PID_LOOK_EVERY_MS);
  }
  return undefined;
}

function readPid(storage: Storage, dir: string): number | undefined {
  try {
    const file = storage.open(`${dir}/${LOCK_NAME}`, 'read');
    try {
      const bytes = new Uint8Array(PID_BYTES_MAX);
      const text = new TextDecoder().decode(bytes.subarray(0, file.read(bytes, 0)));
      return /^\d+\n$/.test(text) ? Number(text) : undefined;
    } finally {
      file.close();
    }
  } catch {
    return undefined;
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return errnoOf(error) === 'EPERM';
  }
}
