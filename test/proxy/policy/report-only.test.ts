import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { bearer, NOW, type ProxyHarness, rule, scope, startProxyHarness } from '../../support/proxy-harness.ts';
import { rawRequest } from '../../support/raw-client.ts';
import { headerValues, type RecordingUpstream, startRecordingUpstream } from '../../support/recording-upstream.ts';

const RULES = [
  rule('/try/**', 'files:read', { reportOnly: true }),
  rule('/clients/**', 'files:read', { reportOnly: true, clients: ['somebody-else'] }),
  rule('/judged/**', 'files:read'),
];

const TOKENS = {
  A: bearer(),
  narrow: bearer({ scope: scope('reports:read') }),
  old: bearer({ expires: NOW }),
  revoked: bearer({ grantId: 'revoked' }),
  removed: bearer({ clientId: 'gone' }),
};

let upstream: RecordingUpstream;
let proxy: ProxyHarness;
beforeAll(async () => {
  upstream = await startRecordingUpstream();
  proxy = await startProxyHarness({
    rules: RULES,
    upstream: upstream.url,
    tokens: TOKENS,
    revocations: { isRevoked: ({ grantId }) => grantId === 'revoked' },
  });
});
afterAll(async () => {
  await proxy.close();
  await upstream.close();
});
beforeEach(() => upstream.reset());

const send = (path: string, headers: readonly string[]) =>
  rawRequest(
    proxy.port,
    [`GET ${path} HTTP/1.1`, 'Host: gate.test', 'X-Forwarded-User: root', ...headers, '', ''].join('\r\n'),
  );
const withToken = (token: string): string[] => [`Authorization: Bearer ${token}`];
const readIdentityHeaders = () => ({
  user: headerValues(upstream.requests[0], 'x-forwarded-user'),
  client: headerValues(upstream.requests[0], 'x-forwarded-client-id'),
  authorization: headerValues(upstream.requests[0], 'authorization'),
});
const NO_IDENTITY = { user: [], client: [], authorization: [] };
const ALICE = {
  user: ['local:{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}'],
  client: ['report-runner'],
  authorization: [],
};

describe('a report-only rule allows requests it would reject, and reports them', () => {
  test.each([
    ['no token', '/try/1', [], 'token_missing', NO_IDENTITY],
    ['another scheme', '/try/1', ['Authorization: Basic eDp5'], 'token_missing', NO_IDENTITY],
    ['a malformed token', '/try/1', ['Authorization: Bearer  A'], 'token_malformed', NO_IDENTITY],
    ['a forged token', '/try/1', withToken('forged'), 'token_not_authentic', NO_IDENTITY],
    ['an expired token', '/try/1', withToken('old'), 'token_expired', NO_IDENTITY],
    ['a revoked token', '/try/1', withToken('revoked'), 'token_revoked', NO_IDENTITY],
    ['a token of a removed integration', '/try/1', withToken('removed'), 'token_client_removed', NO_IDENTITY],
    ['too little scope', '/try/1', withToken('narrow'), 'insufficient_scope: files:read', ALICE],
    ['another client', '/clients/1', withToken('A'), 'client_not_allowed', ALICE],
  ])('%s', async (_what, path, headers, reason, identity) => {
    expect((await send(path, headers)).status).toBe(200);
    expect(proxy.notes.at(-1)).toMatchObject({ decision: 'would_refuse', reason });
    expect(readIdentityHeaders()).toEqual(identity);
  });

  test('requests it would allow anyway are not reported', async () => {
    expect((await send('/try/1', withToken('A'))).status).toBe(200);
    expect(proxy.notes.at(-1)).toMatchObject({ decision: 'forwarded' });
    expect(readIdentityHeaders()).toEqual(ALICE);
  });

  test.each([
    ['two tokens', '/try/1', [...withToken('A'), ...withToken('A')], 400],
    ['a token in the query', '/try/1?access_token=A', [], 400],
    ['a dot segment', '/try/../judged/1', [], 400],
    ['a WebSocket where none is allowed', '/try/1', ['Connection: Upgrade', 'Upgrade: websocket'], 403],
    ['another rule', '/judged/1', [], 401],
    ['no rule', '/nowhere', withToken('A'), 404],
  ])('%s is still refused', async (_what, path, headers, status) => {
    expect((await send(path, headers)).status).toBe(status);
    expect(proxy.notes.at(-1)).toMatchObject({ decision: 'refused' });
    expect(upstream.bytes()).toBe('');
  });
});
