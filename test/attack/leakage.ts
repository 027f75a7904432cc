import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createDeviceClient, FORM } from '../support/device-client.ts';
import { withFailure } from '../support/fault-injection.ts';
import { recordFigures } from '../support/figures.ts';
import { decodeJwt, loadKeyring, splitRefreshToken } from '../support/forged-tokens.ts';
import { PASSWORD, type Reply, startGateway, type TestGateway, type TokenGrant } from '../support/test-gateway.ts';

/** Rows L01, L02 and L05 at log level debug, with secrets sent both where they belong and where they do not. */
let gateway: TestGateway;

/** Sixteen characters identify a secret and cannot occur by chance. */
const MARK = 16;
const marks = new Map<string, string>();
const recordSecrets = (what: string, ...secrets: readonly string[]): void => {
  for (const secret of secrets) {
    marks.set(secret.slice(0, MARK), what);
    marks.set(secret.slice(-MARK), what);
  }
};
const recordGrant = (grant: TokenGrant): TokenGrant => {
  const [, payload, signature] = decodeJwt(grant.access_token).parts;
  // All tokens of a gateway begin with the same claims; only the end of the payload is unique.
  marks.set(payload.slice(-MARK), 'access token');
  recordSecrets('access token', signature);
  recordSecrets('refresh token', splitRefreshToken(grant.refresh_token).mac);
  return grant;
};

/** Finds the secrets that a text contains, completely or in part. */
function findSecrets(text: string): readonly string[] {
  const hits: string[] = [];
  for (const [run] of text.matchAll(/[A-Za-z0-9_+/-]{8,}/g))
    for (let at = 0; at + MARK <= run.length; at += 1) {
      const what = marks.get(run.slice(at, at + MARK));
      if (what !== undefined)
        hits.push(`${what}: …${text.slice(Math.max(0, text.indexOf(run) - 60), text.indexOf(run))}`);
    }
  return [...new Set(hits)];
}

const recordedReplies: string[] = [];
const refusals: string[] = [];
/** Records a response that must not contain a secret: every response except those that issue one. */
const recordReply = (reply: Reply): Reply => {
  const output = [reply.reason, JSON.stringify(reply.headers), reply.text];
  recordedReplies.push(...output);
  if (reply.status >= 400) refusals.push(...output);
  return reply;
};

async function exerciseGateway(): Promise<void> {
  const steps = createDeviceClient(gateway);
  const grant = recordGrant(await gateway.grant());
  const next = recordGrant((await gateway.refresh(grant.refresh_token)).json as unknown as TokenGrant);
  const codes = await steps.requestCodes();
  recordSecrets('device code', codes.device_code.slice(4));
  const { access_token: access, refresh_token: refresh } = next;
  const secrets = [access, refresh, codes.device_code];

  // Secrets where they belong.
  recordReply(await gateway.api('/files/1', access));
  recordReply(await gateway.api('/reports/1', access));
  recordReply(await gateway.api('/nowhere', access));
  recordReply(await gateway.api('/dead/1', access));
  recordReply(await steps.exchange(codes.device_code));
  recordReply(await steps.exchange(codes.device_code, 'other-app'));
  recordReply(await gateway.refresh(refresh, { client_id: 'other-app' }));
  recordReply(
    await gateway.request({
      path: '/authsvc/Authorize/Verify',
      headers: { authorization: `Bearer ${access}` },
    }),
  );

  // Secrets where they do not belong.
  for (const secret of secrets) {
    const as = gateway.users.alice;
    recordReply(await gateway.post('/Authorize/Token', { client_id: secret, refresh_token: 'x' }));
    recordReply(await gateway.refresh(`${secret}x`));
    recordReply(await gateway.refresh('x', { client_id: secret, grant_type: secret }));
    recordReply(
      await gateway.post('/Authorize/Token', {
        client_id: 'report-runner',
        device_code: secret,
        grant_type: secret,
      }),
    );
    recordReply(await gateway.post('/Authorize/Certificate', { client_id: secret, scope: 'files' }, { as }));
    const body = { client_id: 'report-runner', scope: secret };
    const scopeReply = await gateway.post('/Authorize/Certificate', body, { as });
    // `invalid_scope` returns the excess scope in lower case to the client that requested it.
    const withoutScope = (text: string): string => text.replaceAll(secret.toLowerCase(), '');
    recordReply({
      ...scopeReply,
      reason: withoutScope(scopeReply.reason),
      text: withoutScope(scopeReply.text),
    });
    recordReply(await gateway.post('/Authorize/Device', { client_id: secret, scope: 'files' }));
    recordReply(await gateway.post(`/Authorize/${secret}`, {}));
    recordReply(
      await gateway.request({
        path: '/authsvc/Authorize/Token',
        method: 'POST',
        headers: { 'content-type': FORM },
        body: `${secret}=1&${secret}=2`,
      }),
    );
    recordReply(
      await gateway.request({
        path: '/authsvc/Authorize/Token',
        method: 'POST',
        headers: { 'content-type': secret },
        body: secret,
      }),
    );
    for (const path of [
      `/files/${secret}`,
      `/files/x${secret}`,
      `/files/${secret.replaceAll('.', '%2E')}`,
      `/${secret}/../x`,
      `/files/1?access_token=${secret}`,
      `/authsvc/Revoke/Token?token=${secret}`,
      `/authsvc/device?user_code=${secret}`,
      `/files/1?device_code=${secret}&refresh_token=${secret}`,
    ])
      recordReply(await gateway.request({ path }));
    for (const headers of [
      { authorization: secret },
      { authorization: `Basic ${secret}` },
      { authorization: `Bearer ${secret}, Bearer ${secret}` },
      { authorization: `Bearer ${secret}x` },
      { 'x-request-id': secret },
      { traceparent: secret },
      { 'user-agent': secret, referer: `https://x/?t=${secret}`, 'x-forwarded-for': secret },
      { 'x-forwarded-user': secret, 'x-original-url': `/${secret}` },
      { expect: secret },
    ])
      recordReply(await gateway.request({ path: '/files/1', headers }));
  }

  // Internal errors.
  const { store } = gateway.server;
  const createQuotingError = () => new Error(`could not write ${refresh} for ${access} of ${codes.device_code}`);
  recordReply(
    await withFailure(store.grants, 'read', 'not executed', () => gateway.refresh(refresh), createQuotingError),
  );
  recordReply(
    await withFailure(
      store.devices,
      'read',
      'not executed',
      () => steps.exchange(codes.device_code),
      createQuotingError,
    ),
  );
  recordReply(await gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${access}` } }));
  recordReply(await gateway.refresh(refresh));
}

export function testLeakage(rounds: number): void {
  beforeAll(async () => {
    gateway = await startGateway((settings) => ({
      ...settings,
      upstreams: {
        ...settings.upstreams,
        dead: { url: 'http://127.0.0.1:1', timeouts: { connect: '500ms' } },
      },
      routes: [...(settings.routes ?? []), { path: '/dead/**', requires: 'any-token', upstream: 'dead' }],
    }));
  });
  afterAll(() => gateway?.close());

  test(
    'L01: no secret is in a log line, or in a response that does not issue it',
    async () => {
      const keys = loadKeyring(gateway);
      for (const { jwk } of keys.signing) recordSecrets('signing key', jwk.d);
      for (const { secret } of keys.sealing) recordSecrets('sealing key', secret);
      recordSecrets('admin token', readFileSync(join(gateway.folder, 'data', 'admin-token'), 'utf8').trim());
      for (let round = 0; round < rounds; round += 1) {
        gateway.clock.advance(11);
        await exerciseGateway();
      }
      expect(marks.size).toBeGreaterThan(7 * rounds);
      expect(gateway.logLines.length).toBeGreaterThan(50 * rounds);
      expect(findSecrets(gateway.logLines.join(''))).toEqual([]);
      expect(findSecrets(recordedReplies.join('\n'))).toEqual([]);
      recordFigures('leaked-secrets', {
        'secrets searched for': marks.size,
        'log lines': gateway.logLines.length,
        responses: recordedReplies.length / 3,
        found: 0,
      });
    },
    60_000 + rounds * 2_000,
  );

  test('L01: the search finds a secret if there is one', () => {
    const [mark = ''] = marks.keys();
    expect(findSecrets(`{"path":"/x/abc${mark}def"}`)).toHaveLength(1);
  });

  test('L01: passwords, user codes, session cookies and form tokens of the pages are in no log line', async () => {
    const steps = createDeviceClient(gateway);
    const before = gateway.logLines.length;
    const secret = 'Tr0ub4dor and 3 secrets';
    const codes = await steps.requestCodes();
    await expect(steps.decideInBrowser(codes, { password: secret })).rejects.toThrow(/no form/);
    // A password in the user name field, and in the code field.
    await expect(steps.decideInBrowser(codes, { userName: secret, password: 'alice' })).rejects.toThrow(/no form/);
    await expect(steps.decideInBrowser({ ...codes, user_code: secret })).rejects.toThrow(/no form/);
    await steps.decideInBrowser(codes);
    const lines = gateway.logLines.slice(before).join('');
    expect(lines).toContain('sign_in_failed');
    for (const text of [
      secret,
      'Tr0ub4dor',
      PASSWORD,
      codes.user_code,
      codes.user_code.replace('-', ''),
      codes.user_code.toLowerCase(),
      'ghs_',
      '__Host-',
      'form_token',
      '$argon2id',
    ])
      expect(lines, text).not.toContain(text);
  });

  test('L02: secrets in a query never reach the log, whatever the parameter name', async () => {
    const before = gateway.logLines.length;
    for (const name of ['access_token', 'device_code', 'user_code', 'refresh_token', 'anything', 'ACCESS%5FTOKEN'])
      for (const path of ['/files/1', '/health', '/authsvc/Authorize/Token', '/authsvc/device', '/nowhere', '//bad'])
        await gateway.request({ path: `${path}?${name}=s3cr3t-in-the-query` });
    const lines = gateway.logLines.slice(before).join('');
    expect(lines).toContain('"path":"/files/1"');
    expect(lines).not.toContain('s3cr3t');
  });

  test('L05: no error response contains a stack trace, a file name or an upstream address', () => {
    expect(refusals.length).toBeGreaterThan(25 * rounds);
    for (const output of refusals)
      expect(output).not.toMatch(/127\.0\.0\.1|ECONNREFUSED|\bat .*\.ts|node:internal|\/src\/|\blmdb\b/i);
  });
}
