import { hash } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { formatUserCode, USER_CODE_ALPHABET } from '../../src/domain/device-request.ts';
import type { DeviceCodes } from '../support/device-client.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { dumpStrings } from '../support/store-dump.ts';
import { ALICE, BOB, type Reply, startGateway, type TestGateway } from '../support/test-gateway.ts';

const DEVICE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code';

freezeClock();
let gateway: TestGateway;
beforeAll(async () => {
  // The tests request more codes than one address may by default.
  gateway = await startGateway((settings) => ({ ...settings, device: { maxPendingPerClient: 100_000 } }));
});
afterAll(() => gateway.close());

const requestCodes = (clientId = 'report-runner', scope = 'files:read'): Promise<Reply> =>
  gateway.post('/Authorize/Device', { client_id: clientId, scope });
/** Makes `count` calls, ten at a time. */
async function inTens<T>(count: number, call: () => Promise<T>): Promise<T[]> {
  const results: T[] = [];
  while (results.length < count) results.push(...(await Promise.all(Array.from({ length: 10 }, call))));
  return results;
}
const createCodes = async (clientId?: string, scope?: string): Promise<DeviceCodes> => {
  const reply = await requestCodes(clientId, scope);
  if (reply.status !== 200) throw new Error(reply.text);
  return reply.json as unknown as DeviceCodes;
};
const exchange = (deviceCode: string, clientId = 'report-runner'): Promise<Reply> =>
  gateway.post('/Authorize/Token', {
    client_id: clientId,
    grant_type: DEVICE_GRANT,
    device_code: deviceCode,
  });

/** Writes a decision to the store as the confirmation page does. */
async function decide(
  codes: DeviceCodes,
  decision: { state: 'confirmed'; identity: string; decidedAt: number } | { state: 'denied' },
): Promise<void> {
  const { devices } = gateway.server.store;
  const id = hash('sha256', codes.device_code, 'base64url').slice(0, 22);
  const found = await devices.read(id);
  if (found === undefined) throw new Error('device request not found');
  await devices.replace(id, found.version, { ...found.record, ...decision }, found.record.expires + 600);
}
const confirm = (codes: DeviceCodes, identity = ALICE): Promise<void> =>
  decide(codes, { state: 'confirmed', identity, decidedAt: Date.now() / 1_000 });

describe('polling', () => {
  test('D01: before the confirmation the response is authorization_pending', async () => {
    const codes = await createCodes();
    expect(await exchange(codes.device_code)).toMatchObject({
      status: 400,
      json: { Error: 'authorization_pending' },
    });
  });

  test('D02: polling too fast gets the same error and Retry-After, reads nothing from the store, and never ends the request', async () => {
    const codes = await createCodes();
    const first = await exchange(codes.device_code);
    expect(first.headers['retry-after']).toBeUndefined();
    let reads = 0;
    const { devices } = gateway.server.store;
    const read = devices.read.bind(devices);
    devices.read = (id) => {
      reads += 1;
      return read(id);
    };
    try {
      for (let polls = 0; polls < 45; polls += 1) {
        const reply = await exchange(codes.device_code);
        expect(reply.json).toMatchObject({ Error: 'authorization_pending' });
        expect(Number(reply.headers['retry-after'])).toBeGreaterThanOrEqual(1);
        expect(Number(reply.headers['retry-after'])).toBeLessThanOrEqual(5);
      }
      expect(reads).toBe(0);
    } finally {
      devices.read = read;
    }
    await confirm(codes);
    gateway.clock.advance(5);
    expect((await exchange(codes.device_code)).status).toBe(200);
  });
});

describe('valid once only', () => {
  test('D03: of ten concurrent exchanges one gets the grant and the others invalid_grant', async () => {
    for (let round = 0; round < 5; round += 1) {
      const codes = await createCodes();
      await confirm(codes);
      const replies = await Promise.all(Array.from({ length: 10 }, () => exchange(codes.device_code)));
      expect(replies.filter(({ status }) => status === 200)).toHaveLength(1);
      expect(replies.filter(({ json }) => json['Error'] === 'invalid_grant')).toHaveLength(9);
    }
  });

  test('D04: a second exchange is invalid_grant, with an audit event, and the grant stays valid', async () => {
    const codes = await createCodes();
    await confirm(codes);
    const first = await exchange(codes.device_code);
    expect(first.status).toBe(200);
    gateway.clock.advance(20);
    expect(await exchange(codes.device_code)).toMatchObject({
      status: 400,
      json: { Error: 'invalid_grant' },
    });
    expect(gateway.auditEvents('device_code_replayed').length).toBeGreaterThan(0);
    expect((await gateway.api('/files/1', String(first.json['access_token']))).status).toBe(200);
  });

  test('D04: a second exchange is invalid_grant also after the grant was revoked, and after the code has expired', async () => {
    const codes = await createCodes();
    await confirm(codes);
    const { access_token: token } = (await exchange(codes.device_code)).json;
    await gateway.request({
      path: '/authsvc/Revoke/Token',
      headers: { authorization: `Bearer ${String(token)}` },
    });
    expect((await exchange(codes.device_code)).json).toMatchObject({ Error: 'invalid_grant' });
    gateway.clock.advance(1_200);
    await gateway.server.store.sweep();
    expect((await exchange(codes.device_code)).json).toMatchObject({ Error: 'invalid_grant' });
  });

  test('D05: a code cannot be exchanged by another client, and stays valid for its own', async () => {
    const codes = await createCodes();
    await confirm(codes);
    expect(await exchange(codes.device_code, 'other-app')).toMatchObject({
      status: 400,
      json: { Error: 'invalid_grant' },
    });
    expect((await exchange(codes.device_code, 'Report-Runner')).json).toMatchObject({
      Error: 'invalid_grant',
    });
    expect((await exchange(codes.device_code)).status).toBe(200);
  });

  test('D06: expired, denied, unknown and altered codes are invalid_grant, with a description of the cause', async () => {
    const expired = await createCodes();
    await confirm(expired);
    gateway.clock.advance(expired.expires_in + 1);
    expect((await exchange(expired.device_code)).json).toMatchObject({
      Error: 'invalid_grant',
      Error_description: expect.stringContaining('expired'),
    });

    const denied = await createCodes();
    await decide(denied, { state: 'denied' });
    expect((await exchange(denied.device_code)).json).toMatchObject({
      Error: 'invalid_grant',
      Error_description: expect.stringContaining('refused'),
    });

    const good = await createCodes();
    await confirm(good);
    const flipped = good.device_code.replace(/.$/, (last) => (last === 'A' ? 'B' : 'A'));
    for (const code of [flipped, `${good.device_code} `, good.device_code.toUpperCase(), good.user_code, 'x', 'ghd_'])
      expect((await exchange(code)).json, code).toMatchObject({
        Error: 'invalid_grant',
        Error_description: expect.stringContaining('invalid'),
      });
    expect((await exchange(good.device_code)).status).toBe(200);
  });

  test('D06: a code can be exchanged until one second before it expires', async () => {
    const codes = await createCodes();
    await confirm(codes);
    gateway.clock.advance(codes.expires - 1 - gateway.clock.now());
    expect((await exchange(codes.device_code)).status).toBe(200);
    const late = await createCodes();
    await confirm(late);
    gateway.clock.advance(late.expires - gateway.clock.now());
    expect((await exchange(late.device_code)).json).toMatchObject({ Error: 'invalid_grant' });
  });
});

describe('D07: the device flow disabled', () => {
  test('globally: invalid_client at both routes, and existing grants can still be refreshed', async () => {
    const codes = await createCodes();
    await confirm(codes);
    const { refresh_token: token } = (await exchange(codes.device_code)).json;
    const waiting = await createCodes();
    await gateway.reload((settings) => ({ ...settings, device: { ...settings.device, enabled: false } }));
    try {
      expect(await requestCodes()).toMatchObject({ status: 400, json: { Error: 'invalid_client' } });
      expect(await exchange(waiting.device_code)).toMatchObject({
        status: 400,
        json: { Error: 'invalid_client' },
      });
      expect((await gateway.refresh(String(token))).status).toBe(200);
    } finally {
      await gateway.reload((settings) => ({ ...settings, device: { ...settings.device, enabled: true } }));
    }
  });

  test('for one integration: invalid_client there, the other is unaffected', async () => {
    const before = gateway.server.settings();
    expect(before.device.enabled).toBe(true);
    await gateway.reload((settings) => ({
      ...settings,
      integrations:
        settings.integrations?.map((integration) =>
          integration.clientId === 'other-app' ? { ...integration, grants: ['certificate'] } : integration,
        ) ?? [],
    }));
    expect((await requestCodes('other-app')).json).toMatchObject({ Error: 'invalid_client' });
    expect((await requestCodes()).status).toBe(200);
  });
});

describe('access', () => {
  test('a user who lost access between the confirmation and the exchange gets no token', async () => {
    const codes = await createCodes('report-runner', 'reports:write');
    await confirm(codes, BOB);
    expect((await exchange(codes.device_code)).json).toMatchObject({ Error: 'invalid_grant' });
    const unknownUser = await createCodes();
    await confirm(unknownUser, 'local:{00000000-0000-0000-0000-000000000000}');
    expect((await exchange(unknownUser.device_code)).json).toMatchObject({ Error: 'unauthorized_client' });
  });
});

describe('D17: the codes', () => {
  let allCodes: readonly DeviceCodes[];
  beforeAll(async () => {
    allCodes = await inTens(400, () => createCodes());
  });

  test('device codes have 256 random bits, none repeats, and the store holds no code', () => {
    expect(new Set(allCodes.map(({ device_code: code }) => code)).size).toBe(allCodes.length);
    const dump = dumpStrings(`${gateway.folder}/data`).join('\n');
    expect(dump).toContain('report-runner');
    for (const { device_code: device, user_code: user } of allCodes) {
      expect(Buffer.from(device.slice(4), 'base64url')).toHaveLength(32);
      expect(dump.includes(device)).toBe(false);
      expect(dump.includes(user) || dump.includes(user.replace('-', ''))).toBe(false);
    }
  });

  test('user codes use all letters of the alphabet, and no others, at every position', () => {
    for (const { user_code: user } of allCodes)
      expect(user).toMatch(new RegExp(`^[${USER_CODE_ALPHABET}]{4}-[${USER_CODE_ALPHABET}]{4}$`));
    for (let position = 0; position < 8; position += 1)
      expect(new Set(allCodes.map(({ user_code: code }) => code.replace('-', '')[position])).size).toBe(20);
    expect(formatUserCode('BCDFGHJK')).toBe('BCDF-GHJK');
  });
});

test('D18: pending requests are limited per address, per client and in all, until they expire', async ({
  onTestFinished,
}) => {
  const small = await startGateway((settings) => ({
    ...settings,
    trustedProxies: ['127.0.0.1'],
    // One address may have a tenth of the limit of a client.
    device: { maxPending: 160, maxPendingPerClient: 100 },
  }));
  onTestFinished(() => small.close());
  let callers = 0;
  const anyAddress = (): string => `192.0.2.${(callers++ % 200) + 1}`;
  const flood = (clientId: string, count: number, from = anyAddress): Promise<Reply[]> =>
    inTens(count, () =>
      small.post(
        '/Authorize/Device',
        { client_id: clientId, scope: 'files:read' },
        { headers: { 'x-forwarded-for': from() } },
      ),
    );
  const countGranted = (replies: readonly Reply[]): number => replies.filter(({ status }) => status === 200).length;
  expect(countGranted(await flood('report-runner', 20, () => '198.51.100.1'))).toBe(10);
  const first = await flood('report-runner', 100);
  expect(countGranted(first)).toBe(90);
  const full = first.find(({ status }) => status !== 200);
  expect(full).toMatchObject({ status: 429, json: { Error: 'invalid_request' } });
  expect(Number(full?.headers['retry-after'])).toBeGreaterThan(0);
  expect(countGranted(await flood('other-app', 80))).toBe(60);
  small.clock.advance(301);
  expect((await small.post('/Authorize/Device', { client_id: 'other-app', scope: 'files:read' })).status).toBe(200);
});
