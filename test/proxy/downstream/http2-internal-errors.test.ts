import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { AccessRule } from '../../../src/domain/access-rule.ts';
import { BucketBudget, RequestLimiter } from '../../../src/lib/request-limiter.ts';
import { Quota } from '../../../src/proxy/policy/quotas.ts';
import {
  CODE,
  dataFrame,
  type Field,
  type FrameClient,
  frameClient,
  requestFields,
  resetFrame,
} from '../../support/http2-frames.ts';
import { bearer, NOW, type ProxyHarness, rule, startProxyHarness } from '../../support/proxy-harness.ts';
import { type RecordingUpstream, startRecordingUpstream } from '../../support/recording-upstream.ts';
import { until } from '../../support/until.ts';

/** Exceptions between the authorization of a request and its response. */
const STREAMS = 100;

const limitedRules = [
  rule('/limited/public/**', 'public'),
  rule('/limited/files/**', 'files:read'),
] as const satisfies readonly AccessRule[];

function createQuota(): Quota {
  const rate = { burst: 100_000, perSecond: 100_000 };
  const limit = { name: 'address', per: 'address', quota: rate.burst, window: 1, rate } as const;
  const limiter = new RequestLimiter(rate, new BucketBudget(1_000), NOW);
  return new Quota([{ limit, limiter }], false);
}

let upstream: RecordingUpstream;
let proxy: ProxyHarness;
let isFailing = false;
/** Tokens are verified when the test releases them. */
let verifications: (() => void)[] | undefined;
beforeAll(async () => {
  upstream = await startRecordingUpstream();
  proxy = await startProxyHarness({
    upstream: upstream.url,
    upstreamSettings: { connections: 2 * STREAMS },
    rules: [...limitedRules, rule('/public/**', 'public'), rule('/files/**', 'files:read')],
    quotas: new Map(limitedRules.map((limited) => [limited, createQuota()])),
    // The address of the client is determined before the quota is taken, and for the log.
    isTrustedPeer() {
      if (isFailing) throw new Error('thrown on purpose');
      return false;
    },
    async readAccessToken(token) {
      await new Promise<void>((resolve) => {
        if (verifications === undefined) resolve();
        else verifications.push(resolve);
      });
      return token === 'A' ? bearer() : undefined;
    },
    tls: true,
    http2: true,
  });
});
afterAll(async () => {
  await proxy.close();
  await upstream.close();
});

let client: FrameClient;
beforeEach(async () => {
  client = await frameClient(proxy.port, { ca: proxy.ca.pem });
});
afterEach(() => {
  isFailing = false;
  verifications = undefined;
  client.destroy();
  upstream.reset();
});

const TOKEN: Field = ['authorization', 'Bearer A'];
const CASES: Readonly<Record<string, readonly Field[]>> = {
  'a public request, before its quota is taken': requestFields('/limited/public/1'),
  'a public request, after it was accepted': requestFields('/public/1'),
  'a request whose token was verified, before its quota is taken': [...requestFields('/limited/files/1'), TOKEN],
  'a request whose token was verified, after it was accepted': [...requestFields('/files/1'), TOKEN],
  'a refused request': requestFields('/files/1'),
};

/** As many requests as agreed are served at the same time. */
async function expectAllStreams(): Promise<void> {
  const respond: (() => void)[] = [];
  upstream.respondWith((socket) => {
    respond.push(() => socket.write('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'));
  });
  const streams = Array.from({ length: STREAMS }, () => client.request(requestFields('/public/1')));
  await until('the upstream has all requests', () => respond.length === STREAMS);
  for (const answer of respond) answer();
  for (const stream of streams) expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
  expect(proxy.activeRequests()).toBe(0);
}

describe('an exception resets its stream only, and leaves nothing behind', () => {
  test.each(Object.keys(CASES))('%s', async (name) => {
    const fields = CASES[name] as Field[];
    const logged = proxy.log.length;
    isFailing = true;
    for (let round = 0; round < 3; round += 1) {
      const streams = Array.from({ length: STREAMS / 2 }, () => client.request(fields));
      for (const stream of streams) expect(await client.waitForEnd(stream)).toEqual({ reset: CODE.internalError });
    }
    isFailing = false;
    expect(upstream.requests).toEqual([]);
    const errors = proxy.log.slice(logged).filter((line) => line.includes('"event":"internal_error"'));
    expect(errors.length).toBe(1.5 * STREAMS);
    await expectAllStreams();
  });

  test('uploads whose body has arrived with the request, or follows', async () => {
    isFailing = true;
    for (const path of ['/limited/public/1', '/public/1', '/limited/files/1', '/files/1']) {
      const fields = [...requestFields(path, 'POST'), TOKEN];
      const complete = Array.from({ length: STREAMS / 4 }, () => client.post(fields, 'body'));
      const partial = Array.from({ length: STREAMS / 4 }, () => client.request(fields, { end: false }));
      for (const stream of [...complete, ...partial])
        expect(await client.waitForEnd(stream)).toEqual({ reset: CODE.internalError });
      client.send(...partial.map((stream) => dataFrame(stream, 'late', { end: true })));
    }
    isFailing = false;
    await expectAllStreams();
  });

  test('requests that their client has reset while the token was verified', async () => {
    verifications = [];
    const streams = Array.from({ length: STREAMS }, () =>
      client.request([...requestFields('/limited/files/1'), TOKEN]),
    );
    await until('all tokens are being verified', () => verifications?.length === STREAMS);
    client.send(...streams.map((stream) => resetFrame(stream)));
    // They still count.
    const refused = client.request(requestFields('/public/1'));
    expect(await client.waitForEnd(refused)).toEqual({ reset: CODE.refusedStream });
    isFailing = true;
    for (const verified of verifications) verified();
    await until('no request is being verified', () => proxy.activeRequests() === 0);
    isFailing = false;
    await expectAllStreams();
  });
});
