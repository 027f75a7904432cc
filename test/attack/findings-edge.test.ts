import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect as connectTls } from 'node:tls';
import { afterEach, expect, test } from 'vitest';
import { stringify } from 'yaml';
import { loadSettings } from '../../src/config/load.ts';
import type { SettingsInput } from '../../src/config/schema.ts';
import { nameOf } from '../../src/tls/certificate-name.ts';
import { readText, TAG } from '../../src/tls/der.ts';
import type { PublicListener } from '../../src/tls/listener.ts';
import { type House, openHouse } from '../support/house.ts';
import { testListener } from '../support/listener.ts';
import { proxyHarness } from '../support/proxy-harness.ts';
import { rawClient, readAnswer } from '../support/raw-client.ts';
import { recordingUpstream } from '../support/recording-upstream.ts';
import { makeServeFolder, readiness, startServe, until } from '../support/serve-process.ts';

/** Each of these went wrong once, found by attacking the edges. The name tells what must hold. */

const closing: (() => unknown)[] = [];
afterEach(async () => {
  while (closing.length > 0) await closing.pop()?.();
});

const kept = <T>(made: T, close: (made: T) => unknown): T => {
  closing.push(() => close(made));
  return made;
};

const house = async (...given: Parameters<typeof openHouse>): Promise<House> =>
  kept(await openHouse(...given), (opened) => opened.close());

/** Sends bytes over TLS and gathers the answer until the other side ends, or enough came. */
async function sendBytes(to: House, bytes: string, enough: (text: string) => boolean): Promise<string> {
  const socket = connectTls({ host: '127.0.0.1', port: to.port, ca: to.ca.pem, servername: 'localhost' });
  let text = '';
  try {
    return await new Promise<string>((resolve, reject) => {
      socket.setTimeout(5_000, () => reject(new Error(`no end within 5 s: ${text}`)));
      socket.on('error', reject).on('close', () => resolve(text));
      socket.on('data', (part: Buffer) => {
        text += part.toString('latin1');
        if (enough(text)) resolve(text);
      });
      socket.write(bytes, 'latin1');
    });
  } finally {
    socket.destroy();
  }
}

test('the token service is never forwarded, not even under another served host in absolute form', async () => {
  const opened = await house((settings) => ({
    ...settings,
    routes: [...(settings.routes ?? []), { path: '/**', host: 'api.test', public: true }],
  }));
  const answer = await sendBytes(
    opened,
    'GET http://api.test/authsvc/Authorize/Verify HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n',
    () => false,
  );
  expect(readAnswer(answer).status).toBe(401);
  expect(opened.upstream.calls).toEqual([]);
});

test('P04 a request with %2F does not slip past the rule of its path to a laxer one behind it', async () => {
  const opened = await house((settings) => ({
    ...settings,
    routes: [
      { path: '/admin/**', requires: 'reports:write' },
      { path: '/**', public: true, encodedSlash: true },
    ],
  }));
  for (const path of ['/admin/x%2Fy', '/admin%2Fx', '/admin/%2F'])
    expect([path, (await opened.api(path)).status]).toEqual([path, 400]);
  expect(opened.upstream.calls).toEqual([]);
  expect((await opened.api('/other/x%2Fy')).status).toBe(200);
});

test('H19 what is pipelined behind a request that ends the connection is never run', async () => {
  const opened = await house();
  const second = 'GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n';
  for (const first of [
    'GET /a/../b HTTP/1.1\r\nHost: localhost\r\n\r\n',
    'POST /a/../b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nok',
    'GET /health HTTP/1.1\r\nHost: localhost\r\nExpect: the-unexpected\r\n\r\n',
  ]) {
    const answer = await sendBytes(opened, first + second, () => false);
    expect(answer).toMatch(/^HTTP\/1\.1 4(?:00|17) /);
    expect(answer.match(/HTTP\/1\.1/g)).toHaveLength(1);
  }
  expect(opened.upstream.calls).toEqual([]);
});

test('a bound token works behind a front proxy with the certificate that the front passes on, and with no other', async () => {
  const opened = await house((settings) => ({
    ...settings,
    certificates: { ...settings.certificates, forwardedFrom: ['127.0.0.1'] },
    integrations: settings.integrations?.map((given) => ({ ...given, bindToCertificate: true })) ?? [],
  }));
  const { alice, bob } = opened.people;
  const shows = (who: typeof alice) => ({ 'client-cert': `:${who.der.toString('base64')}:` });
  const grant = await opened.post(
    '/Authorize/Certificate',
    { client_id: 'report-runner', scope: 'files:read' },
    { headers: shows(alice) },
  );
  const token = String(grant.json['access_token']);
  expect((await opened.api('/files/a', token, { headers: shows(alice) })).status).toBe(200);
  expect((await opened.api('/files/a', token, { headers: shows(bob) })).status).toBe(401);
  expect((await opened.api('/files/a', token)).status).toBe(401);
  // The front's own certificate says nothing about its client.
  expect((await opened.api('/files/a', token, { as: alice })).status).toBe(401);
});

test('a proxy taken off trustedProxies by a reload is not believed any more about who is calling', async () => {
  const opened = await house((settings) => ({ ...settings, trustedProxies: ['127.0.0.1'] }));
  const callerSeen = async (): Promise<unknown> => {
    await opened.api('/health', undefined, { headers: { 'x-forwarded-for': '203.0.113.9' } });
    return opened.log.findLast(({ event }) => event === 'request')?.['from'];
  };
  expect(await callerSeen()).toBe('203.0.113.9');
  await opened.reload((settings) => ({ ...settings, trustedProxies: [] }));
  expect(await callerSeen()).toBe('127.0.0.1');
});

test('a reload says which settings of the listener it cannot change', async () => {
  const opened = await house();
  await opened.reload((settings) => ({
    ...settings,
    listen: { ...settings.listen, proxyProtocol: ['10.0.0.0/8'] },
    limits: { ...settings.limits, connections: 5, headerTimeout: '3s', headers: '8KiB' },
  }));
  expect(opened.log.filter(({ event }) => event === 'restart_needed').map((line) => line['setting'])).toEqual(
    ['listen.proxyProtocol', 'limits.headers', 'limits.headerTimeout', 'limits.connections'],
  );
});

test('a setting that waits for a restart and is put back waits for nothing', async () => {
  const opened = await house();
  const waiting = (): unknown[] =>
    opened.log.filter(({ event }) => event === 'restart_needed').map((line) => line['setting']);
  await opened.reload((settings) => ({ ...settings, limits: { ...settings.limits, connections: 5 } }));
  expect(waiting()).toEqual(['limits.connections']);
  await opened.reload((settings) => ({ ...settings, limits: { ...settings.limits, connections: 10_000 } }));
  expect(waiting()).toEqual(['limits.connections']);
});

test('another publicUrl is told to the operator, since it ends every access token', async () => {
  const opened = await house();
  await opened.reload((settings) => ({ ...settings, publicUrl: 'https://other.example.test' }));
  expect(opened.log.filter(({ event }) => event === 'public_url_changed')).toHaveLength(1);
});

test('a byte order mark in a certificate name is part of the name, in every string type', () => {
  const bmp = readText({
    tag: TAG.bmpString,
    content: Buffer.from('feff0061006c006900630065', 'hex'),
    whole: Buffer.alloc(0),
  });
  expect(bmp).toEqual({ ok: true, text: '\ufeffalice' });
  for (const asciiOnly of [true, false])
    expect(
      nameOf({ commonNames: [bmp], emails: [], userPrincipalNames: [] } as never, 'commonName', asciiOnly).ok,
    ).toBe(false);
});

test('an upstream cannot set our session cookie, however it spells that', async () => {
  const upstream = kept(await recordingUpstream(), (made) => made.close());
  const proxy = kept(await proxyHarness({ upstream: upstream.url }), (made) => made.close());
  upstream.reply((socket) => {
    const cookies = [
      '__Host-gatehouse=a',
      ' __Host-gatehouse =a; Path=/',
      '=__Host-gatehouse=a',
      '__Host-gatehouse',
    ];
    socket.write(
      `HTTP/1.1 200 OK\r\n${cookies.map((one) => `Set-Cookie: ${one}\r\n`).join('')}Set-Cookie: other=__Host-gatehouse\r\nContent-Length: 0\r\n\r\n`,
    );
  });
  const client = kept(await rawClient(proxy.port), (made) => made.destroy());
  client.send('GET /public/a HTTP/1.1\r\nHost: a\r\n\r\n');
  const answer = await client.until((text) => text.includes('\r\n\r\n'));
  expect(answer.match(/set-cookie:.*/gi)).toEqual(['Set-Cookie: other=__Host-gatehouse']);
});

/** An API whose every answer is far larger than all buffers on the way. */
async function endlessUpstream(): Promise<string> {
  const server = createServer((_request, response) => {
    const part = Buffer.alloc(1_048_576);
    const more = (): void => {
      while (!response.destroyed && response.write(part));
    };
    response.on('drain', more);
    more();
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  kept(server, (made) => {
    made.closeAllConnections();
    made.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

const silentReader = (port: number): Socket => {
  const socket = kept(connect(port, '127.0.0.1'), (made) => made.destroy());
  socket.on('error', () => {}).pause();
  socket.write('GET /public/large HTTP/1.1\r\nHost: a\r\n\r\n');
  return socket;
};

test('X03 clients that read nothing do not keep the connections of an upstream from everybody else', async () => {
  const timeouts = { connect: 1, headers: 4, idle: 1 };
  const proxy = kept(
    await proxyHarness({ upstream: await endlessUpstream(), upstreamSettings: { connections: 2, timeouts } }),
    (made) => made.close(),
  );
  for (let count = 0; count < 2; count += 1) silentReader(proxy.port);
  const good = kept(await rawClient(proxy.port), (made) => made.destroy());
  good.send('GET /public/large HTTP/1.1\r\nHost: a\r\n\r\n');
  expect(await good.until((text) => text.length > 0, 4_000)).toMatch(/^HTTP\/1\.1 200 /);
});

test('a request that gets no connection to its upstream in time is told so', async () => {
  const timeouts = { connect: 1, headers: 1, idle: 60 };
  const proxy = kept(
    await proxyHarness({ upstream: await endlessUpstream(), upstreamSettings: { connections: 1, timeouts } }),
    (made) => made.close(),
  );
  silentReader(proxy.port);
  const good = kept(await rawClient(proxy.port), (made) => made.destroy());
  good.send('GET /public/large HTTP/1.1\r\nHost: a\r\n\r\n');
  expect(await good.until((text) => text.length > 0, 4_000)).toMatch(/^HTTP\/1\.1 503 /);
});

test('whoever leaves while waiting for an upstream gives his place back, and no more than may wait do', async () => {
  const upstreamSettings = { connections: 1, timeouts: { connect: 1, headers: 60, idle: 60 } };
  const proxy = kept(
    // The fast lane begins no request before the one in front of it has been answered.
    await proxyHarness({ upstream: await endlessUpstream(), upstreamSettings, firstLane: 'full' }),
    (made) => made.close(),
  );
  silentReader(proxy.port);
  let asked = 1;
  await until('the only connection is taken', () => proxy.notes.length === asked);
  const askHundred = async () => {
    const client = kept(await rawClient(proxy.port), (made) => made.destroy());
    client.send('GET /public/large HTTP/1.1\r\nHost: a\r\n\r\n'.repeat(100));
    asked += 100;
    await until('the requests arrived', () => proxy.notes.length >= asked);
    return client;
  };
  // 512 may wait: as many as ever leave before their turn.
  for (let round = 0; round < 6; round += 1) (await askHundred()).destroy();
  await until('they have left', () => proxy.notes.slice(1).every(({ reason }) => reason === 'client_left'));
  for (let round = 0; round < 5; round += 1) await askHundred();
  expect(proxy.notes.filter(({ reason }) => reason === 'overloaded')).toEqual([]);
  await askHundred();
  expect(proxy.notes.filter(({ reason }) => reason === 'overloaded')).toHaveLength(88);
});

async function plainListener(): Promise<PublicListener> {
  const opened = await testListener({
    limits: { headers: 16_384, headerTimeout: 2, connections: 100 },
    onCall: ({ response }) => void response.end('answered'),
  });
  return kept(opened, (made) => made.close());
}

test('a stranger who never closes his side cannot keep a connection: CONNECT, or a body that never comes', async () => {
  const listener = await plainListener();
  for (const bytes of [
    'CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n',
    'GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n',
    'GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nx',
    'POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n',
  ]) {
    const socket = kept(connect({ port: listener.port, host: '127.0.0.1', allowHalfOpen: true }), (made) =>
      made.destroy(),
    );
    socket.on('error', () => {}).resume();
    socket.write(bytes);
    await once(socket, 'data');
  }
  expect(listener.connections()).toBe(4);
  await until('the connections are closed', () => listener.connections() === 0);
}, 20_000);

test('a supervisor survives a reload that meets a worker which has just died', async () => {
  const folder = kept(
    await makeServeFolder((settings) => ({ ...settings, listen: { ...settings.listen, workers: 2 } })),
    (made) => made.remove(),
  );
  const serve = await startServe(folder);
  const [victim = 0] = serve.workers;
  const stateOf = (pid: number): string =>
    readFileSync(`/proc/${pid}/stat`, 'latin1').split(') ')[1]?.[0] ?? '';
  // Stopped, so that the death and the signal wait for it together.
  serve.signal('SIGSTOP');
  await until('the supervisor stands still', () => stateOf(serve.pid) === 'T');
  process.kill(victim, 'SIGKILL');
  await until('the worker is dead', () => stateOf(victim) === 'Z');
  serve.signal('SIGHUP');
  serve.signal('SIGCONT');
  await until('the death was noticed', () => serve.log.some(({ event }) => event === 'worker_ended'));
  await until('the other worker has reloaded', () => serve.log.some(({ event }) => event === 'reloaded'));
  expect(serve.log.filter(({ event }) => event === 'uncaught_exception')).toEqual([]);
  expect(await serve.stop()).toBe(0);
}, 40_000);

test('a worker that starts while the file is bad takes the last good configuration', async () => {
  const folder = kept(
    await makeServeFolder((settings) => ({ ...settings, listen: { ...settings.listen, workers: 2 } })),
    (made) => made.remove(),
  );
  const serve = await startServe(folder);
  const sound = readFileSync(folder.file('gatehouse.yaml'), 'utf8');
  const ended = (): number => serve.log.filter(({ event }) => event === 'worker_ended').length;
  const ready = async (): Promise<boolean> => (await readiness(serve)) === 200;
  folder.write('gatehouse.yaml', `${sound}\nunknown: true\n`);
  process.kill(serve.workers[0] ?? 0, 'SIGKILL');
  await until('the worker has ended', () => ended() === 1);
  await until('both are ready', ready, 30);
  expect(ended()).toBe(1);
  expect(await serve.stop()).toBe(0);
}, 60_000);

test('of a front that writes one header, no other form of a forwarded certificate is believed', async () => {
  const opened = await house((settings) => ({
    ...settings,
    certificates: {
      ...settings.certificates,
      forwardedFrom: ['127.0.0.1'],
      forwardedHeader: 'ssl-client-cert',
    },
  }));
  const { alice } = opened.people;
  const ask = async (headers: Record<string, string>): Promise<number> =>
    (
      await opened.post(
        '/Authorize/Certificate',
        { client_id: 'report-runner', scope: 'files:read' },
        { headers },
      )
    ).status;
  expect(await ask({ 'client-cert': `:${alice.der.toString('base64')}:` })).toBe(401);
  expect(await ask({ 'ssl-client-cert': encodeURIComponent(alice.pem) })).toBe(200);
});

test('settings that would be dropped, or let a client write its own identity, are refused', () => {
  const { load } = configurationOf();
  expect(load({ headers: { user: 'Cookie' } })).toEqual(['headers.user']);
  expect(load({ headers: { scope: 'X-Forwarded-For' } })).toEqual(['headers.scope']);
  for (const url of ['http://127.0.0.1:9000/base', 'http://u:p@127.0.0.1:9000', 'http://127.0.0.1:9000/?a'])
    expect(load({ upstreams: { default: { url } } })).toEqual(['upstreams.default.url']);
  expect(load({ upstreams: { default: { url: 'http://127.0.0.1:9000/' } } })).toEqual([]);
});

/** The paths of the settings a configuration is refused for. */
function configurationOf(): { readonly load: (given: SettingsInput) => string[] } {
  const folder = kept(mkdtempSync(join(tmpdir(), 'gatehouse-edge-')), (made) =>
    rmSync(made, { recursive: true, force: true }),
  );
  const file = join(folder, 'gatehouse.yaml');
  return {
    load(given) {
      writeFileSync(file, stringify({ listen: { behindTls: true }, ...given }));
      const loaded = loadSettings({ file, env: {} });
      return loaded.ok ? [] : loaded.problems.map(({ path }) => path);
    },
  };
}
