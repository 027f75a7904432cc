import { connect } from 'node:tls';
import fc from 'fast-check';
import { afterAll, beforeAll, expect } from 'vitest';
import { compileRules } from '../../../src/domain/rule-matcher.ts';
import { type ExplainContext, type Explanation, explain } from '../../../src/proxy/policy/explain.ts';
import { createOwnAuthorityCheck } from '../../../src/proxy/policy/served-hosts.ts';
import { buildIntegrations, buildRules } from '../../../src/server/build-from-settings.ts';
import { ServicePaths } from '../../../src/server/service-paths.ts';
import { scope } from '../../support/proxy-harness.ts';
import { startGateway, type TestGateway } from '../../support/test-gateway.ts';

/** Compares `gatehouse explain` with the behaviour of the running gateway. */
let gateway: TestGateway;
let context: ExplainContext;
const tokens = new Map<string, string>();
const TOKENS = ['none', 'report-runner files:read', 'report-runner reports:write', 'other-app files:read'];

/** Starts the gateway for the tests of a file. */
export function withExplainedGateway(): void {
  beforeAll(async () => {
    gateway = await startGateway((settings) => ({
      ...settings,
      service: { paths: ['/authsvc', '/auth'] },
      routes: [
        { path: '/hosted/**', host: 'hosted.test', requires: 'files:read' },
        { path: '/slash/**', encodedSlash: true, requires: 'any-token' },
        { path: '/trial/**', requires: 'reports:write', reportOnly: true },
        ...(settings.routes ?? []),
        { path: '/*/a', methods: ['GET'], public: true },
        { path: '/*/b/**', methods: ['GET', 'TRACE', 'QUERY'], public: true },
      ],
    }));
    for (const name of TOKENS.slice(1)) {
      const [clientId = '', scopeText = ''] = name.split(' ');
      tokens.set(name, (await gateway.grant({ clientId, scope: scopeText })).access_token);
    }
    const settings = gateway.server.settings();
    const rules = compileRules(buildRules(settings));
    const paths = new ServicePaths(settings);
    context = {
      rules,
      publicUrl: settings.publicUrl,
      trustedIssuers: new Map(),
      isOwnAuthority: createOwnAuthorityCheck(settings.publicUrl, rules),
      isServicePath: (path) => paths.parse(path) !== undefined,
      isForwardAuthPath: (url) => paths.matchForwardAuth(url) !== undefined,
    };
  });
  afterAll(() => gateway.close());
}

interface ExplainRequest {
  readonly method: string;
  readonly target: string;
  readonly host: string;
  readonly token: string;
}

/** Sends a request on a new connection and returns the status. */
export const getStatus = ({ method, target, host, token }: ExplainRequest): Promise<number> =>
  new Promise((resolve, reject) => {
    const socket = connect({
      port: gateway.port,
      host: '127.0.0.1',
      servername: 'localhost',
      ca: gateway.ca.pem,
    });
    let text = '';
    const accessToken = tokens.get(token);
    const authorization = accessToken === undefined ? '' : `Authorization: Bearer ${accessToken}\r\n`;
    socket.setTimeout(30_000, () => socket.destroy(new Error(`no response to ${method} ${target}`)));
    socket.on('data', (part: Buffer) => void (text += part.toString('latin1')));
    socket.on('error', reject);
    socket.on('close', () => resolve(Number(text.split(' ')[1])));
    socket.write(`${method} ${target} HTTP/1.1\r\nHost: ${host}\r\n${authorization}Connection: close\r\n\r\n`);
  });

export function explainRequest({ method, target, host, token }: ExplainRequest): Explanation {
  const [client = '', scopeText = ''] = token.split(' ');
  if (token === 'none') return explain(context, { method, path: target, host });
  const integration = buildIntegrations(gateway.server.settings(), []).get(client);
  return explain(context, {
    method,
    path: target,
    host,
    scope: scope(scopeText),
    client,
    ...(integration && { integration }),
  });
}

/** `undefined`: a response of the gateway itself, with any status. */
export function getExpectedStatus({ verdict, reportOnly, http2Only }: Explanation, token: string): number | undefined {
  if (http2Only === true) return 400;
  if (reportOnly === true) return 200;
  switch (verdict) {
    case 'handled_by_gatehouse':
      return undefined;
    case 'invalid_request':
      return 400;
    case 'method_not_allowed':
      return 405;
    case 'misdirected':
      return 421;
    case 'token_required':
      return 401;
    case 'forbidden':
      return 403;
    case 'no_rule':
      return token === 'none' ? 401 : 404;
    case 'public':
    case 'allowed':
      return 200;
  }
}

const oneOf = (...list: string[]) => fc.constantFrom(...list);
const firstSegment = oneOf(
  'files',
  'reports',
  'whoami',
  'other',
  'health',
  'trial',
  'slash',
  'Files',
  'REPORTS',
  'trIal',
  'hosted',
  'authsvc',
  'AuthSvc',
  'auth',
);
const laterSegment = oneOf(
  'a',
  'b',
  'check',
  'Check',
  'oauth2',
  'device',
  '%61',
  'a%2Fb',
  '..',
  '%2e',
  'a;b',
  'é',
  '',
  '%zz',
  'Ä',
);
const path = fc
  .tuple(firstSegment, fc.array(laterSegment, { maxLength: 3 }))
  .map(([head, rest]) => `/${[head, ...rest].join('/')}`);
const query = oneOf('', '', '', '?q=1', '?access_token=x', '?a=1&access%5Ftoken=x', '?x#y');
const origin = oneOf(
  '',
  '',
  '',
  'https://localhost:8443',
  'http://evil',
  'http://hosted.test',
  'https://u@localhost:8443',
);
const request = fc.record({
  method: oneOf('GET', 'GET', 'GET', 'HEAD', 'POST', 'DELETE', 'OPTIONS', 'TRACE', 'QUERY', 'PROPFIND', 'FETCH'),
  target: fc.oneof(
    { weight: 20, arbitrary: fc.tuple(origin, path, query).map((parts) => parts.join('')) },
    { weight: 1, arbitrary: fc.constant('*') },
  ),
  host: oneOf('localhost:8443', 'localhost:8443', 'hosted.test', 'elsewhere.test'),
  token: fc.constantFrom(...TOKENS),
});

export async function expectAgreement(runs: number, seed?: number): Promise<void> {
  const seen = new Set<string>();
  await fc.assert(
    fc.asyncProperty(request, async (request) => {
      const explanation = explainRequest(request);
      seen.add(explanation.verdict);
      const before = gateway.upstream.requests.length;
      const status = await getStatus(request);
      const forwarded = gateway.upstream.requests.length - before;
      const expected = getExpectedStatus(explanation, request.token);
      if (expected !== undefined) expect(status, JSON.stringify(explanation)).toBe(expected);
      expect(forwarded, JSON.stringify(explanation)).toBe(expected === 200 ? 1 : 0);
    }),
    { numRuns: runs, ...(seed !== undefined && { seed }) },
  );
  // Ensure that the requests covered many verdicts.
  expect(seen.size).toBeGreaterThanOrEqual(8);
}
