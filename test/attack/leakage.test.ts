import { createHmac } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createLogger } from '../../src/observability/logger.ts';
import { deviceSteps, FORM } from '../support/device-steps.ts';
import { failing } from '../support/fault-injection.ts';
import { keysOf, openJwt, openRefresh } from '../support/forge.ts';
import { type House, openHouse, PASSWORD, type Reply, type TokenGrant } from '../support/house.ts';
import { issue } from '../support/pki.ts';
import { dumpStrings } from '../support/store-dump.ts';

/** Rows L01–L08. Everything is driven at log level debug, with secrets in the right places and in all the wrong ones. */
let house: House;
beforeAll(async () => {
  house = await openHouse((settings) => ({
    ...settings,
    upstreams: { ...settings.upstreams, dead: { url: 'http://127.0.0.1:1', timeouts: { connect: '500ms' } } },
    routes: [...(settings.routes ?? []), { path: '/dead/**', requires: 'any-token', upstream: 'dead' }],
  }));
});
afterAll(() => house.close());

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
    note(await house.post('/Authorize/Certificate', { client_id: 'report-runner', scope: secret }, { as }));
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

test('L01: no secret in any log line or in any answer that does not hand it out', async () => {
  const keys = keysOf(house);
  for (const { jwk } of keys.signing) tell('signing key', jwk.d);
  for (const { secret } of keys.sealing) tell('sealing key', secret);
  tell('admin token', readFileSync(join(house.folder, 'data', 'admin-token'), 'utf8').trim());
  for (let round = 0; round < 40; round += 1) {
    house.clock.advance(11);
    await drive();
  }
  expect(marks.size).toBeGreaterThan(300);
  expect(house.lines.length).toBeGreaterThan(2_000);
  expect(found(house.lines.join(''))).toEqual([]);
  expect(found(told.join('\n'))).toEqual([]);
});

test('L01: the search finds what it looks for', () => {
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

test('L02: secrets in the request line never reach a log, whatever their name there', async () => {
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

describe('L03: log injection', () => {
  const EVIL =
    'x\r\n{"event":"forged","audit":true}\n\u001b[2J\u001b]0;t\u0007\u0000\u007f\u009b31m\u2028\u2029\u0085end';
  /** A line is one line for every reader: no control character, no other line end. */
  const expectOneLine = (line: string): void => {
    expect(line.endsWith('\n')).toBe(true);
    expect(line.slice(0, -1)).not.toMatch(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]/);
  };

  test('L03: line ends and control characters in a client_id, a scope, a path, a header or a certificate stay escaped', async () => {
    const before = house.lines.length;
    await house.post('/Authorize/Token', { client_id: EVIL, refresh_token: 'x' });
    await house.post('/Authorize/Device', { client_id: EVIL, scope: EVIL });
    await house.post('/Authorize/Certificate', { client_id: EVIL, scope: EVIL }, { as: house.people.alice });
    await house.ask({ path: `/files/${encodeURIComponent(EVIL)}` });
    await house.ask({
      path: '/health',
      headers: { 'user-agent': 'a\u009b31m\u0085b', 'x-request-id': 'a\u009b31mb' },
    });
    const named = await issue(house.ca, { commonName: 'alice\r\n{"event":"forged"}\u001b[2J' });
    await house.post('/Authorize/Certificate', { client_id: 'report-runner', scope: 'files' }, { as: named });
    const lines = house.lines.slice(before);
    expect(lines.length).toBeGreaterThanOrEqual(6);
    for (const line of lines) expectOneLine(line);
    expect(house.log.slice(before).some(({ event }) => event === 'forged')).toBe(false);
  });

  test('L03: the same in the text form', () => {
    const lines: string[] = [];
    const log = createLogger({ level: 'debug', format: 'text', write: (line) => void lines.push(line) });
    log.info('request', { path: EVIL, list: [EVIL] });
    log.audit('grant_denied', { clientId: EVIL });
    expect(lines).toHaveLength(2);
    for (const line of lines) expectOneLine(line);
  });
});

describe('L04: the store', () => {
  test('L04: its files hold no token, no code and no key, and nothing in them opens anything', async () => {
    const own = await openHouse();
    try {
      const steps = deviceSteps(own);
      const grants: TokenGrant[] = [];
      for (let turn = 0; turn < 20; turn += 1) grants.push(await own.grant());
      const codes = await steps.ask();
      await steps.walk(codes);
      grants.push((await steps.exchange(codes.device_code)).json as unknown as TokenGrant);
      const pending = await steps.ask();
      const [revoked] = grants.splice(0, 1);
      await own.ask({
        path: '/authsvc/Revoke/Token',
        headers: { authorization: `Bearer ${revoked?.access_token}` },
      });
      const keys = keysOf(own);

      let dump: readonly string[] = [];
      await own.restart(() => {
        dump = dumpStrings(join(own.folder, 'data'), ['keys.json', 'admin-token']);
      });
      const text = dump.join('\n');
      const { grantId } = openRefresh(grants[0]?.refresh_token ?? '');
      expect(text).toContain(grantId);
      const secrets = [
        ...grants.flatMap((grant) => [
          openRefresh(grant.refresh_token).mac,
          ...openJwt(grant.access_token).parts.slice(1),
        ]),
        ...[codes, pending].flatMap(({ device_code, user_code }) => [
          device_code.slice(4),
          user_code,
          user_code.replace('-', ''),
        ]),
        ...keys.signing.map(({ jwk }) => jwk.d),
        ...keys.sealing.map(({ secret }) => secret),
        PASSWORD,
        'ghr_',
        'ghd_',
        'eyJ',
      ];
      for (const secret of secrets) expect(text.includes(secret), secret.slice(0, 6)).toBe(false);

      // Whoever has read it tries every word in it as a MAC, as a sealing key, as a device code.
      const words = [...new Set(text.match(/[A-Za-z0-9_-]{20,64}/g))].slice(0, 300);
      const kid = keys.sealing[0]?.kid ?? '';
      const body = `${kid}.${grantId}.1`;
      for (const word of words) {
        const made = createHmac('sha256', Buffer.from(word, 'base64url')).update(`refresh\n${body}`);
        for (const mac of [word.padEnd(43, 'A').slice(0, 43), made.digest('base64url')])
          expect((await own.refresh(`ghr_${body}.${mac}`)).status).toBe(400);
        expect((await steps.exchange(word)).json).toMatchObject({ Error: 'invalid_grant' });
        expect((await own.api('/files/1', word)).status).toBe(401);
      }
      expect((await own.refresh(grants[0]?.refresh_token ?? '')).status).toBe(200);
    } finally {
      await own.close();
    }
  });
});

describe('what strangers learn', () => {
  test('L05: an unknown client and a wrong one hear the same words', async () => {
    const { refresh_token } = await house.grant();
    const steps = deviceSteps(house);
    const codes = await steps.ask();
    const same = (replies: readonly Reply[]): void => {
      expect(new Set(replies.map(({ text }) => text)).size).toBe(1);
      expect(new Set(replies.map(({ reason, status }) => `${status} ${reason}`)).size).toBe(1);
    };
    same([
      await house.refresh(refresh_token, { client_id: 'nobody' }),
      await house.refresh(refresh_token, { client_id: 'other-app' }),
    ]);
    same([
      await steps.exchange(codes.device_code, 'nobody'),
      await steps.exchange(codes.device_code, 'other-app'),
    ]);
  });

  test('L05: no stack, no file name and no address of an upstream in any answer', async () => {
    const { access_token } = await house.grant();
    const replies = [
      await house.api('/dead/1', access_token),
      await failing(house.gateway.store.grants, 'read', 'does not happen', () => house.refresh('x')),
      await house.api('/nowhere', access_token),
      await house.ask({ path: '/files/%zz' }),
    ];
    expect(replies[0]?.status).toBe(502);
    for (const reply of [...replies.map(({ text, headers }) => text + JSON.stringify(headers)), ...refusals])
      expect(reply).not.toMatch(/127\.0\.0\.1|ECONNREFUSED|\bat .*\.ts|node:internal|\/src\/|lmdb/i);
  });

  test('L06: every answer with a token has Cache-Control: no-store and Pragma: no-cache', async () => {
    const asked = { client_id: 'report-runner', scope: 'files' };
    const certificate = await house.post('/Authorize/Certificate', asked, { as: house.people.alice });
    const steps = deviceSteps(house);
    const device = await house.post('/Authorize/Device', asked);
    const codes = device.json as unknown as Awaited<ReturnType<typeof steps.ask>>;
    await steps.confirm(codes);
    const replies = [
      certificate,
      device,
      await house.refresh(String(certificate.json['refresh_token'])),
      await steps.exchange(codes.device_code),
    ];
    for (const { status, headers } of replies) {
      expect(status).toBe(200);
      expect(headers).toMatchObject({ 'cache-control': 'no-store', pragma: 'no-cache' });
    }
  });

  test('L07: no answer of ours names the server’s software; pages send no referrer on', async () => {
    const page = await house.ask({ path: '/authsvc/device' });
    const replies = [
      page,
      await house.refresh('x'),
      await house.ask({ path: '/files/1' }),
      await house.ask({ path: '/authsvc/x' }),
      await house.ask({ path: '//' }),
    ];
    for (const { headers, text } of replies) {
      expect(headers).not.toHaveProperty('server');
      expect(headers).not.toHaveProperty('x-powered-by');
      expect(headers).not.toHaveProperty('via');
      expect(text).not.toMatch(/node\.?js|undici|lmdb/i);
    }
    expect(page.headers['referrer-policy']).toBe('no-referrer');
  });
});

describe('L08: comparing secrets', () => {
  const sources = readdirSync('src', { recursive: true, encoding: 'utf8' }).filter((name) =>
    name.endsWith('.ts'),
  );
  const read = (name: string): string => readFileSync(join('src', name), 'utf8');

  test('L08: MACs, password tags and form tokens are compared by timingSafeEqual, nowhere by ===', () => {
    for (const name of [
      'tokens/refresh-token.ts',
      'tokens/sealer.ts',
      'confirm/session.ts',
      'identity/passwords.ts',
    ])
      expect(read(name), name).toMatch(/timingSafeEqual\(/);
    const comparison =
      /\b(?:mac|seal|expected|formToken|adminToken|password)\b[^\n;]*(?:===|!==)(?!\s*undefined)|(?:===|!==)\s*(?:mac|seal|expected|formToken|adminToken|password)\b/;
    const suspects = sources.flatMap((name) =>
      read(name)
        .split('\n')
        .filter(
          (line) =>
            comparison.test(line) &&
            !/typeof|^\s*(?:\/\/|\*|\/\*)|password [!=]== ''|\.length [!=]==/.test(line),
        )
        .map((line) => `${name}: ${line.trim()}`),
    );
    expect(suspects).toEqual([]);
  });

  test('L08: a MAC that is wrong in its first or in its last character is refused in the same words', async () => {
    const { refresh_token } = await house.grant();
    const { kid, grantId, generation, mac } = openRefresh(refresh_token);
    const other = (char = ''): string => (char === 'A' ? 'B' : 'A');
    const replies = [`${other(mac[0])}${mac.slice(1)}`, `${mac.slice(0, -1)}${other(mac.at(-1))}`].map(
      (wrong) => house.refresh(`ghr_${kid}.${grantId}.${generation}.${wrong}`),
    );
    const [first, last] = await Promise.all(replies);
    expect(first?.status).toBe(400);
    expect(first?.text).toBe(last?.text);
  });
});
