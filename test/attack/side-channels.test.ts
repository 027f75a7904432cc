import { createHmac } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createLogger } from '../../src/observability/logger.ts';
import { createDeviceClient } from '../support/device-client.ts';
import { decodeJwt, loadKeyring, splitRefreshToken } from '../support/forged-tokens.ts';
import { issue } from '../support/pki.ts';
import { dumpStrings } from '../support/store-dump.ts';
import { PASSWORD, type Reply, startGateway, type TestGateway, type TokenGrant } from '../support/test-gateway.ts';

/** Rows L03–L08: information leaked by log lines, store files, responses and comparisons. */
let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway.close());

describe('L03: log injection', () => {
  const EVIL =
    'x\r\n{"event":"forged","audit":true}\n\u001b[2J\u001b]0;t\u0007\u0000\u007f\u009b31m\u2028\u2029\u0085end';
  /** Expects a single line for any parser: no control characters and no other line terminators. */
  const expectOneLine = (line: string): void => {
    expect(line.endsWith('\n')).toBe(true);
    expect(line.slice(0, -1)).not.toMatch(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]/);
  };

  test('L03: line breaks and control characters in a client_id, a scope, a path, a header or a certificate stay escaped', async () => {
    const before = gateway.logLines.length;
    await gateway.post('/Authorize/Token', { client_id: EVIL, refresh_token: 'x' });
    await gateway.post('/Authorize/Device', { client_id: EVIL, scope: EVIL });
    await gateway.post('/Authorize/Certificate', { client_id: EVIL, scope: EVIL }, { as: gateway.users.alice });
    await gateway.request({ path: `/files/${encodeURIComponent(EVIL)}` });
    await gateway.request({
      path: '/health',
      headers: { 'user-agent': 'a\u009b31m\u0085b', 'x-request-id': 'a\u009b31mb' },
    });
    const malicious = await issue(gateway.ca, { commonName: 'alice\r\n{"event":"forged"}\u001b[2J' });
    await gateway.post('/Authorize/Certificate', { client_id: 'report-runner', scope: 'files' }, { as: malicious });
    const lines = gateway.logLines.slice(before);
    expect(lines.length).toBeGreaterThanOrEqual(6);
    for (const line of lines) expectOneLine(line);
    expect(gateway.log.slice(before).some(({ event }) => event === 'forged')).toBe(false);
  });

  test('L03: the same in the text format', () => {
    const lines: string[] = [];
    const log = createLogger({ level: 'debug', format: 'text', write: (line) => void lines.push(line) });
    log.info('request', { path: EVIL, list: [EVIL] });
    log.audit('grant_denied', { clientId: EVIL });
    expect(lines).toHaveLength(2);
    for (const line of lines) expectOneLine(line);
  });
});

describe('L04: the store', () => {
  test('L04: the files contain no token, code or key, and no string in them is accepted as one', async () => {
    const other = await startGateway();
    try {
      const steps = createDeviceClient(other);
      const grants: TokenGrant[] = [];
      for (let attempt = 0; attempt < 20; attempt += 1) grants.push(await other.grant());
      const codes = await steps.requestCodes();
      await steps.decideInBrowser(codes);
      grants.push((await steps.exchange(codes.device_code)).json as unknown as TokenGrant);
      const pending = await steps.requestCodes();
      const [revoked] = grants.splice(0, 1);
      await other.request({
        path: '/authsvc/Revoke/Token',
        headers: { authorization: `Bearer ${revoked?.access_token}` },
      });
      const keys = loadKeyring(other);

      let dump: readonly string[] = [];
      await other.restart(() => {
        dump = dumpStrings(join(other.folder, 'data'), ['keys.json', 'admin-token']);
      });
      const text = dump.join('\n');
      const { grantId } = splitRefreshToken(grants[0]?.refresh_token ?? '');
      expect(text).toContain(grantId);
      const secrets = [
        ...grants.flatMap((grant) => [
          splitRefreshToken(grant.refresh_token).mac,
          ...decodeJwt(grant.access_token).parts.slice(1),
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

      // An attacker who has read the store tries every string in it as a MAC, a sealing key and a device code.
      const words = [...new Set(text.match(/[A-Za-z0-9_-]{20,64}/g))].slice(0, 300);
      const kid = keys.sealing[0]?.kid ?? '';
      const body = `${kid}.${grantId}.1`;
      for (const word of words) {
        const computedMac = createHmac('sha256', Buffer.from(word, 'base64url')).update(`refresh\n${body}`);
        for (const mac of [word.padEnd(43, 'A').slice(0, 43), computedMac.digest('base64url')])
          expect((await other.refresh(`ghr_${body}.${mac}`)).status).toBe(400);
        expect((await steps.exchange(word)).json).toMatchObject({ Error: 'invalid_grant' });
        expect((await other.api('/files/1', word)).status).toBe(401);
      }
      expect((await other.refresh(grants[0]?.refresh_token ?? '')).status).toBe(200);
    } finally {
      await other.close();
    }
  });
});

describe('responses to unauthenticated clients', () => {
  test('L05: an unknown client and a wrong one get the same response', async () => {
    const { refresh_token } = await gateway.grant();
    const steps = createDeviceClient(gateway);
    const codes = await steps.requestCodes();
    const expectSame = (replies: readonly Reply[]): void => {
      expect(new Set(replies.map(({ text }) => text)).size).toBe(1);
      expect(new Set(replies.map(({ reason, status }) => `${status} ${reason}`)).size).toBe(1);
    };
    expectSame([
      await gateway.refresh(refresh_token, { client_id: 'nobody' }),
      await gateway.refresh(refresh_token, { client_id: 'other-app' }),
    ]);
    expectSame([
      await steps.exchange(codes.device_code, 'nobody'),
      await steps.exchange(codes.device_code, 'other-app'),
    ]);
  });

  test('L06: every response with a token has Cache-Control: no-store and Pragma: no-cache', async () => {
    const body = { client_id: 'report-runner', scope: 'files' };
    const certificate = await gateway.post('/Authorize/Certificate', body, { as: gateway.users.alice });
    const steps = createDeviceClient(gateway);
    const device = await gateway.post('/Authorize/Device', body);
    const codes = device.json as unknown as Awaited<ReturnType<typeof steps.requestCodes>>;
    await steps.confirm(codes);
    const replies = [
      certificate,
      device,
      await gateway.refresh(String(certificate.json['refresh_token'])),
      await steps.exchange(codes.device_code),
    ];
    for (const { status, headers } of replies) {
      expect(status).toBe(200);
      expect(headers).toMatchObject({ 'cache-control': 'no-store', pragma: 'no-cache' });
    }
  });

  test('L07: no response of the gateway names its software; pages send no referrer', async () => {
    const page = await gateway.request({ path: '/authsvc/device' });
    const replies = [
      page,
      await gateway.refresh('x'),
      await gateway.request({ path: '/files/1' }),
      await gateway.request({ path: '/authsvc/x' }),
      await gateway.request({ path: '//' }),
    ];
    for (const { headers, text } of replies) {
      expect(headers).not.toHaveProperty('server');
      expect(headers).not.toHaveProperty('x-powered-by');
      expect(headers).not.toHaveProperty('via');
      expect(text).not.toMatch(/\bnode\.?js\b|\bundici\b|\blmdb\b/i);
    }
    expect(page.headers['referrer-policy']).toBe('no-referrer');
  });
});

describe('L08: comparing secrets', () => {
  const sources = readdirSync('src', { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.ts'));
  const read = (name: string): string => readFileSync(join('src', name), 'utf8');

  test('L08: MACs, password tags and form tokens are compared with timingSafeEqual, never with ===', () => {
    expect(read('lib/constant-time.ts')).toMatch(/timingSafeEqual\(/);
    for (const name of [
      'admin/authenticate.ts',
      'stores/embedded/backup.ts',
      'tokens/issuer.ts',
      'tokens/sealer.ts',
      'pages/session.ts',
      'identity/password-hasher.ts',
    ])
      expect(read(name), name).toMatch(/\b(?:timingSafeEqual|isEqualConstantTime)\(/);
    const comparison =
      /\b(?:mac|givenMac|seal|expected|formToken|adminToken|password)\b[^\n;]*(?:===|!==)(?!\s*undefined)|(?:===|!==)\s*(?:mac|givenMac|seal|expected|formToken|adminToken|password)\b/;
    const suspects = sources.flatMap((name) =>
      read(name)
        .split('\n')
        .filter(
          (line) =>
            comparison.test(line) && !/typeof|^\s*(?:\/\/|\*|\/\*)|password [!=]== ''|\.length [!=]==/.test(line),
        )
        .map((line) => `${name}: ${line.trim()}`),
    );
    expect(suspects).toEqual([]);
  });

  test('L08: a MAC with a wrong first character and one with a wrong last character get the same response', async () => {
    const { refresh_token } = await gateway.grant();
    const { kid, grantId, generation, mac } = splitRefreshToken(refresh_token);
    const change = (char = ''): string => (char === 'A' ? 'B' : 'A');
    const replies = [`${change(mac[0])}${mac.slice(1)}`, `${mac.slice(0, -1)}${change(mac.at(-1))}`].map((wrong) =>
      gateway.refresh(`ghr_${kid}.${grantId}.${generation}.${wrong}`),
    );
    const [first, last] = await Promise.all(replies);
    expect(first?.status).toBe(400);
    expect(first?.text).toBe(last?.text);
  });
});
