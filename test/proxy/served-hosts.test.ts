import { type ClientHttp2Session, connect } from 'node:http2';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { createServedHosts } from '../../src/proxy/policy/served-hosts.ts';
import { connectRawTls, isCompleteResponse, parseRawResponse } from '../support/raw-client.ts';
import { withSettings } from '../support/reconfigure.ts';
import { type LogLine, startGateway, type TestGateway } from '../support/test-gateway.ts';

let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startGateway((settings) => ({
    ...settings,
    routes: [{ path: '/routed/**', host: 'routed.test', public: true }, ...(settings.routes ?? [])],
  }));
});
afterAll(() => gateway.close());
beforeEach(() => {
  gateway.upstream.requests.length = 0;
  gateway.clearLog();
});

const withHosts = (given: SettingsInput['hosts']) => (settings: SettingsInput) => ({
  ...settings,
  trustedProxies: ['127.0.0.1'],
  hosts: given,
});

async function sendOverHttp1(host: string, target = '/health', more = ''): Promise<number> {
  const client = await connectRawTls(gateway.port, gateway.ca.pem);
  try {
    client.send(`GET ${target} HTTP/1.1\r\nHost: ${host}\r\n${more}\r\n`);
    return parseRawResponse(await client.until((text) => isCompleteResponse(text))).status;
  } finally {
    client.destroy();
  }
}

let session: ClientHttp2Session | undefined;
afterAll(() => session?.destroy());

async function sendOverHttp2(host: string): Promise<number> {
  session ??= connect(`https://127.0.0.1:${gateway.port}`, { ca: gateway.ca.pem, servername: 'localhost' });
  const stream = session.request({ ':path': '/health', ':authority': host });
  return new Promise<number>((resolve, reject) => {
    stream.once('error', reject).once('response', (head) => resolve(Number(head[':status'])));
    stream.resume();
  });
}

const getWarnings = (): LogLine[] => gateway.log.filter(({ event }) => event === 'host_not_listed');

describe.each([
  ['HTTP/1.1', (host: string) => sendOverHttp1(host)],
  ['HTTP/2', sendOverHttp2],
] as const)('over %s', (_, send) => {
  test('a host that is not listed is forwarded, and logged once', () =>
    withSettings(gateway, withHosts({}), async () => {
      for (const host of ['evil.test', 'EVIL.test:8443', 'evil.test.']) expect(await send(host)).toBe(200);
      expect(gateway.upstream.requests[0]?.headers['x-forwarded-host']).toBe('evil.test');
      expect(getWarnings()).toMatchObject([
        {
          level: 'warn',
          host: 'evil.test',
          peer: '127.0.0.1',
          decision: 'accepted',
          setting: 'hosts.allowed',
        },
      ]);
    }));

  test('hosts of publicUrl, of routes and of hosts.allowed are listed, with any port', () =>
    withSettings(gateway, withHosts({ allowed: ['API.test', '*.apps.test', '[::1]'], others: 'refuse' }), async () => {
      for (const host of ['localhost', 'LOCALHOST:1', 'routed.test:99', 'api.test', 'a.b.apps.test', '[::1]:8443'])
        expect([host, await send(host)]).toEqual([host, 200]);
      expect(getWarnings()).toEqual([]);
    }));

  test('with others: refuse a request for another host is 421 and reaches no upstream', () =>
    withSettings(gateway, withHosts({ allowed: ['*.apps.test'], others: 'refuse' }), async () => {
      for (const host of ['evil.test', 'apps.test', 'xapps.test', '10.0.0.1', '[2001:db8::1]'])
        expect([host, await send(host)]).toEqual([host, 421]);
      expect(gateway.upstream.requests).toEqual([]);
      expect(getWarnings().map((line) => [line['host'], line['decision']])).toContainEqual(['evil.test', 'refused']);
    }));

  test('a probe that sends the address it connects to as Host is accepted', () =>
    withSettings(gateway, withHosts({ others: 'refuse' }), async () => {
      expect(await send(`127.0.0.1:${gateway.port}`)).toBe(200);
      expect(getWarnings()).toEqual([]);
    }));

  test('"*" allows every host without a warning', () =>
    withSettings(gateway, withHosts({ allowed: ['*'], others: 'refuse' }), async () => {
      expect(await send('anything.test')).toBe(200);
      expect(getWarnings()).toEqual([]);
    }));
});

test('the token API and its pages are served for listed hosts only, forward-auth for any', () =>
  withSettings(gateway, withHosts({ others: 'refuse' }), async () => {
    for (const path of ['/authsvc/Authorize/Verify', '/authsvc/device', '/authsvc/oauth2/jwks'])
      expect([path, await sendOverHttp1('evil.test', path)]).toEqual([path, 421]);
    expect(await sendOverHttp1('localhost', '/authsvc/oauth2/jwks')).toBe(200);
    const request = 'X-Forwarded-Method: GET\r\nX-Forwarded-Uri: /health\r\nX-Forwarded-Host: api.test\r\n';
    expect(await sendOverHttp1('gateway.internal', '/authsvc/check', request)).toBe(200);
  }));

test('an absolute URL as target overrides Host', () =>
  withSettings(gateway, withHosts({ allowed: ['api.test'], others: 'refuse' }), async () => {
    expect(await sendOverHttp1('evil.test', 'https://api.test/health')).toBe(200);
    expect(gateway.upstream.requests[0]?.headers['x-forwarded-host']).toBe('api.test');
    expect(await sendOverHttp1('localhost', 'https://evil.test/health')).toBe(421);
  }));

test('HTTP/1.0 without a host is accepted, and no host is forwarded', () =>
  withSettings(gateway, withHosts({ others: 'refuse' }), async () => {
    const client = await connectRawTls(gateway.port, gateway.ca.pem);
    client.send('GET /health HTTP/1.0\r\n\r\n');
    expect(parseRawResponse(await client.closed()).status).toBe(200);
    expect(gateway.upstream.requests[0]?.headers['x-forwarded-host']).toBeUndefined();
  }));

describe('warnings', () => {
  const createHosts = (log: string[]) =>
    createServedHosts(
      {
        settings: { allowed: [], others: 'warn' },
        publicUrl: 'https://gate.test',
        routeHosts: new Set(),
      },
      { warn: (_, fields) => void log.push(String(fields?.['host'])) },
    );

  test('are limited to few hosts at a time, however many a client sends', () => {
    const log: string[] = [];
    const served = createHosts(log);
    for (let at = 0; at < 10_000; at += 1)
      expect(served.accepts(`h${at}.test`, '192.0.2.1', { localAddress: '192.0.2.9' })).toBe(true);
    expect(log.length).toBeGreaterThan(0);
    expect(log.length).toBeLessThanOrEqual(20);
  });

  test('are not logged for addresses of this machine in any notation', () => {
    const log: string[] = [];
    const served = createHosts(log);
    for (const [host, localAddress] of [
      ['10.1.2.3:8443', '10.1.2.3'],
      ['10.1.2.3', '::ffff:10.1.2.3'],
      ['[fd00:0:0::1]:8443', 'fd00::1'],
      ['localhost:8443', '127.0.0.1'],
      ['localhost', '::1'],
    ] as const)
      served.accepts(host, '192.0.2.1', { localAddress });
    expect(log).toEqual([]);
    served.accepts('localhost', '192.0.2.1', { localAddress: '10.1.2.3' });
    served.accepts('10.1.2.4', '192.0.2.1', { localAddress: '10.1.2.3' });
    expect(log).toEqual(['localhost', '10.1.2.4']);
  });
});
