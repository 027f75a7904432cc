import { createHash } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { compileRules } from '../../src/domain/rule-matcher.ts';
import { Fault } from '../../src/ports/fault.ts';
import { type Admission, type AdmissionDesk, admit } from '../../src/proxy/admission.ts';
import { readCredentials } from '../../src/proxy/credentials.ts';
import { explain } from '../../src/proxy/explain.ts';
import { challenge } from '../../src/proxy/refuse.ts';
import { httpsClient } from '../support/https-client.ts';
import { issue } from '../support/pki.ts';
import { bearer, integration, NOW, proxyHarness, RULES, rule, scope } from '../support/proxy-harness.ts';
import { rawRequest } from '../support/raw-client.ts';
import { recordingUpstream } from '../support/recording-upstream.ts';

const rules = compileRules([
  ...RULES,
  rule('/mine/**', 'any-token', { clients: ['other'] }),
  rule('/ours/**', 'files:read', { clients: ['other'] }),
  rule('/write/**', 'files:write', { methods: ['POST'] }),
]);

const desk = (options: Partial<AdmissionDesk> = {}): AdmissionDesk => ({
  rules,
  readAccess: (token) => (token === 'A' ? bearer() : undefined),
  revocations: { isRevoked: () => false },
  integrationOf: (clientId) =>
    clientId === 'report-runner' ? integration(clientId, 'files:read,write') : undefined,
  isOwnAuthority: () => false,
  ...options,
});

async function reason(
  at: AdmissionDesk,
  url: string,
  credentials?: string,
  certificate?: string,
  accepted = true,
): Promise<string> {
  const admission: Admission = await admit(at, {
    method: 'GET',
    url,
    host: 'gate.test',
    credentials: readCredentials(credentials === undefined ? [] : [credentials]),
    certificate: () => (certificate === undefined ? undefined : { fingerprint: certificate, accepted }),
    now: NOW,
  });
  if (admission.kind !== 'refused') return admission.kind;
  const { refusal } = admission;
  return refusal.reason === 'token_invalid' ? refusal.why : refusal.reason;
}

const withBearer = (options: Parameters<typeof bearer>[0]): AdmissionDesk => {
  const held = bearer(options);
  return desk({ readAccess: () => held });
};

describe('who may pass', () => {
  test('without a token every protected or unknown path is rejected for the missing token', async () => {
    for (const url of ['/files/1', '/admin', '/nowhere'])
      expect(await reason(desk(), url)).toBe('token_missing');
    expect(await reason(desk(), '/public/x')).toBe('admitted');
  });

  test('with a token the rules decide: no rule is 404, too little scope is 403', async () => {
    expect(await reason(desk(), '/files/1', 'Bearer A')).toBe('admitted');
    expect(await reason(desk(), '/nowhere', 'Bearer A')).toBe('no_rule');
    expect(await reason(desk(), '/admin', 'Bearer A')).toBe('scope_unmet');
    expect(await reason(desk(), '/nowhere', 'Bearer B')).toBe('not_authentic');
  });

  test('T09 a token works before it expires, and not at that moment', async () => {
    expect(await reason(withBearer({ expires: NOW + 0.001 }), '/files/1', 'Bearer A')).toBe('admitted');
    expect(await reason(withBearer({ expires: NOW }), '/files/1', 'Bearer A')).toBe('expired');
  });

  test('T10 a clock may be ahead by five seconds', async () => {
    expect(await reason(withBearer({ issuedAt: NOW + 5 }), '/files/1', 'Bearer A')).toBe('admitted');
    expect(await reason(withBearer({ issuedAt: NOW + 6 }), '/files/1', 'Bearer A')).toBe('not_yet_valid');
  });

  test('T17 a bound token needs its certificate on the connection', async () => {
    const bound = withBearer({ boundTo: 'print' });
    expect(await reason(bound, '/files/1', 'Bearer A')).toBe('certificate_not_presented');
    expect(await reason(bound, '/files/1', 'Bearer A', 'other')).toBe('certificate_not_presented');
    expect(await reason(bound, '/files/1', 'Bearer A', 'print')).toBe('admitted');
    expect(await reason(bound, '/files/1', 'Bearer A', 'print', false)).toBe('certificate_refused');
  });

  test('T18 a rule for another integration is closed to this one', async () => {
    expect(await reason(desk(), '/mine/1', 'Bearer A')).toBe('client_not_admitted');
    expect(await reason(desk(), '/ours/1', 'Bearer A')).toBe('client_not_admitted');
  });

  test('T19 revocation, a removed integration and a narrowed one count at once, for a remembered token', async () => {
    const held = bearer();
    let revoked = false;
    let found: ReturnType<typeof integration> | undefined = integration('report-runner', 'files:read');
    const at = desk({
      readAccess: () => held,
      revocations: { isRevoked: () => revoked },
      integrationOf: () => found,
    });
    expect(await reason(at, '/files/1', 'Bearer A')).toBe('admitted');
    found = integration('report-runner', 'files:write');
    expect(await reason(at, '/files/1', 'Bearer A')).toBe('scope_unmet');
    found = undefined;
    expect(await reason(at, '/files/1', 'Bearer A')).toBe('client_removed');
    revoked = true;
    expect(await reason(at, '/files/1', 'Bearer A')).toBe('revoked');
  });

  test('a remembered token is judged without waiting, a new one after it was read', async () => {
    const question = {
      method: 'GET',
      url: '/files/1',
      host: 'gate.test',
      credentials: readCredentials(['Bearer A']),
      certificate: () => undefined,
      now: NOW,
    };
    expect(admit(desk(), question)).not.toBeInstanceOf(Promise);
    const slow = admit(desk({ readAccess: () => Promise.resolve(bearer()) }), question);
    expect(slow).toBeInstanceOf(Promise);
    expect(await slow).toMatchObject({ kind: 'admitted' });
  });

  test('a challenge names scope and quotes what it quotes', () => {
    expect(challenge({ reason: 'scope_unmet', scope: 'files:read' }, 'a "b" \\c')).toBe(
      'Bearer realm="a \\"b\\" \\\\c", error="insufficient_scope", error_description="The access token does not carry the scope that is required here.", scope="files:read"',
    );
    expect(challenge({ reason: 'no_rule' }, 'x')).toBeUndefined();
  });
});

describe('over the wire', () => {
  test('a token bound to a certificate is compared with the certificate of the connection', async () => {
    const upstream = await recordingUpstream();
    let boundTo = '';
    const tokens = {
      get A() {
        return bearer({ boundTo });
      },
      B: bearer({ boundTo: 'else' }),
    };
    const gate = await proxyHarness({ upstream: upstream.url, tls: true, tokens });
    const alice = await issue(gate.ca);
    boundTo = createHash('sha256').update(alice.der).digest('base64url');
    const client = httpsClient({ port: gate.port, ca: gate.ca.pem, as: alice });
    const ask = (token: string) => client.bearer('/files/1', token);
    try {
      expect((await ask('A')).status).toBe(200);
      expect((await ask('B')).status).toBe(401);
      expect(gate.notes).toMatchObject([
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
      await gate.close();
      await upstream.close();
    }
  });

  test('when nobody can say whether a token was revoked, the answer is 503 and nothing is forwarded', async () => {
    const upstream = await recordingUpstream();
    const gate = await proxyHarness({
      upstream: upstream.url,
      revocations: {
        isRevoked: () => {
          throw new Fault('store_unavailable', 'too stale', { retryAfter: 7 });
        },
      },
    });
    try {
      const message = 'GET /files/1 HTTP/1.1\r\nHost: a.test\r\nAuthorization: Bearer A\r\n\r\n';
      const { status, head } = await rawRequest(gate.port, message);
      expect(status).toBe(503);
      expect(head).toMatch(/retry-after: 7/i);
      expect(upstream.bytes()).toBe('');
    } finally {
      await gate.close();
      await upstream.close();
    }
  });
});

describe('explain tells what the gateway does', () => {
  const told = (path: string, options: Partial<Parameters<typeof explain>[1]> = {}) =>
    explain(
      { rules, isOwnAuthority: () => true, isServicePath: () => false, isCheck: () => false },
      { method: 'GET', path, host: 'gate.test', ...options },
    );

  test('which rule matches, what it asks, whether a scope passes, and why', () => {
    expect(told('/public/x')).toMatchObject({ verdict: 'public', asks: 'public' });
    expect(told('/files/%61')).toMatchObject({
      verdict: 'needs_token',
      asks: 'files:read',
      path: '/files/a',
    });
    expect(told('/files/1', { scope: scope('files:read') })).toMatchObject({ verdict: 'passes' });
    expect(told('/files/1', { scope: scope('files:write') })).toMatchObject({
      verdict: 'insufficient',
      why: 'the token lacks files:read',
    });
    expect(told('/mine/1', { client: 'report-runner' })).toMatchObject({
      verdict: 'insufficient',
      why: 'the rule is not open to report-runner',
    });
    expect(told('/write/1', { scope: scope('files:write') })).toMatchObject({ verdict: 'no_rule' });
    expect(told('/write/1').tried.at(-1)).toEqual({ rule: '/write/**', misfit: 'method' });
    expect(told('/a/../b')).toMatchObject({ verdict: 'bad_path', why: 'a dot segment in the path' });
  });

  test('an integration that was narrowed limits the token', () => {
    const narrowed = integration('report-runner', 'reports:read');
    expect(
      told('/files/1', { scope: scope('files:read'), client: 'report-runner', integration: narrowed }),
    ).toMatchObject({ verdict: 'insufficient', why: 'the token lacks files:read' });
  });
});

test('a request that could not be judged is in the log under the id its caller was told', async () => {
  const gate = await proxyHarness({
    upstream: 'http://127.0.0.1:1',
    readAccess: () => Promise.reject(new Fault('store_unavailable', 'away')),
  });
  try {
    const { status, body } = await rawRequest(
      gate.port,
      'GET /files/a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer A\r\nConnection: close\r\n\r\n',
    );
    expect(status).toBe(503);
    const told = gate.log.map((line) => JSON.parse(line) as Record<string, unknown>);
    expect(told.find(({ event }) => event === 'admission_failed')).toMatchObject({
      level: 'error',
      request_id: (JSON.parse(body) as { request_id: string }).request_id,
    });
  } finally {
    await gate.close();
  }
});
