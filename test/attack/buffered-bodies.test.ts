import type { RequestListener } from 'node:http';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import { clientAccounts } from '../../src/listener/client-accounts.ts';
import { BodyBuffer, UnreadResponse } from '../../src/proxy/body-buffering.ts';
import { startHttpUpstream } from '../support/http-upstream.ts';
import { type ProxyHarness, rule, startProxyHarness, type TestUpstreamSettings } from '../support/proxy-harness.ts';
import { connectRaw, type RawClient } from '../support/raw-client.ts';
import { until } from '../support/until.ts';
import { chooseVariants } from '../support/variants.ts';

/** Request bodies that are buffered before an upstream connection is taken: docs/decisions/0031-slow-clients.md */

/** So that the steps in which buffers grow are small beside it. */
const LIMIT = 64 * 1_048_576;
const derivedLimit = clientAccounts.limit;
beforeAll(() => {
  clientAccounts.limit = LIMIT;
});
afterAll(() => {
  clientAccounts.limit = derivedLimit;
});

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

type Kind = 'plain upstream' | 'TLS upstream';
const KINDS = chooseVariants<Kind>(['plain upstream', 'TLS upstream'], ['plain upstream']);

interface ProxySetup {
  readonly harness: ProxyHarness;
  /** Method, path and body of the requests that the upstream received completely. */
  readonly seen: string[];
  /** Number of requests to `/public/held`, which the upstream never responds to. */
  readonly held: () => number;
  revoke(): void;
  client(): Promise<RawClient>;
}

async function startProxySetup(kind: Kind, settings: TestUpstreamSettings = {}): Promise<ProxySetup> {
  const seen: string[] = [];
  let held = 0;
  let isRevoked = false;
  const listener: RequestListener = (request, response) => {
    request.on('error', () => {});
    if (request.url === '/public/held') {
      held += 1;
      return;
    }
    let body = '';
    request.on('data', (part: Buffer) => {
      body += part.toString('latin1');
    });
    request.on('end', () => {
      seen.push(`${request.method} ${request.url} ${body.length < 100 ? body : body.length}`);
      response.end('ok');
    });
  };
  const upstream = await startHttpUpstream(listener, kind === 'TLS upstream');
  cleanups.push(() => upstream.close());
  const harness = await startProxyHarness({
    upstream: upstream.url,
    upstreamSettings: {
      connections: 4,
      timeouts: { connect: 5, headers: 60, idle: 60 },
      ...settings,
      ...upstream.settings,
    },
    rules: [rule('/public/**', 'public'), rule('/files/**', 'files:read')],
    revocations: { isRevoked: () => isRevoked },
    maxBodyBytes: 16 * 1_048_576,
  });
  cleanups.push(() => harness.close());
  return {
    harness,
    seen,
    held: () => held,
    revoke() {
      isRevoked = true;
    },
    async client() {
      const client = await connectRaw(harness.port);
      cleanups.push(() => client.destroy());
      return client;
    },
  };
}

const head = (method: string, path: string, ...fields: string[]): string =>
  `${[`${method} ${path} HTTP/1.1`, 'Host: gate.test', ...fields].join('\r\n')}\r\n\r\n`;
const statuses = (text: string): string[] => text.match(/HTTP\/1\.1 \d+/g) ?? [];

/** Bytes that another client could buffer now. */
function freeMemory(): number {
  const buffer = new BodyBuffer('DELETE', 0, 'one more', () => {});
  const part = Buffer.alloc(262_144);
  let added = 0;
  while (buffer.add(part) === 'more') added += part.length;
  buffer.free();
  return added;
}

describe.each(KINDS)('%s', (kind) => {
  test.each(['POST', 'DELETE'])(
    'a chunked %s body that arrives at once is forwarded completely, however small the buffer is',
    async (method) => {
      const proxy = await startProxySetup(kind, { bodyBuffer: 10 });
      const client = await proxy.client();
      const chunks = '14\r\n01234567890123456789\r\n';
      client.send(`${head(method, '/public/1', 'Transfer-Encoding: chunked')}${chunks}0\r\n\r\n`);
      expect(statuses(await client.until((text) => text.endsWith('ok')))).toEqual(['HTTP/1.1 200']);
      client.send(`${head(method, '/public/2', 'Transfer-Encoding: chunked')}${chunks}${chunks}0\r\n\r\n`);
      await client.until((text) => statuses(text).length === 2);
      expect(proxy.seen).toEqual([
        `${method} /public/1 01234567890123456789`,
        `${method} /public/2 0123456789012345678901234567890123456789`,
      ]);
    },
  );

  test('a request pipelined after the body of a rejected request gets a response', async () => {
    const proxy = await startProxySetup(kind, { connections: 1, maxPending: 0 });
    const other = await proxy.client();
    other.send(head('GET', '/public/held'));
    await until('the held request has the connection', () => proxy.held() === 1);
    const client = await proxy.client();
    client.send(`${head('POST', '/public/1', 'Content-Length: 10')}01234`);
    await until('the request has started', () => proxy.harness.notes.length === 2);
    client.send(`56789${head('GET', '/public/2')}`);
    const text = await client.until((all) => statuses(all).length === 2);
    expect(statuses(text)).toEqual(['HTTP/1.1 503', 'HTTP/1.1 503']);
  });

  test.each(['POST', 'DELETE'])(
    'a %s whose token is revoked before its body has arrived is not forwarded',
    async (method) => {
      const proxy = await startProxySetup(kind);
      const client = await proxy.client();
      client.send(`${head(method, '/files/1', 'Authorization: Bearer A', 'Content-Length: 10')}01234`);
      await until('the request has started', () => proxy.harness.notes.length === 1);
      proxy.revoke();
      client.send('56789');
      expect(statuses(await client.until((text) => text.includes('request_id')))).toEqual(['HTTP/1.1 401']);
      expect(proxy.seen).toEqual([]);
      expect(proxy.harness.notes[0]).toMatchObject({ decision: 'refused', reason: 'token_revoked' });
    },
  );

  test('a request whose token is revoked while it waits for a connection is not forwarded', async () => {
    const proxy = await startProxySetup(kind, { connections: 1 });
    const other = await proxy.client();
    other.send(head('GET', '/public/held'));
    await until('the held request has the connection', () => proxy.held() === 1);
    const client = await proxy.client();
    client.send(head('GET', '/files/1', 'Authorization: Bearer A'));
    await until('the request waits', () => proxy.harness.notes.length === 2);
    proxy.revoke();
    other.destroy();
    expect(statuses(await client.until((text) => text.includes('request_id')))).toEqual(['HTTP/1.1 401']);
    expect(proxy.seen).toEqual([]);
  });

  test('bodies in memory are counted until the upstream has read them', async () => {
    const before = freeMemory();
    const proxy = await startProxySetup(kind, { connections: 1, maxPending: 16 });
    const other = await proxy.client();
    other.send(head('GET', '/public/held'));
    await until('the held request has the connection', () => proxy.held() === 1);

    const size = 8 * 1_048_576;
    const waiting = await Promise.all(
      ['/public/1', '/public/2'].map(async (path) => {
        const client = await proxy.client();
        client.send(head('DELETE', path, `Content-Length: ${size}`));
        client.socket.write(Buffer.alloc(size));
        return client;
      }),
    );
    await until(
      'both bodies have arrived',
      () =>
        proxy.harness.notes.filter(({ transfer }) => transfer !== undefined && transfer.bytesIn >= size).length === 2,
    );
    expect(freeMemory()).toBeLessThan(before - size);

    // One client disconnects while its request waits, one while its body arrives, and one is served.
    waiting[0]?.destroy();
    const slow = await proxy.client();
    slow.send(`${head('POST', '/public/slow', 'Content-Length: 1000')}0`);
    await until('the request has started', () => proxy.harness.notes.length >= 4);
    slow.destroy();
    other.destroy();
    await waiting[1]?.until((text) => text.endsWith('ok'));
    expect(proxy.seen).toEqual([`DELETE /public/2 ${size}`]);
    await until('no buffered bytes are counted', () => freeMemory() === before);
  });
});

test('one client cannot use up the memory for unread responses that all clients share', () => {
  const held: UnreadResponse[] = [];
  const mayReadAhead = (client: string): boolean => {
    const response = new UnreadResponse(() => {});
    held.push(response);
    return response.mayReadAhead(100_000, client);
  };
  try {
    while (mayReadAhead('a'));
    expect(mayReadAhead('b')).toBe(true);
  } finally {
    for (const response of held) response.release();
  }
});

describe('memory for bodies', () => {
  const part = Buffer.alloc(262_144);
  const buffers: BodyBuffer[] = [];
  afterEach(() => {
    for (const buffer of buffers.splice(0)) buffer.free();
  });
  const createBuffer = (method: string, client: string): BodyBuffer => {
    const buffer = new BodyBuffer(method, 65_536, client, () => {});
    buffers.push(buffer);
    return buffer;
  };

  test('one client cannot use all of it', () => {
    const largest = createBuffer('DELETE', 'a');
    while (largest.add(part) !== 'full');
    expect(createBuffer('DELETE', 'a').add(Buffer.alloc(1))).toBe('full');
    expect(createBuffer('POST', 'a').add(Buffer.alloc(1))).toBe('enough');
    expect(createBuffer('DELETE', 'b').add(part)).toBe('more');
    expect(createBuffer('POST', 'b').add(Buffer.alloc(1))).toBe('more');
  });

  test('a large body is not copied again for each of its parts', () => {
    const copies = vi.spyOn(Buffer, 'allocUnsafeSlow');
    try {
      const buffer = createBuffer('DELETE', 'a');
      for (let sent = 0; sent < 1_024; sent += 1) buffer.add(Buffer.alloc(16_384));
      expect(copies.mock.calls.length).toBeLessThan(40);
    } finally {
      copies.mockRestore();
    }
  });
});
