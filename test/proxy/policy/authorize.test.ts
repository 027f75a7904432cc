import { createHash } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { compileRules } from '../../../src/domain/rule-matcher.ts';
import { Fault } from '../../../src/ports/fault.ts';
import { type AccessDecision, authorize, type PolicyContext } from '../../../src/proxy/policy/authorize.ts';
import { readCredentials } from '../../../src/proxy/policy/credentials.ts';
import { explain } from '../../../src/proxy/policy/explain.ts';
import { formatChallenge } from '../../../src/proxy/policy/refusals.ts';
import { createHttpsClient } from '../../support/https-client.ts';
import { issue } from '../../support/pki.ts';
import { bearer, integration, NOW, RULES, rule, scope, startProxyHarness } from '../../support/proxy-harness.ts';
import { rawRequest } from '../../support/raw-client.ts';
import { startRecordingUpstream } from '../../support/recording-upstream.ts';

const rules = compileRules([
  ...RULES,
  rule('/mine/**', 'any-token', { clients: ['other'] }),
  rule('/ours/**', 'files:read', { clients: ['other'] }),
  rule('/write/**', 'files:write', { methods: ['POST'] }),
]);

const deps = (options: Partial<PolicyContext> = {}): PolicyContext => ({
  rules,
  readAccessToken: (token) => (token === 'A' ? bearer() : undefined),
  revocations: { isRevoked: () => false },
  getIntegration: (clientId) => (clientId === 'report-runner' ? integration(clientId, 'files:read,write') : undefined),
  isOwnAuthority: () => false,
  ...options,
});

async function getReason(
  at: PolicyContext,
  url: string,
  credentials?: string,
  certificate?: string,
  accepted = true,
): Promise<string> {
  const admission: AccessDecision = await authorize(at, {
    method: 'GET',
    url,
    host: 'gate.test',
    credentials: readCredentials(credentials === undefined ? [] : [credentials]),
    certificate: () => (certificate === undefined ? undefined : { fingerprint: certificate, accepted }),
    now: NOW,
  });
  if (admission.kind !== 'refused') return admission.kind;
  const { refusal } = admission;
  return refusal.reason === 'token_invalid' ? refusal.fault : refusal.reason;
}

const withBearer = (options: Parameters<typeof bearer>[0]): PolicyContext => {
  const token = bearer(options);
  return deps({ readAccessToken: () => token });
};

describe('access', () => {
  test('without a token every protected or unknown path is rejected for the missing token', async () => {
    for (const url of ['/files/1', '/admin', '/nowhere']) expect(await getReason(deps(), url)).toBe('token_missing');
    expect(await getReason(deps(), '/public/x')).toBe('allowed');
  });

  test('with a token the rules decide: no rule is 404, too little scope is 403', async () => {
    expect(await getReason(deps(), '/files/1', 'Bearer A')).toBe('allowed');
    expect(await getReason(deps(), '/nowhere', 'Bearer A')).toBe('no_rule');
    expect(await getReason(deps(), '/admin', 'Bearer A')).toBe('insufficient_scope');
    expect(await getReason(deps(), '/nowhere', 'Bearer B')).toBe('not_authentic');
  });

  test('T09 a token is valid until just before its expiry', async () => {
    expect(await getReason(withBearer({ expires: NOW + 0.001 }), '/files/1', 'Bearer A')).toBe('allowed');
    expect(await getReason(withBearer({ expires: NOW }), '/files/1', 'Bearer A')).toBe('expired');
  });

  test('T10 the clock of the issuer may be up to five seconds ahead', async () => {
    expect(await getReason(withBearer({ issuedAt: NOW + 5 }), '/files/1', 'Bearer A')).toBe('allowed');
    expect(await getReason(withBearer({ issuedAt: NOW + 6 }), '/files/1', 'Bearer A')).toBe('not_yet_valid');
  });

  test('T17 a bound token needs its certificate on the connection', async () => {
    const bound = withBearer({ boundTo: 'print' });
    expect(await getReason(bound, '/files/1', 'Bearer A')).toBe('certificate_not_presented');
    expect(await getReason(bound, '/files/1', 'Bearer A', 'other')).toBe('certificate_not_presented');
    expect(await getReason(bound, '/files/1', 'Bearer A', 'print')).toBe('allowed');
    expect(await getReason(bound, '/files/1', 'Bearer A', 'print', false)).toBe('certificate_rejected');
  });

  test('T18 a rule limited to another integration rejects this one', async () => {
    expect(await getReason(deps(), '/mine/1', 'Bearer A')).toBe('client_not_allowed');
    expect(await getReason(deps(), '/ours/1', 'Bearer A')).toBe('client_not_allowed');
  });

  test('T19 a revocation and a removed or reduced integration apply to cached tokens at once', async () => {
    const token = bearer();
    let revoked = false;
    let current: ReturnType<typeof integration> | undefined = integration('report-runner', 'files:read');
    const at = deps({
      readAccessToken: () => token,
      revocations: { isRevoked: () => revoked },
      getIntegration: () => current,
    });
    expect(await getReason(at, '/files/1', 'Bearer A')).toBe('allowed');
    current = integration('report-runner', 'files:write');
    expect(await getReason(at, '/files/1', 'Bearer A')).toBe('insufficient_scope');
    current = undefined;
    expect(await getReason(at, '/files/1', 'Bearer A')).toBe('client_removed');
    revoked = true;
    expect(await getReason(at, '/files/1', 'Bearer A')).toBe('revoked');
  });

  test('a cached token is checked synchronously, a new one after it was verified', async () => {
    const request = {
      method: 'GET',
      url: '/files/1',
      host: 'gate.test',
      credentials: readCredentials(['Bearer A']),
      certificate: () => undefined,
      now: NOW,
    };
    expect(authorize(deps(), request)).not.toBeInstanceOf(Promise);
    const slow = authorize(deps({ readAccessToken: () => Promise.resolve(bearer()) }), request);
    expect(slow).toBeInstanceOf(Promise);
    expect(await slow).toMatchObject({ kind: 'allowed' });
  });

  test('a challenge contains the scope, and quoted strings are escaped', () => {
    expect(formatChallenge({ reason: 'insufficient_scope', scope: scope('files:read') })).toBe(
      'Bearer realm="gatehouse", error="insufficient_scope", error_description="The access token lacks the required scope: files:read.", scope="files:read"',
    );
    // RFC 6750 §3: a list with spaces; the syntax of the token API follows where it differs.
    const several = scope('files:read,write;reports');
    expect(formatChallenge({ reason: 'insufficient_scope', scope: several })).toMatch(
      /, scope="files:read files:write reports", gatehouse_scope="files:read,write;reports"$/,
    );
    expect(formatChallenge({ reason: 'token_missing' }, 'https://a.test/"\\')).toBe(
      String.raw`Bearer realm="gatehouse", resource_metadata="https://a.test/\"\\"`,
    );
    expect(formatChallenge({ reason: 'no_rule' }, 'https://a.test')).toBeUndefined();
  });
});

describe('over HTTP', () => {
  test('a token bound to a certificate is compared with the certificate of the connection', async () => {
    const upstream = await startRecordingUpstream();
    let boundTo = '';
    const tokens = {
      get A() {
        return bearer({ boundTo });
      },
      B: bearer({ boundTo: 'else' }),
    };
    const proxy = await startProxyHarness({ upstream: upstream.url, tls: true, tokens });
    const alice = await issue(proxy.ca);
    boundTo = createHash('sha256').update(alice.der).digest('base64url');
    const client = createHttpsClient({ port: proxy.port, ca: proxy.ca.pem, as: alice });
    const send = (token: string) => client.getWithToken('/files/1', token);
    try {
      expect((await send('A')).status).toBe(200);
      expect((await send('B')).status).toBe(401);
      expect(proxy.notes).toMatchObject([
        {
          decision: 'forwarded',
          rule: '/files/**',
          clientId: 'report-runner',
          grantId: 'grant-1',
          upstream: 'default',
        },
        { decision: 'refused', reason: 'token_certificate_not_presented' },
      ]);
    } finally {
      client.close();
      await proxy.close();
      await upstream.close();
    }
  });

  test('the log distinguishes refused from failed requests', async () => {
    const proxy = await startProxyHarness({ upstream: 'http://127.0.0.1:1' });
    const get = (path: string) =>
      rawRequest(proxy.port, `GET ${path} HTTP/1.1\r\nHost: a.test\r\nAuthorization: Bearer A\r\n\r\n`);
    try {
      expect((await get('/files/1')).status).toBe(502);
      expect((await get('/admin/1')).status).toBe(403);
      expect(proxy.notes).toMatchObject([
        { decision: 'failed', reason: 'upstream_failed' },
        { decision: 'refused', reason: 'insufficient_scope: admin:manage' },
      ]);
    } finally {
      await proxy.close();
    }
  });

  test('when the revocation state of a token is unknown, the response is 503 and nothing is forwarded', async () => {
    const upstream = await startRecordingUpstream();
    const proxy = await startProxyHarness({
      upstream: upstream.url,
      revocations: {
        isRevoked: () => {
          throw new Fault('store_unavailable', 'too stale', { retryAfter: 7 });
        },
      },
    });
    try {
      const message = 'GET /files/1 HTTP/1.1\r\nHost: a.test\r\nAuthorization: Bearer A\r\n\r\n';
      const { status, head } = await rawRequest(proxy.port, message);
      expect(status).toBe(503);
      expect(head).toMatch(/retry-after: 7/i);
      expect(upstream.bytes()).toBe('');
    } finally {
      await proxy.close();
      await upstream.close();
    }
  });
});

describe('explain reports what the gateway does', () => {
  const explainPath = (path: string, options: Partial<Parameters<typeof explain>[1]> = {}) =>
    explain(
      {
        rules,
        publicUrl: 'https://gate.test',
        trustedIssuers: new Map(),
        isOwnAuthority: () => true,
        isServicePath: () => false,
        isForwardAuthPath: () => false,
      },
      { method: 'GET', path, host: 'gate.test', ...options },
    );

  test('which rule matches, what it requires, whether a scope suffices, and why', () => {
    expect(explainPath('/public/x')).toMatchObject({ verdict: 'public', requirement: 'public' });
    expect(explainPath('/files/%61')).toMatchObject({
      verdict: 'token_required',
      requirement: 'files:read',
      path: '/files/a',
    });
    expect(explainPath('/files/1', { scope: scope('files:read') })).toMatchObject({ verdict: 'allowed' });
    expect(explainPath('/files/1', { scope: scope('files:write') })).toMatchObject({
      verdict: 'forbidden',
      reason: 'the token lacks files:read',
    });
    expect(explainPath('/mine/1', { client: 'report-runner' })).toMatchObject({
      verdict: 'forbidden',
      reason: 'the rule is not open to report-runner',
    });
    expect(explainPath('/write/1', { scope: scope('files:write') })).toMatchObject({ verdict: 'no_rule' });
    expect(explainPath('/write/1').tried.at(-1)).toEqual({ rule: '/write/**', misfit: 'method' });
    expect(explainPath('/a/../b')).toMatchObject({
      verdict: 'invalid_request',
      reason: 'a dot segment in the path',
    });
  });

  test('the current scope of an integration limits the token', () => {
    const reduced = integration('report-runner', 'reports:read');
    expect(
      explainPath('/files/1', { scope: scope('files:read'), client: 'report-runner', integration: reduced }),
    ).toMatchObject({ verdict: 'forbidden', reason: 'the token lacks files:read' });
  });
});

test('a failed authorization is logged with the request id of the response', async () => {
  const proxy = await startProxyHarness({
    upstream: 'http://127.0.0.1:1',
    readAccessToken: () => Promise.reject(new Fault('store_unavailable', 'unreachable')),
  });
  try {
    const { status, body } = await rawRequest(
      proxy.port,
      'GET /files/a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer A\r\nConnection: close\r\n\r\n',
    );
    expect(status).toBe(503);
    const events = proxy.log.map((line) => JSON.parse(line) as Record<string, unknown>);
    expect(events.find(({ event }) => event === 'authorization_failed')).toMatchObject({
      level: 'error',
      request_id: (JSON.parse(body) as { request_id: string }).request_id,
    });
  } finally {
    await proxy.close();
  }
});
