import { afterAll, beforeAll, beforeEach } from 'vitest';
import type { SettingsInput } from '../../../src/config/schema.ts';
import { useExtAuthzClient } from '../../support/ext-authz-client.ts';
import { withBoundApp } from '../../support/reconfigure.ts';
import { type Reply, type SettingsChange, startGateway, type TestGateway } from '../../support/test-gateway.ts';

export const CHECK = '/authsvc/check';
export type Headers = Readonly<Record<string, string | string[]>>;

type Check = (headers: Headers, more?: { path?: string; method?: string; body?: string }) => Promise<Reply>;

const withGateways: SettingsChange = (settings) => ({
  ...withBoundApp(settings),
  trustedProxies: ['127.0.0.1'],
  routes: [
    ...(settings.routes ?? []),
    {
      path: '/shared/**',
      methods: ['GET', 'HEAD'],
      requires: 'files:read',
      cors: { origins: ['https://app.test'] },
    },
  ],
});

/** What the tests read of a response. */
type Checked = Pick<Reply, 'status' | 'headers' | 'text' | 'json'>;
type SendCheck = (method: string, uri: string, headers: Headers) => Promise<Checked>;

/** The check request that each gateway sends, according to its documentation. */
const createGateways = (check: Check, checkByGrpc: SendCheck) => ({
  nginx: (method: string, uri: string, headers: Headers) =>
    check({
      ...headers,
      'x-original-method': method,
      'x-original-uri': uri,
      'x-forwarded-host': 'api.example.test',
      'x-forwarded-proto': 'https',
    }),
  'ingress-nginx': (method: string, uri: string, headers: Headers) =>
    check({ ...headers, 'x-original-method': method, 'x-original-url': `https://localhost:8443${uri}` }),
  Traefik: (method: string, uri: string, headers: Headers) =>
    check({
      ...headers,
      'x-forwarded-method': method,
      'x-forwarded-proto': 'https',
      'x-forwarded-host': 'api.example.test:8443',
      'x-forwarded-uri': uri,
      'x-forwarded-for': '192.0.2.7',
    }),
  Caddy: (method: string, uri: string, headers: Headers) =>
    check({
      ...headers,
      host: 'api.example.test',
      'x-forwarded-method': method,
      'x-forwarded-uri': uri,
      'x-forwarded-proto': 'http',
      'x-forwarded-host': 'api.example.test',
      'x-forwarded-for': '192.0.2.7',
    }),
  Envoy: (method: string, uri: string, headers: Headers) =>
    check(
      {
        ...headers,
        host: 'api.example.test',
        'content-length': '0',
        'x-envoy-internal': 'true',
        'x-forwarded-for': '192.0.2.7',
        'x-envoy-expected-rq-timeout-ms': '250',
      },
      { path: CHECK + uri, method },
    ),
  'Envoy, over gRPC': checkByGrpc,
});

/** A gatehouse to which other gateways send check requests, for the tests of one file. It is usable only inside hooks and tests. */
export interface ForwardAuthGateway {
  readonly gateway: TestGateway;
  readonly defaultSettings: SettingsInput;
  /** An access token with the scope `files:read`. */
  readonly token: string;
  readonly bearer: (token?: string) => Headers;
  readonly check: Check;
  readonly gateways: ReturnType<typeof createGateways>;
}

export function useForwardAuthGateway(): ForwardAuthGateway {
  let gateway: TestGateway;
  let defaultSettings: SettingsInput;
  let token: string;
  beforeAll(async () => {
    gateway = await startGateway((settings) => {
      defaultSettings = withGateways(settings);
      return defaultSettings;
    });
    token = (await gateway.grant({ scope: 'files:read' })).access_token;
  });
  afterAll(() => gateway?.close());
  beforeEach(() => {
    gateway.upstream.requests.length = 0;
  });
  const check: Check = (headers, more = {}) => gateway.request({ path: CHECK, ...more, headers });
  const extAuthz = useExtAuthzClient(() => gateway);
  const checkByGrpc: SendCheck = async (method, path, headers) => {
    const { status, text, json, ...reply } = await extAuthz.check({
      method,
      path,
      host: 'localhost:8443',
      headers: { ...headers, 'x-forwarded-for': '192.0.2.7' },
    });
    // A header that is removed is like one that is overwritten with nothing. Responses to gRPC calls are not cached.
    const removed = Object.fromEntries(reply.removed.map((name) => [name, '']));
    const caching = { 'cache-control': 'no-store' };
    return { status, text, json, headers: { ...caching, ...removed, ...reply.responseHeaders, ...reply.headers } };
  };
  return {
    get gateway() {
      return gateway;
    },
    get defaultSettings() {
      return defaultSettings;
    },
    get token() {
      return token;
    },
    bearer: (access = token) => ({ authorization: `Bearer ${access}` }),
    check,
    gateways: createGateways(check, checkByGrpc),
  };
}
