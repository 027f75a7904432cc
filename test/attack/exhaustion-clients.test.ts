import { once } from 'node:events';
import { connect as connectNet } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { afterEach, describe, expect, test } from 'vitest';
import { rateLimit } from '../../src/http/rate-limit.ts';
import { attackHouse } from '../support/attack-house.ts';
import { FLAG, FRAME, frame, frameClient, requestFields } from '../support/h2-frames.ts';
import type { RawClient } from '../support/raw-client.ts';
import { ok } from '../support/recording-upstream.ts';
import { until } from '../support/serve-process.ts';
import { OWN } from './matrix-settings.ts';

/** Rows X01–X03, X05, X06, X08, X09, X12 and X13, in short: what one client can hold on to, and for how long. */
const attack = attackHouse((settings) => ({
  ...settings,
  limits: { ...settings.limits, headerTimeout: '2s', connections: 200, headers: '16KiB' },
}));

const opened: { destroy(): void }[] = [];
afterEach(async () => {
  for (const one of opened.splice(0)) one.destroy();
  attack.upstream.reset();
});

async function client(): Promise<RawClient> {
  const made = await attack.client();
  opened.push(made);
  return made;
}

const clients = (count: number): Promise<RawClient[]> => Promise.all(Array.from({ length: count }, client));
const MiB = 1_048_576;

describe('X01 a head that never comes to its end', () => {
  test('X01 a hundred clients that send a byte now and then are all closed in time, and others are served meanwhile', async () => {
    const slow = await clients(100);
    const drip = setInterval(() => {
      for (const one of slow) if (one.ending() === undefined) one.send('x');
    }, 200);
    for (const one of slow) one.send('GET /files/1 HTTP/1.1\r\nX-Slow: ');
    try {
      expect((await attack.house.api('/files/1', attack.token)).status).toBe(200);
      await Promise.all(slow.map((one) => one.closed(8_000)));
      expect(slow.every((one) => one.ending() !== undefined)).toBe(true);
    } finally {
      clearInterval(drip);
    }
    await attack.stands();
  });

  test('X01 a connection on which nothing comes, and one without a handshake, are closed too', async () => {
    const silent = await client();
    const bare = connectNet(attack.house.port, '127.0.0.1');
    opened.push(bare);
    bare.on('error', () => {}).resume();
    await Promise.all([silent.closed(8_000), until('the bare one is closed', () => bare.destroyed)]);
    expect(silent.ending()).toBeDefined();
    await attack.stands();
  });
});

describe('X02 a body that never comes to its end', () => {
  const head = (line: string, ...more: string[]): string =>
    [`${line} HTTP/1.1`, `Host: ${OWN}`, ...more, '', ''].join('\r\n');

  test('X02 to the token service: 408, and the connection is closed', async () => {
    const one = await client();
    one.send(head('POST /authsvc/Authorize/Token', 'Content-Type: application/json', 'Content-Length: 100'));
    const drip = setInterval(() => one.send('{'), 300);
    try {
      expect(await one.closed(10_000)).toMatch(/^HTTP\/1\.1 408 /);
    } finally {
      clearInterval(drip);
    }
    await attack.stands();
  });

  test('X02 the same over HTTP/2: 408 for that request, and the connection goes on', async () => {
    const { house } = attack;
    const one = await frameClient(house.port, { ca: house.ca.pem });
    opened.push(one);
    const stream = one.request(
      [...requestFields('/authsvc/Authorize/Token', 'POST'), ['content-type', 'application/json']],
      { end: false },
    );
    one.send(frame(FRAME.data, 0, stream, Buffer.from('{')));
    await one.until(() => one.endedCleanly(stream));
    expect(one.outcome(stream)).toEqual({ status: 408 });
    const next = one.request(requestFields('/public/1'));
    await one.until(() => one.endedCleanly(next));
    expect(one.outcome(next)).toEqual({ status: 200 });
  });

  test('X02 to the upstream: the client is told, and the upstream’s connection is free again', async () => {
    const one = await client();
    one.send(head('POST /files/1', `Authorization: Bearer ${attack.token}`, 'Content-Length: 100'));
    one.send('half');
    expect(await one.closed(15_000)).toMatch(/^HTTP\/1\.1 408 /);
    await until('the upstream is free', () => attack.upstream.open() === 0);
    expect(attack.upstream.requests).toEqual([]);
    await attack.stands();
  });
});

test('X03 ten clients that read nothing of a large answer hold back the upstream, and not us', async () => {
  const part = Buffer.alloc(65_536, 'x');
  const total = 256 * MiB;
  let written = 0;
  attack.upstream.reply((socket) => {
    socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${total}\r\n\r\n`);
    const more = (): void => {
      while (!socket.destroyed) {
        written += part.length;
        if (!socket.write(part)) {
          socket.once('drain', more);
          return;
        }
      }
    };
    more();
  });
  const before = process.memoryUsage().rss;
  const { house, token } = attack;
  for (let index = 0; index < 10; index += 1) {
    const socket = connectTls({
      port: house.port,
      host: '127.0.0.1',
      servername: 'localhost',
      ca: house.ca.pem,
    });
    opened.push(socket);
    socket.on('error', () => {});
    await once(socket, 'secureConnect');
    socket.pause();
    socket.write(`GET /files/1 HTTP/1.1\r\nHost: ${OWN}\r\nAuthorization: Bearer ${token}\r\n\r\n`);
  }
  let last = -1;
  await until('nothing moves any more', async () => {
    const still = written > 0 && written === last;
    last = written;
    await new Promise((resolve) => setTimeout(resolve, 300));
    return still;
  });
  // Mostly what the sockets of two systems hold, all of which are in this process.
  expect(written).toBeLessThan(10 * 24 * MiB);
  expect(process.memoryUsage().rss - before).toBeLessThan(150 * MiB);
  for (const one of opened.splice(0)) one.destroy();
  await until('the upstream is free', () => attack.upstream.open() === 0);
  await attack.stands();
});

describe('X05, X06 more than anybody needs', () => {
  test('X05 a body of the token service beyond 16 KiB is 413, with and without a length', async () => {
    const { house } = attack;
    const body = JSON.stringify({ client_id: 'report-runner', refresh_token: 'x'.repeat(16_384) });
    expect(
      (
        await house.ask({
          path: '/authsvc/Authorize/Token',
          method: 'POST',
          body,
          headers: { 'content-type': 'application/json' },
        })
      ).status,
    ).toBe(413);
    const chunked = await house.ask({
      path: '/authsvc/Authorize/Token',
      method: 'POST',
      body,
      headers: { 'content-type': 'application/json', 'transfer-encoding': 'chunked' },
    });
    expect(chunked.status).toBe(413);
    const one = await frameClient(house.port, { ca: house.ca.pem });
    opened.push(one);
    const stream = one.request(
      [...requestFields('/authsvc/Authorize/Token', 'POST'), ['content-type', 'application/json']],
      { end: false },
    );
    one.send(
      frame(FRAME.data, 0, stream, Buffer.alloc(10_000, 'x')),
      frame(FRAME.data, FLAG.endStream, stream, Buffer.alloc(10_000, 'x')),
    );
    await one.until(() => one.outcome(stream) !== undefined);
    expect(one.outcome(stream)).toEqual({ status: 413 });
    await attack.stands();
  });

  test('X06 a head beyond 16 KiB, or of more than a hundred fields, is 431; a target beyond 8 KiB is 414', async () => {
    const fields = (count: number): [string, string][] =>
      Array.from({ length: count }, (_, index) => [`X-${index}`, '1']);
    const write = (more: readonly (readonly [string, string])[], target = '/files/1'): string =>
      [
        `GET ${target} HTTP/1.1`,
        `Host: ${OWN}`,
        `Authorization: Bearer ${attack.token}`,
        ...more.map(([name, value]) => `${name}: ${value}`),
        '',
        '',
      ].join('\r\n');
    for (const [bytes, status] of [
      [write([['X-Large', 'a'.repeat(16_384)]]), 431],
      [write(fields(99)), 431],
      [write(fields(98)), 200],
      [write([], `/files/${'a'.repeat(8_200)}`), 414],
      [write([], `/files/${'a'.repeat(8_000)}`), 200],
    ] as const) {
      attack.upstream.reset();
      const answer = await attack.send(bytes);
      expect([bytes.length, answer.status]).toEqual([bytes.length, status]);
      expect(attack.upstream.requests.length).toBe(status === 200 ? 1 : 0);
      await attack.stands();
    }
  });
});

test('X08 connections beyond the limit are closed, those within it are served, and room comes back', async () => {
  // The house's own clients hold a few.
  const many = await Promise.allSettled(
    Array.from({ length: 260 }, async () => {
      const socket = connectNet(attack.house.port, '127.0.0.1');
      opened.push(socket);
      socket.on('error', () => {}).resume();
      await once(socket, 'connect');
      return socket;
    }),
  );
  const sockets = many.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
  await until('those beyond the limit are closed', () => sockets.filter((one) => one.destroyed).length >= 60);
  expect(sockets.filter((one) => !one.destroyed).length).toBeLessThanOrEqual(200);
  for (const one of opened.splice(0)) one.destroy();
  await until('there is room again', async () => {
    try {
      return (await attack.house.api('/files/1', attack.token)).status === 200;
    } catch {
      return false;
    }
  });
  await until('it is said once', () => attack.house.log.some(({ event }) => event === 'connections_dropped'));
  expect(attack.house.log.filter(({ event }) => event === 'connections_dropped').length).toBeLessThan(10);
  await attack.stands();
});

test('X09 JSON that is nested without end or has thousands of names is refused, and nobody waits for it', async () => {
  const deep = '{"a":'.repeat(3_000);
  const wide = `{${Array.from({ length: 1_200 }, (_, index) => `"${'k'.repeat(3)}${index}":1`).join(',')}}`;
  const twice = '{"client_id":"a","client_id":"b"}';
  for (const body of [deep, '['.repeat(8_000), wide, twice, `{"client_id":${'9'.repeat(10_000)}}`]) {
    const reply = await attack.house.ask({
      path: '/authsvc/Authorize/Token',
      method: 'POST',
      body,
      headers: { 'content-type': 'application/json' },
    });
    expect([body.slice(0, 20), reply.status]).toEqual([body.slice(0, 20), 400]);
  }
  await attack.stands();
});

/** `npm run test:long`: as many as the row says. */
const LEFT = Number(process.env['ROW_COUNT'] ?? 500);

test(`X12 ${LEFT} requests that are left at a random byte leave no connection to the upstream behind`, {
  timeout: 30_000 + LEFT * 20,
}, async () => {
  const message = attack.write({ line: 'GET /files/1 HTTP/1.1' });
  attack.upstream.reply((socket, request) => {
    // Half of them are left while the upstream works on them.
    if (attack.upstream.requests.length % 2 === 0) ok(socket, request);
  });
  let seed = 42;
  const random = (): number => {
    seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648;
    return seed / 2_147_483_648;
  };
  for (let round = 0; round < LEFT / 50; round += 1) {
    const some = await clients(50);
    for (const one of some) one.send(message.slice(0, Math.ceil(random() * 1.5 * message.length)));
    await new Promise(setImmediate);
    for (const one of some) one.destroy();
  }
  attack.upstream.reply(ok);
  // Only those that wait for their next request may be open.
  const idle = (): number => attack.upstream.open();
  await until('what nobody waits for is closed', () => idle() <= 128);
  const answers = await Promise.all(
    Array.from({ length: 100 }, () => attack.house.api('/files/next', attack.token)),
  );
  expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 200));
  await attack.stands();
});

test('X13 fifty thousand names of strangers do not make the limiter grow, nor forget who is over the limit now', () => {
  let now = 0;
  const limit = rateLimit({ burst: 2, perSecond: 1 }, () => now, 1_000);
  const before = process.memoryUsage().heapUsed;
  for (let index = 0; index < 50_000; index += 1) limit.take(`stranger-${index}`);
  expect(process.memoryUsage().heapUsed - before).toBeLessThan(20 * MiB);
  expect([limit.take('me'), limit.take('me'), limit.take('me') > 0]).toEqual([0, 0, true]);
  now += 10;
  expect(limit.take('me')).toBe(0);
});

test('X13 five hundred unknown clients are refused alike, and nothing is kept of them', async () => {
  const answers = new Set<string>();
  for (let index = 0; index < 500; index += 50)
    await Promise.all(
      Array.from({ length: 50 }, async (_, more) => {
        const asked = { client_id: `nobody-${index + more}`, scope: 'files:read' };
        const { status, json } = await attack.house.post('/Authorize/Device', asked);
        answers.add(`${status} ${String(json['Error'])}`);
      }),
    );
  expect([...answers]).toEqual([expect.stringMatching(/^40[01] /)]);
  await attack.stands();
});
