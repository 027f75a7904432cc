import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { deviceSteps, FORM } from '../support/device-steps.ts';
import { failing } from '../support/fault-injection.ts';
import { keysOf, openJwt, openRefresh } from '../support/forge.ts';
import { type House, openHouse, PASSWORD, type Reply, type TokenGrant } from '../support/house.ts';

/** Rows L01, L02 and L05, at log level debug, with secrets in the right places and in all the wrong ones. */
let house: House;

/** Sixteen characters of a secret are enough to know it by, and too many to meet by chance. */
const MARK = 16;
const marks = new Map<string, string>();
const tell = (what: string, ...secrets: readonly string[]): void => {
  for (const secret of secrets) {
    marks.set(secret.slice(0, MARK), what);
    marks.set(secret.slice(-MARK), what);
  }
};
const tellGrant = (grant: TokenGrant): TokenGrant => {
  const [, payload, signature] = openJwt(grant.access_token).parts;
  // Claims that every token of a house begins with are no secret; a payload's end is one's own.
  marks.set(payload.slice(-MARK), 'access token');
  tell('access token', signature);
  tell('refresh token', openRefresh(grant.refresh_token).mac);
  return grant;
};

/** Which secrets stand in a text, whole or in part. */
function found(text: string): readonly string[] {
  const hits: string[] = [];
  for (const [run] of text.matchAll(/[A-Za-z0-9_+/-]{8,}/g))
    for (let at = 0; at + MARK <= run.length; at += 1) {
      const what = marks.get(run.slice(at, at + MARK));
      if (what !== undefined)
        hits.push(`${what}: …${text.slice(Math.max(0, text.indexOf(run) - 60), text.indexOf(run))}`);
    }
  return [...new Set(hits)];
}

const told: string[] = [];
const refusals: string[] = [];
/** Answers that must not hold any secret: all but those that hand one out. */
const note = (reply: Reply): Reply => {
  const said = [reply.reason, JSON.stringify(reply.headers), reply.text];
  told.push(...said);
  if (reply.status >= 400) refusals.push(...said);
  return reply;
};

async function drive(): Promise<void> {
  const steps = deviceSteps(house);
  const grant = tellGrant(await house.grant());
  const next = tellGrant((await house.refresh(grant.refresh_token)).json as unknown as TokenGrant);
  const codes = await steps.ask();
  tell('device code', codes.device_code.slice(4));
  const { access_token: access, refresh_token: refresh } = next;
  const secrets = [access, refresh, codes.device_code];

  // In the right places.
  note(await house.api('/files/1', access));
  note(await house.api('/reports/1', access));
  note(await house.api('/nowhere', access));
  note(await house.api('/dead/1', access));
  note(await steps.exchange(codes.device_code));
  note(await steps.exchange(codes.device_code, 'other-app'));
  note(await house.refresh(refresh, { client_id: 'other-app' }));
  note(
    await house.ask({ path: '/authsvc/Authorize/Verify', headers: { authorization: `Bearer ${access}` } }),
  );

  // In the wrong ones.
  for (const secret of secrets) {
    const as = house.people.alice;
    note(await house.post('/Authorize/Token', { client_id: secret, refresh_token: 'x' }));
    note(await house.refresh(`${secret}x`));
    note(await house.refresh('x', { client_id: secret, grant_type: secret }));
    note(
      await house.post('/Authorize/Token', {
        client_id: 'report-runner',
        device_code: secret,
        grant_type: secret,
      }),
    );
    note(await house.post('/Authorize/Certificate', { client_id: secret, scope: 'files' }, { as }));
    const asked = { client_id: 'report-runner', scope: secret };
    const excess = await house.post('/Authorize/Certificate', asked, { as });
    // `invalid_scope` names the excess in lower case, to the client that asked for it.
    note({ ...excess, text: excess.text.replaceAll(secret.toLowerCase(), '') });
    note(await house.post('/Authorize/Device', { client_id: secret, scope: 'files' }));
    note(await house.post(`/Authorize/${secret}`, {}));
    note(
      await house.ask({
        path: '/authsvc/Authorize/Token',
        method: 'POST',
        headers: { 'content-type': FORM },
        body: `${secret}=1&${secret}=2`,
      }),
    );
    note(
      await house.ask({
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
      note(await house.ask({ path }));
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
      note(await house.ask({ path: '/files/1', headers }));
  }

  // When we fail.
  const { store } = house.gateway;
  const quoting = () => new Error(`could not write ${refresh} for ${access} of ${codes.device_code}`);
  note(await failing(store.grants, 'read', 'does not happen', () => house.refresh(refresh), quoting));
  note(
    await failing(store.devices, 'read', 'does not happen', () => steps.exchange(codes.device_code), quoting),
  );
  note(await house.ask({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${access}` } }));
  note(await house.refresh(refresh));
}

export function testLeakage(rounds: number): void {
  beforeAll(async () => {
    house = await openHouse((settings) => ({
      ...settings,
      upstreams: {
        ...settings.upstreams,
        dead: { url: 'http://127.0.0.1:1', timeouts: { connect: '500ms' } },
      },
      routes: [...(settings.routes ?? []), { path: '/dead/**', requires: 'any-token', upstream: 'dead' }],
    }));
  });
  afterAll(() => house?.close());

  test('L01: no secret is in a log line, or in a response that does not issue it', async () => {
    const keys = keysOf(house);
    for (const { jwk } of keys.signing) tell('signing key', jwk.d);
    for (const { secret } of keys.sealing) tell('sealing key', secret);
    tell('admin token', readFileSync(join(house.folder, 'data', 'admin-token'), 'utf8').trim());
    for (let round = 0; round < rounds; round += 1) {
      house.clock.advance(11);
      await drive();
    }
    expect(marks.size).toBeGreaterThan(7 * rounds);
    expect(house.lines.length).toBeGreaterThan(50 * rounds);
    expect(found(house.lines.join(''))).toEqual([]);
    expect(found(told.join('\n'))).toEqual([]);
  });

  test('L01: the search finds a secret that is there', () => {
    const [mark = ''] = marks.keys();
    expect(found(`{"path":"/x/abc${mark}def"}`)).toHaveLength(1);
  });

  test('L01: passwords, user codes, session cookies and form tokens of the pages are in no log line', async () => {
    const steps = deviceSteps(house);
    const before = house.lines.length;
    const secret = 'Tr0ub4dor and 3 secrets';
    const codes = await steps.ask();
    await expect(steps.walk(codes, { password: secret })).rejects.toThrow(/no form/);
    // A password in the field for the name, and in the field for the code.
    await expect(steps.walk(codes, { userName: secret, password: 'alice' })).rejects.toThrow(/no form/);
    await expect(steps.walk({ ...codes, user_code: secret })).rejects.toThrow(/no form/);
    await steps.walk(codes);
    const lines = house.lines.slice(before).join('');
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

  test('L02: secrets in a query never reach the log, whatever the parameter is called', async () => {
    const before = house.lines.length;
    for (const name of [
      'access_token',
      'device_code',
      'user_code',
      'refresh_token',
      'anything',
      'ACCESS%5FTOKEN',
    ])
      for (const path of [
        '/files/1',
        '/health',
        '/authsvc/Authorize/Token',
        '/authsvc/device',
        '/nowhere',
        '//bad',
      ])
        await house.ask({ path: `${path}?${name}=s3cr3t-in-the-query` });
    const lines = house.lines.slice(before).join('');
    expect(lines).toContain('"path":"/files/1"');
    expect(lines).not.toContain('s3cr3t');
  });

  test('L05: no error response contains a stack trace, a file name or an upstream address', () => {
    expect(refusals.length).toBeGreaterThan(25 * rounds);
    for (const said of refusals)
      expect(said).not.toMatch(/127\.0\.0\.1|ECONNREFUSED|\bat .*\.ts|node:internal|\/src\/|\blmdb\b/i);
  });
}
