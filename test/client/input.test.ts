/** What is refused at the door, with which error, and that the broker goes on working afterwards. */
import { type Broker, type ErrorCode, MillraceError, open } from 'millrace';
import { expect, it } from 'vitest';
import { failureOf, opened, temporaryDirectory } from '../brokers.js';

/** Passes what types would refuse. */
const wrong = (value: unknown): never => value as never;

/** Something that has no text form: `String(it)` throws. */
const unspeakable = Object.create(null) as object;

async function refused(code: ErrorCode, act: () => unknown): Promise<MillraceError> {
  const error = await failureOf(act);
  expect(error).toBeInstanceOf(MillraceError);
  expect({ code: error.code, message: error.message }).toEqual({ code, message: expect.stringMatching(/^cannot /) });
  return error;
}

/** A job goes round. */
async function works(broker: Broker, name = 'after'): Promise<void> {
  const queue = broker.queue<string, string>(name);
  const job = await queue.enqueue('still');
  const [lease] = await queue.claim();
  expect(lease).toMatchObject({ id: job.id, payload: 'still' });
  expect(await lease!.ackDurably('here')).toBe(true);
  expect(await job.result()).toBe('here');
}

function nested(levels: number): unknown {
  let value: unknown = 1;
  for (let i = 0; i < levels; i++) value = [value];
  return value;
}

function cyclic(): unknown {
  const value: Record<string, unknown> = {};
  value.self = { again: value };
  return value;
}

const UNSERIALISABLE: [string, () => unknown][] = [
  ['undefined', () => undefined],
  ['NaN', () => Number.NaN],
  ['an infinity in an array', () => [1, Number.POSITIVE_INFINITY]],
  ['a BigInt', () => ({ id: 1n })],
  ['a function', () => () => 1],
  ['a method', () => ({ run() {} })],
  ['a symbol', () => Symbol('s')],
  ['a cycle', cyclic],
  ['100,000 levels', () => nested(100_000)],
  ['half a surrogate pair', () => 'a\ud800'],
  ['half a surrogate pair, deep', () => ({ a: [{ b: '\udc00' }] })],
  ['undefined in an array', () => [undefined]],
  ['a hole', () => new Array(3)],
  ['a Map', () => new Map([[1, 2]])],
  ['a Set', () => ({ set: new Set() })],
  ['bytes', () => new Uint8Array(3)],
  ['a getter that throws', () => ({ get a() { throw new Error('no'); } })], // biome-ignore format: one thing a line
  ['a toJSON that throws', () => ({ toJSON() { throw new Error('no'); } })], // biome-ignore format: one thing a line
  ['a toJSON that gives nothing', () => ({ toJSON() {} })],
  ['a revoked proxy', () => {
    const { proxy, revoke } = Proxy.revocable({}, {});
    revoke();
    return proxy;
  }], // biome-ignore format: one thing a line
];

for (const [what, make] of UNSERIALISABLE) {
  it(`refuses ${what} as a payload by every way in, and as a result`, async () => {
    const broker = await opened();
    const queue = broker.queue<unknown, unknown>('jobs');
    const code = 'ERR_MILLRACE_PAYLOAD_INVALID';
    await refused(code, () => queue.enqueue(make()));
    await refused(code, () => queue.enqueueMany(['fine', make(), 'fine']));
    await refused(code, () => queue.tryEnqueue(make()));
    await refused(code, () => queue.run(make()));
    await refused(code, () => queue.enqueue(make(), { key: 'k' }));
    expect(queue.counts()).toMatchObject({ ready: 0, delayed: 0, leased: 0 });
    if (what !== 'undefined' && what !== 'bytes') {
      await queue.enqueue('job');
      const [lease] = await queue.claim();
      await refused(code, () => lease!.ack(make()));
      expect(lease!.ack('a result that can be stored')).toBe(true);
    }
    await works(broker);
  });
}

it('keeps what JSON keeps, __proto__ and odd strings included', async () => {
  const broker = await opened();
  const queue = broker.queue<unknown>('jobs');
  const payloads = [
    null,
    false,
    0,
    -1.5e300,
    '',
    'e\u0301 \u{1f4a9} \u2028 \0 \u202e',
    [],
    {},
    { a: { b: [{ c: null }] } },
    JSON.parse('{"__proto__": {"polluted": true}, "constructor": 1}'),
    nested(1000),
  ];
  const jobs = await queue.enqueueMany(payloads.map((payload) => ({ payload })));
  const leases = await queue.claim({ max: payloads.length });
  expect(leases.map((lease) => lease.id)).toEqual(jobs.map((job) => job.id));
  expect(JSON.stringify(leases.map((lease) => lease.payload))).toBe(JSON.stringify(payloads));
  expect(Object.hasOwn(leases[9]!.payload as object, '__proto__')).toBe(true);
  expect(({} as { polluted?: boolean }).polluted).toBeUndefined();
});

it('takes payloads up to the limit and not a byte more', async () => {
  const limit = 70_000;
  const broker = await opened({ payloadBytesMax: limit });
  const bytes = broker.queue<Uint8Array, Uint8Array>('bytes', { codec: 'bytes' });
  const text = broker.queue<string, string>('text');
  for (const size of [limit - 1, limit]) {
    await bytes.enqueue(new Uint8Array(size).fill(7));
    const [lease] = await bytes.claim();
    expect(lease!.payload).toEqual(new Uint8Array(size).fill(7));
    lease!.ack();
    // Two quotes, and two bytes a letter.
    await text.enqueue(`${'é'.repeat((size - 2) >> 1)}${size % 2 === 1 ? 'e' : ''}`);
    const [other] = await text.claim();
    expect(Buffer.byteLength(other!.payload)).toBe(size - 2);
    other!.ack();
  }
  for (const act of [
    () => bytes.enqueue(new Uint8Array(limit + 1)),
    () => bytes.tryEnqueue(new Uint8Array(limit + 1)),
    () => bytes.enqueueMany([new Uint8Array(1), new Uint8Array(limit + 1)]),
    () => text.enqueue('x'.repeat(limit - 1)),
    () => text.enqueue('é'.repeat(limit / 2)),
  ]) {
    const error = await refused('ERR_MILLRACE_PAYLOAD_TOO_LARGE', act);
    expect(error.message).toMatch(/^cannot enqueue: payload is 7000\d bytes, the limit is 70000$/);
    expect(error).toMatchObject({ limit, bytes: expect.any(Number) });
  }
  expect(bytes.counts().ready + text.counts().ready).toBe(0);
  await works(broker);
});

it('takes results up to the limit and not a byte more, and keeps the lease of one it refuses', async () => {
  const limit = 1000;
  const broker = await opened({ payloadBytesMax: limit });
  const queue = broker.queue<number, string>('jobs');
  for (const size of [limit - 1, limit]) {
    const job = await queue.enqueue(1);
    const [lease] = await queue.claim();
    expect(lease!.ack('x'.repeat(size - 2))).toBe(true);
    expect(await job.result()).toHaveLength(size - 2);
  }
  const job = await queue.enqueue(1);
  const [lease] = await queue.claim();
  await refused('ERR_MILLRACE_PAYLOAD_TOO_LARGE', () => lease!.ack('x'.repeat(limit - 1)));
  expect(lease!.held).toBe(true);
  expect(lease!.ack('short')).toBe(true);
  expect(await job.result()).toBe('short');
});

it('takes payloads of 0 bytes up, around the size of a slot, by the default limit', async () => {
  const broker = await opened();
  const queue = broker.queue<Uint8Array>('jobs', { codec: 'bytes' });
  const sizes = [0, 1, 7, 8, 23, 24, 25, 31, 32, 33, 55, 56, 57, 95, 96, 97, 1000, 65_535, 65_536, 1 << 20];
  for (const size of sizes) {
    const payload = Uint8Array.from({ length: size }, (_, i) => (i * 31 + size) & 0xff);
    await queue.enqueue(payload);
    const [lease] = await queue.claim();
    expect(Buffer.compare(lease!.payload, payload)).toBe(0);
    lease!.ack();
  }
  await refused('ERR_MILLRACE_PAYLOAD_TOO_LARGE', () => queue.enqueue(new Uint8Array((1 << 20) + 1)));
});

it('refuses more jobs at once than the ring can take under one reservation, and takes as many as fit', async () => {
  const broker = await opened({ ringSlots: 256, payloadBytesMax: 1000 });
  const queue = broker.queue<number>('jobs');
  await queue.enqueue(0);
  // Half of the ring, two slots a job.
  await refused('ERR_MILLRACE_PAYLOAD_TOO_LARGE', () => queue.enqueueMany(new Array<number>(65).fill(1)));
  expect(await queue.enqueueMany(new Array<number>(64).fill(1))).toHaveLength(64);
  expect(await queue.enqueueMany([])).toEqual([]);
  await works(broker);
});

it('refuses queue names that are not text of 1 to 255 bytes without control characters', async () => {
  const broker = await opened();
  const names: unknown[] = [
    '',
    'a\0b',
    'x'.repeat(300),
    'x'.repeat(256),
    'é'.repeat(128),
    'line\nbreak',
    '\u007f',
    'half \ud800',
    undefined,
    null,
    7,
    {},
    [],
    Symbol('s'),
    unspeakable,
  ];
  for (const name of names) await refused('ERR_MILLRACE_NAME_INVALID', () => broker.queue(wrong(name)));
  expect(broker.queues()).toEqual([]);
  await works(broker);
});

it('takes any other name as plain data: never a path, never a prototype', async () => {
  const dir = temporaryDirectory();
  const names = [
    'x',
    'x'.repeat(255),
    'é'.repeat(127),
    '__proto__',
    'constructor',
    'toString',
    'hasOwnProperty',
    '../../etc/passwd',
    '/',
    '.',
    'a b',
    'admin',
    'аdmin',
    '\u{1f4a9}',
    '\u202egnp',
  ];
  const broker = await opened({}, dir);
  for (const name of names) {
    const queue = broker.queue<string>(name);
    expect(queue.name).toBe(name);
    expect(broker.queue(name)).toBe(queue);
    await queue.enqueue(name);
  }
  for (const name of names) expect(broker.queue(name).counts()).toMatchObject({ ready: 1 });
  await broker.close();
  const again = await opened({}, dir);
  expect(again.queues().sort()).toEqual([...names].sort());
  for (const name of names) {
    const [lease] = await again.queue<string>(name).claim();
    expect(lease!.payload).toBe(name);
  }
});

const BAD_NUMBERS: unknown[] = [-1, Number.NaN, Number.POSITIVE_INFINITY, '1', null, {}, [], true, 1n, unspeakable];

it('refuses enqueue options that are wrong, with the option’s name', async () => {
  const broker = await opened();
  const queue = broker.queue<number>('jobs');
  const bad: Record<string, unknown[]> = {
    delay: [...BAD_NUMBERS, 2 ** 53],
    runAt: [...BAD_NUMBERS, new Date(Number.NaN), 'tomorrow'],
    priority: [Number.NaN, 1.5, 2 ** 31, -(2 ** 31) - 1, '0', null, {}],
    key: ['', 'k'.repeat(256), 'é'.repeat(128), '\ud800', 5, null, {}, unspeakable],
    keyRetention: BAD_NUMBERS,
    tenant: ['', 't'.repeat(256), '\ud800', 5, null, {}],
    attempts: [0, -1, 1.5, 65_536, Number.NaN, '3', null],
    visibility: [0, 2 ** 31, ...BAD_NUMBERS],
    timeout: [0, 2 ** 31, ...BAD_NUMBERS],
    durability: ['sync', '', 0, true, null, {}, unspeakable, '__proto__'],
  };
  for (const [option, values] of Object.entries(bad)) {
    for (const value of values) {
      const error = await refused('ERR_MILLRACE_OPTION_INVALID', () => queue.enqueue(1, wrong({ [option]: value })));
      expect(error.option).toBe(option);
      await refused('ERR_MILLRACE_OPTION_INVALID', () => queue.enqueueMany([wrong({ payload: 1, [option]: value })]));
      await refused('ERR_MILLRACE_OPTION_INVALID', () => queue.tryEnqueue(1, wrong({ [option]: value })));
    }
  }
  for (const options of [5, 'x', [], () => 1]) {
    await refused('ERR_MILLRACE_OPTION_INVALID', () => queue.enqueue(1, wrong(options)));
  }
  await refused('ERR_MILLRACE_OPTION_INVALID', () => queue.enqueue(1, { delay: 1, runAt: new Date() }));
  await refused('ERR_MILLRACE_OPTION_INVALID', () => queue.enqueueMany(wrong('jobs')));
  expect(queue.counts()).toMatchObject({ ready: 0, delayed: 0 });
  await works(broker);
});

it('takes options at their limits', async () => {
  const broker = await opened();
  const queue = broker.queue<number>('jobs');
  const taken = [
    { delay: 0 },
    { delay: 2 ** 51 },
    { runAt: 0 },
    { runAt: new Date(8.64e15 / 4) },
    { priority: -(2 ** 31) },
    { priority: 2 ** 31 - 1 },
    { key: 'k'.repeat(255) },
    { tenant: 'é'.repeat(127) },
    { attempts: 1 },
    { attempts: 65_535 },
    { visibility: 1 },
    { visibility: 2 ** 31 - 1 },
    { timeout: 2 ** 31 - 1 },
    { keyRetention: 0 },
  ];
  for (const options of taken) await queue.enqueue(1, options);
  await works(broker);
});

it('refuses queue options that are wrong', async () => {
  const broker = await opened();
  const bad: Record<string, unknown[]> = {
    attempts: [0, 65_536, 1.5, '3', null],
    crashes: [0, 256, null],
    backoff: [5, 'full', null, { base: -1 }, { max: Number.NaN }, { jitter: 'half' }],
    visibility: [0, 2 ** 31, Number.NaN, null],
    durability: ['sync', null, 1],
    codec: [null, 'xml', 5, {}, { encode() {} }, unspeakable],
    schema: [5, null, {}, { '~standard': {} }],
    resultRetention: [-1, Number.NaN, null, Number.POSITIVE_INFINITY],
    priority: [0.5, 2 ** 31, null],
  };
  for (const [option, values] of Object.entries(bad)) {
    for (const value of values) {
      await refused('ERR_MILLRACE_OPTION_INVALID', () => broker.queue('jobs', wrong({ [option]: value })));
    }
  }
  for (const options of [5, 'x', []]) {
    await refused('ERR_MILLRACE_OPTION_INVALID', () => broker.queue('jobs', wrong(options)));
  }
  await works(broker, 'jobs');
});

it('keeps the options a queue has when new ones are refused', async () => {
  const broker = await opened();
  const queue = broker.queue<unknown>('jobs', { attempts: 1 });
  await refused('ERR_MILLRACE_OPTION_INVALID', () => broker.queue('jobs', wrong({ attempts: 2, codec: 'xml' })));
  await queue.enqueue('json');
  const [lease] = await queue.claim();
  lease!.fail(new Error('once'));
  expect((await queue.get(lease!.id))!.state).toBe('dead');
});

it('refuses claims, asks and leases that are wrong', async () => {
  const broker = await opened();
  const queue = broker.queue<number>('jobs');
  const code = 'ERR_MILLRACE_OPTION_INVALID';
  for (const max of [0, -1, 4097, 1.5, Number.NaN, '1', null]) {
    await refused(code, () => queue.claim(wrong({ max })));
    await refused(code, () => queue.tryClaim(wrong({ max })));
  }
  for (const visibility of [0, 2 ** 31, Number.NaN, '1']) await refused(code, () => queue.claim(wrong({ visibility })));
  for (const wait of [-1, Number.NaN, '1', null]) await refused(code, () => queue.claim(wrong({ wait })));
  for (const options of [5, 'x', [], null]) await refused(code, () => queue.claim(wrong(options)));
  for (const options of [5, 'x', [], null]) await refused(code, () => queue.tryClaim(wrong(options)));
  for (const signal of [5, {}, 'x']) await refused(code, () => queue.claim(wrong({ signal, wait: 10 })));
  for (const id of ['1', 1.5, Number.NaN, null, undefined, {}, 2 ** 53, unspeakable]) {
    await refused(code, () => queue.get(wrong(id)));
    await refused(code, () => queue.cancel(wrong(id)));
    await refused(code, () => queue.result(wrong(id)));
  }
  expect(await queue.get(-5)).toBeUndefined();
  expect(await queue.cancel(2 ** 53 - 1)).toBe(false);
  for (const timeout of [-1, Number.NaN, '1', 2 ** 31]) {
    await refused(code, () => queue.result(1, wrong({ timeout })));
  }
  await queue.enqueue(1);
  const [lease] = await queue.claim();
  for (const ms of [0, -1, Number.NaN, Number.POSITIVE_INFINITY, '1', undefined, null, 2 ** 31]) {
    await refused(code, () => lease!.extend(wrong(ms)));
  }
  for (const delay of [-1, Number.NaN, Number.POSITIVE_INFINITY, '1', null]) {
    await refused(code, () => lease!.fail(new Error('x'), wrong({ delay })));
  }
  for (const options of [5, 'x', [], null]) await refused(code, () => lease!.fail(new Error('x'), wrong(options)));
  expect(lease!.held).toBe(true);
  expect(lease!.ack()).toBe(true);
  await works(broker);
});

it('refuses dead letter questions that are wrong', async () => {
  const broker = await opened();
  const { deadLetters } = broker.queue('jobs');
  const code = 'ERR_MILLRACE_OPTION_INVALID';
  for (const limit of [0, 1001, -1, 1.5, Number.NaN, '1', null]) {
    await refused(code, () => deadLetters.list(wrong({ limit })));
  }
  for (const after of ['1', 1.5, Number.NaN, {}]) await refused(code, () => deadLetters.list(wrong({ after })));
  for (const reason of [5, '', 'no such reason', {}]) {
    await refused(code, () => deadLetters.list(wrong({ reason })));
    await refused(code, () => deadLetters.redrive(wrong({ reason })));
    await refused(code, () => deadLetters.purge(wrong({ reason })));
  }
  for (const ids of [5, 'x', ['1'], [1.5], [null], {}]) {
    await refused(code, () => deadLetters.redrive(wrong({ ids })));
    await refused(code, () => deadLetters.purge(wrong({ ids })));
  }
  for (const options of [5, 'x', [], null]) {
    await refused(code, () => deadLetters.list(wrong(options)));
    await refused(code, () => deadLetters.redrive(wrong(options)));
    await refused(code, () => deadLetters.purge(wrong(options)));
  }
  // More ids than a question can hold is a refusal, not a wait for ever.
  const ids = Array.from({ length: 1_500_000 }, (_, i) => 1e9 + i);
  await refused(code, () => deadLetters.redrive({ ids }));
  await works(broker);
});

it('refuses workers that are wrong', async () => {
  const broker = await opened();
  const queue = broker.queue('jobs');
  const code = 'ERR_MILLRACE_OPTION_INVALID';
  for (const handler of [5, null, undefined, {}, true]) await refused(code, () => queue.process(wrong(handler)));
  for (const concurrency of [0, -1, 4097, 1.5, '1', null]) {
    await refused(code, () => queue.process(() => 1, wrong({ concurrency })));
  }
  for (const timeout of [0, -1, Number.NaN, 2 ** 31, '1']) {
    await refused(code, () => queue.process(() => 1, wrong({ timeout })));
  }
  for (const options of [5, 'x', [], null]) await refused(code, () => queue.process(() => 1, wrong(options)));
  for (const handlers of [[5], [null], [{}], [{ definition: { name: 'x' } }]]) {
    await refused(code, () => broker.process(wrong(handlers)));
  }
  await refused('ERR_MILLRACE_HANDLER_NOT_FOUND', () => queue.process('/no/such/module.js'));
  await refused('ERR_MILLRACE_HANDLER_NOT_FOUND', () => queue.process(new URL('file:///no/such/module.js')));
  await works(broker, 'jobs');
});

it('refuses broker options that are wrong, and leaves no lock behind', async () => {
  const dir = temporaryDirectory();
  const bad: Record<string, unknown[]> = {
    durability: ['sync', null, 1],
    linger: [-1, Number.NaN, 10_001, '1', null],
    batchRecordsMax: [0, 1.5, null],
    segmentBytes: [0, 4095, null],
    jobsMax: [0, -1, 1.5, null],
    payloadBytesMax: [0, (8 << 20) + 1, null],
    memoryBytes: [0, 2 ** 32, null],
    ringSlots: [63, 100, 2 ** 25, null],
    nativeFree: [1, 'yes', null],
    clock: [5, null, {}, { wallMs: () => 1 }],
    random: [5, null, {}],
    storage: [5, null, {}],
  };
  for (const [option, values] of Object.entries(bad)) {
    for (const value of values) {
      const error = await refused('ERR_MILLRACE_OPTION_INVALID', () => open(dir, wrong({ [option]: value })));
      expect(error.option).toBe(option);
    }
  }
  for (const options of [5, 'x', [], null]) {
    await refused('ERR_MILLRACE_OPTION_INVALID', () => open(dir, wrong(options)));
  }
  for (const path of ['', 'a\0b', 5, null, undefined, {}, unspeakable]) {
    await refused('ERR_MILLRACE_OPTION_INVALID', () => open(wrong(path)));
  }
  await works(await opened({}, dir));
});

it('rejects a close whose timeout is wrong, and can still be closed', async () => {
  const broker = await opened();
  for (const timeout of [-1, Number.NaN, 2 ** 31, '1', null]) {
    const closing = broker.close(wrong({ timeout }));
    await refused('ERR_MILLRACE_OPTION_INVALID', () => closing);
  }
  await works(broker);
});
