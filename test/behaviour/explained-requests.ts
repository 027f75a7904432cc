import { connect } from 'node:tls';
import fc from 'fast-check';
import { afterAll, beforeAll, expect } from 'vitest';
import { compileRules } from '../../src/domain/rule-matcher.ts';
import { integrationsOf, rulesOf } from '../../src/gateway/registry.ts';
import { checkMatcher, servicePaths } from '../../src/gateway/service-paths.ts';
import { type ExplainDesk, type Explanation, explain } from '../../src/proxy/explain.ts';
import { ownAuthorities } from '../../src/proxy/own-authority.ts';
import { type House, openHouse } from '../support/house.ts';
import { scope } from '../support/proxy-harness.ts';

/** Compares `gatehouse explain` with what the running gateway does. */
let house: House;
let desk: ExplainDesk;
const tokens = new Map<string, string>();
const TOKENS = ['none', 'report-runner files:read', 'report-runner reports:write', 'other-app files:read'];

/** Opens the gateway for the tests of a file. */
export function withExplainedGateway(): void {
  beforeAll(async () => {
    house = await openHouse((settings) => ({
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
      const [clientId = '', asked = ''] = name.split(' ');
      tokens.set(name, (await house.grant({ clientId, scope: asked })).access_token);
    }
    const settings = house.gateway.settings();
    const rules = compileRules(rulesOf(settings));
    const below = servicePaths(settings);
    const afterCheck = checkMatcher(settings);
    desk = {
      rules,
      isOwnAuthority: ownAuthorities(settings.publicUrl, rules),
      isServicePath: (path) => below(path) !== undefined,
      isCheck: (url) => afterCheck(url) !== undefined,
    };
  });
  afterAll(() => house.close());
}

interface Asked {
  readonly method: string;
  readonly target: string;
  readonly host: string;
  readonly token: string;
}

/** The status of the last answer on a connection of its own. */
export const statusOf = ({ method, target, host, token }: Asked): Promise<number> =>
  new Promise((resolve, reject) => {
    const socket = connect({
      port: house.port,
      host: '127.0.0.1',
      servername: 'localhost',
      ca: house.ca.pem,
    });
    let text = '';
    const given = tokens.get(token);
    const authorization = given === undefined ? '' : `Authorization: Bearer ${given}\r\n`;
    socket.setTimeout(30_000, () => socket.destroy(new Error(`no answer to ${method} ${target}`)));
    socket.on('data', (part: Buffer) => void (text += part.toString('latin1')));
    socket.on('error', reject);
    socket.on('close', () => resolve(Number(text.split(' ')[1])));
    socket.write(
      `${method} ${target} HTTP/1.1\r\nHost: ${host}\r\n${authorization}Connection: close\r\n\r\n`,
    );
  });

export function said({ method, target, host, token }: Asked): Explanation {
  const [client = '', held = ''] = token.split(' ');
  if (token === 'none') return explain(desk, { method, path: target, host });
  const integration = integrationsOf(house.gateway.settings(), []).get(client);
  return explain(desk, {
    method,
    path: target,
    host,
    scope: scope(held),
    client,
    ...(integration && { integration }),
  });
}

/** `undefined`: a response of the gateway itself, with any status. */
export function expectedOf(
  { verdict, reportOnly, onlyHttp2 }: Explanation,
  token: string,
): number | undefined {
  if (onlyHttp2 === true) return 400;
  if (reportOnly === true) return 200;
  switch (verdict) {
    case 'answered_here':
      return undefined;
    case 'bad_path':
      return 400;
    case 'method_not_served':
      return 405;
    case 'misdirected':
      return 421;
    case 'needs_token':
      return 401;
    case 'insufficient':
      return 403;
    case 'no_rule':
      return token === 'none' ? 401 : 404;
    case 'public':
    case 'passes':
      return 200;
  }
}

const words = (...list: string[]) => fc.constantFrom(...list);
const first = words(
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
const later = words(
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
  .tuple(first, fc.array(later, { maxLength: 3 }))
  .map(([head, rest]) => `/${[head, ...rest].join('/')}`);
const query = words('', '', '', '?q=1', '?access_token=x', '?a=1&access%5Ftoken=x', '?x#y');
const origin = words(
  '',
  '',
  '',
  'https://localhost:8443',
  'http://evil',
  'http://hosted.test',
  'https://u@localhost:8443',
);
const request = fc.record({
  method: words(
    'GET',
    'GET',
    'GET',
    'HEAD',
    'POST',
    'DELETE',
    'OPTIONS',
    'TRACE',
    'QUERY',
    'PROPFIND',
    'FETCH',
  ),
  target: fc.oneof(
    { weight: 20, arbitrary: fc.tuple(origin, path, query).map((parts) => parts.join('')) },
    { weight: 1, arbitrary: fc.constant('*') },
  ),
  host: words('localhost:8443', 'localhost:8443', 'hosted.test', 'elsewhere.test'),
  token: fc.constantFrom(...TOKENS),
});

export async function agreeOn(runs: number, seed?: number): Promise<void> {
  const seen = new Set<string>();
  await fc.assert(
    fc.asyncProperty(request, async (asked) => {
      const told = said(asked);
      seen.add(told.verdict);
      const before = house.upstream.calls.length;
      const status = await statusOf(asked);
      const forwarded = house.upstream.calls.length - before;
      const expected = expectedOf(told, asked.token);
      if (expected !== undefined) expect(status, JSON.stringify(told)).toBe(expected);
      expect(forwarded, JSON.stringify(told)).toBe(expected === 200 ? 1 : 0);
    }),
    { numRuns: runs, ...(seed !== undefined && { seed }) },
  );
  // Requests of one kind only would prove nothing.
  expect(seen.size).toBeGreaterThanOrEqual(8);
}
