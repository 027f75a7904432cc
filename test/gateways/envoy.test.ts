import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parse, stringify } from 'yaml';
import { needs } from '../set-up/programs.ts';
import { type FrontProxy, type FrontProxyProgram, freePort } from '../support/front-proxy.ts';
import { sendRequest } from '../support/https-client.ts';
import type { IssuedCertificate } from '../support/pki.ts';
import { withBoundApp, withForwardedCertificates } from '../support/reconfigure.ts';
import { type RecordingUpstream, startRecordingUpstream } from '../support/recording-upstream.ts';
import { ALICE, startGateway, type TestGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';
import { fillPlaceholders, readDocumentedConfig } from './documented-configuration.ts';
import { testForwardAuth } from './forward-auth.ts';
import { testClientCertificates } from './forwarded-certificates.ts';
import { ENVOY, envoyArguments, readEnvoyConfig, startEnvoy, startEnvoyOverHttp } from './proxies.ts';

needs('envoy');

describe('Envoy, over gRPC', () => {
  testForwardAuth({ start: (addresses) => startEnvoy(addresses), whenUnreachable: 503, forwardsHost: false });
});

describe('Envoy, over HTTP', () => {
  testForwardAuth({ start: startEnvoyOverHttp, whenUnreachable: 503, forwardsHost: false });
});

describe('Envoy that asks over gRPC, and terminates TLS', () => {
  let gatehouse: TestGateway;
  let api: RecordingUpstream;
  let envoy: FrontProxy;
  let bound: string;
  let token: string;
  beforeAll(async () => {
    gatehouse = await startGateway((settings) =>
      withBoundApp({
        ...settings,
        trustedProxies: ['127.0.0.1'],
        limits: { ...settings.limits, routes: '100/h', rateLimitHeaders: true },
      }),
    );
    api = await startRecordingUpstream();
    const { folder, port: gatehousePort } = gatehouse;
    const addresses = { port: await freePort(), gatehousePort, apiPort: api.port, ca: `${folder}/ca.pem` };
    envoy = await startEnvoy(addresses, ({ chain, manager, filter }) => {
      filter['include_peer_certificate'] = true;
      Object.assign(manager, readEnvoyConfig('envoy-access-log'));
      const tls = { '/etc/envoy/tls': folder, '/etc/gatehouse/issuers.pem': addresses.ca };
      Object.assign(chain, readEnvoyConfig('envoy-client-certificates-tls', tls));
    });
    token = (await gatehouse.grant({ scope: 'files:read' })).access_token;
    bound = (await gatehouse.grant({ clientId: 'bound-app' })).access_token;
    await gatehouse.reload(withForwardedCertificates('x-forwarded-client-cert'));
  });
  afterAll(async () => {
    await envoy?.close();
    await api?.close();
    await gatehouse?.close();
  });

  const send = (path: string, accessToken: string, as?: IssuedCertificate) =>
    sendRequest({
      port: envoy.port,
      path,
      ca: gatehouse.ca.pem,
      headers: { host: 'api.example.test', authorization: `Bearer ${accessToken}` },
      ...(as && { cert: as.pem, key: as.keyPem }),
    });

  test('a certificate-bound token works with the certificate of the client, which is in the check', async () => {
    const { alice, bob } = gatehouse.users;
    expect((await send('/files/a', bound, alice)).status, envoy.output()).toBe(200);
    expect((await send('/files/a', bound, bob)).status).toBe(401);
    expect((await send('/files/a', bound)).status).toBe(401);
  });

  test('responses of the API have the state of the limit', async () => {
    expect((await send('/files/a', token)).headers['ratelimit']).toMatch(/r=\d+/);
  });

  test('the access log of Envoy has the identity, the rule and the reason', async () => {
    await send('/files/logged', token);
    await send('/reports/logged', token);
    const findLine = (path: string) =>
      until('Envoy logs the request', () => {
        const line = envoy
          .output()
          .split('\n')
          .find((text) => text.startsWith('{') && text.includes(path));
        return line === undefined ? undefined : JSON.parse(line);
      });
    expect(await findLine('/files/logged')).toMatchObject({
      status: 200,
      identity: ALICE,
      client: 'report-runner',
      rule: expect.stringContaining('/files/**'),
    });
    expect(await findLine('/reports/logged')).toMatchObject({
      status: 403,
      identity: ALICE,
      reason: 'insufficient_scope: reports:write',
    });
  });
});

const withCertificates = (port: number, gateway: TestGateway): Omit<FrontProxyProgram, 'port'> => ({
  program: ENVOY,
  arguments: (_folder, write) => {
    const read = (name: string, replacements: Readonly<Record<string, string>>) =>
      parse(fillPlaceholders(readDocumentedConfig(name), replacements));
    const configuration = read('yaml envoy', {
      'port_value: 8443': `port_value: ${gateway.port}`,
      'port_value: 8080': `port_value: ${port}`,
      'api.example.test': '"*"',
      'gate.example.test': 'localhost',
      '/etc/gatehouse/ca.pem': `${gateway.folder}/ca.pem`,
    });
    const [chain] = configuration.static_resources.listeners[0].filter_chains;
    const manager = chain.filters[0].typed_config;
    // Every request is forwarded to gatehouse, without a check.
    manager.http_filters = manager.http_filters.slice(-1);
    manager.route_config.virtual_hosts[0].routes[0].route.cluster = 'gatehouse';
    delete manager.early_header_mutation_extensions;
    Object.assign(manager, read('yaml envoy-client-certificates', {}));
    Object.assign(
      chain,
      read('yaml envoy-client-certificates-tls', {
        '/etc/envoy/tls': `${gateway.folder}/front`,
        '/etc/gatehouse/issuers.pem': `${gateway.folder}/ca.pem`,
      }),
    );
    return envoyArguments(write('envoy.yaml', stringify(configuration)));
  },
});

describe('Envoy that terminates TLS', () => {
  testClientCertificates({ forwardedHeader: 'x-forwarded-client-cert', program: withCertificates });
});
