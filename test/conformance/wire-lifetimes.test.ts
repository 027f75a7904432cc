import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createDeviceClient } from '../support/device-client.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { withIntegration, withSettings, withTokens } from '../support/reconfigure.ts';
import {
  type Reply,
  type SettingsChange,
  startGateway,
  type TestGateway,
  type TokenGrant,
} from '../support/test-gateway.ts';

/** Wire specification, section 1: times and rates. */
let gateway: TestGateway;
freezeClock(250);
beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway.close());

const read = (reply: Reply): TokenGrant => {
  expect(reply.status, reply.text).toBe(200);
  return reply.json as unknown as TokenGrant;
};

describe('times', () => {
  test('wire 1: expires, expires_in and refresh_until are JSON integers in every response', async () => {
    const reply = await gateway.post(
      '/Authorize/Certificate',
      { client_id: 'report-runner', scope: 'files' },
      { as: gateway.users.alice },
    );
    const steps = createDeviceClient(gateway);
    const codes = await gateway.post('/Authorize/Device', { client_id: 'report-runner', scope: 'files' });
    const device = codes.json as unknown as Awaited<ReturnType<typeof steps.requestCodes>>;
    await steps.confirm(device);
    const all = [
      reply,
      await gateway.refresh(String(reply.json['refresh_token'])),
      await steps.exchange(device.device_code),
      codes,
    ];
    for (const { text } of all)
      for (const [, value = ''] of text.matchAll(/"(?:expires|expires_in|refresh_until|interval)":([^,}]+)/g))
        expect(value).toMatch(/^\d+$/);
  });

  test('wire 1: expires_in is floor(expires - now), and decreases when the same response is repeated', async () => {
    const grant = await gateway.grant();
    const rotated = read(await gateway.refresh(grant.refresh_token));
    expect(rotated.expires_in).toBe(Math.floor(rotated.expires - gateway.clock.now()));
    gateway.clock.advance(4);
    const again = read(await gateway.refresh(grant.refresh_token));
    expect(again.expires).toBe(rotated.expires);
    expect(again.expires_in).toBe(rotated.expires_in - 4);
  });

  test('wire 1: an access token never expires after refresh_until', async () => {
    let grant = await gateway.grant();
    const { refresh_until } = grant;
    gateway.clock.advance(Math.floor(refresh_until - gateway.clock.now()) - 1_800);
    grant = read(await gateway.refresh(grant.refresh_token));
    expect(grant.expires).toBe(refresh_until);
    expect(grant.expires_in).toBe(1_800);
    gateway.clock.advance(1_801);
    expect((await gateway.api('/files/1', grant.access_token)).status).toBe(401);
  });

  test('wire 1: refresh_until is fixed when the grant is created and never changes', async () => {
    let grant = await gateway.grant();
    const { refresh_until } = grant;
    for (let refreshes = 0; refreshes < 5; refreshes += 1) {
      gateway.clock.advance(86_400);
      grant = read(await gateway.refresh(grant.refresh_token));
      expect(grant.refresh_until).toBe(refresh_until);
    }
    await withSettings(gateway, withTokens({ grantLifetime: '365d' }), async () => {
      gateway.clock.advance(60);
      grant = read(await gateway.refresh(grant.refresh_token));
      expect(grant.refresh_until).toBe(refresh_until);
    });
    await withSettings(gateway, withTokens({ grantLifetime: '1h', accessLifetime: '1h' }), async () => {
      gateway.clock.advance(60);
      expect(read(await gateway.refresh(grant.refresh_token)).refresh_until).toBe(refresh_until);
    });
  });

  test('wire 1: the default lifetimes are 1 h, 90 d, 5 min and 5 s', async () => {
    const now = Math.floor(gateway.clock.now());
    const grant = await gateway.grant();
    expect(grant.expires).toBe(now + 3_600);
    expect(grant.refresh_until).toBe(now + 90 * 86_400);
    const codes = await createDeviceClient(gateway).requestCodes();
    expect(codes.expires_in).toBe(299);
    expect(codes.expires).toBe(now + 300);
    expect(codes.interval).toBe(5);
  });

  test('wire 1: each lifetime can be set globally', async () => {
    await withSettings(
      gateway,
      (settings) => ({
        ...settings,
        tokens: { ...settings.tokens, accessLifetime: '10m', grantLifetime: '2h' },
        device: { codeLifetime: '90s', interval: '7s' },
      }),
      async () => {
        const now = Math.floor(gateway.clock.now());
        const grant = await gateway.grant();
        expect(grant.expires).toBe(now + 600);
        expect(grant.refresh_until).toBe(now + 7_200);
        const codes = await createDeviceClient(gateway).requestCodes();
        expect(codes.expires_in).toBe(89);
        expect(codes.interval).toBe(7);
      },
    );
  });

  test('wire 1: the token lifetimes can be set per integration', async () => {
    const change = withIntegration('other-app', { accessLifetime: '2m', grantLifetime: '1d' });
    await withSettings(gateway, change, async () => {
      const now = Math.floor(gateway.clock.now());
      const own = await gateway.grant({ clientId: 'other-app' });
      expect(own.expires).toBe(now + 120);
      expect(own.refresh_until).toBe(now + 86_400);
      const refreshed = read(await gateway.refresh(own.refresh_token, { client_id: 'other-app' }));
      expect(refreshed.expires).toBe(now + 120);
      expect((await gateway.grant()).expires_in).toBe(3_599);
    });
  });

  test('wire 1: device code lifetime and poll interval can be set per integration', async () => {
    const change = withIntegration('other-app', { device: { codeLifetime: '60s', interval: '2s' } });
    await withSettings(gateway, change, async () => {
      const steps = createDeviceClient(gateway);
      const own = await steps.requestCodes('other-app');
      expect(own.expires_in).toBe(59);
      expect(own.interval).toBe(2);
      await steps.exchange(own.device_code, 'other-app');
      gateway.clock.advance(2);
      const polled = await steps.exchange(own.device_code, 'other-app');
      expect(polled.headers['retry-after']).toBeUndefined();
      const others = await steps.requestCodes();
      expect(others.expires_in).toBe(299);
      expect(others.interval).toBe(5);
    });
  });

  test('wire 1: a 90-day access token has expires_in 7775999', async () => {
    await withSettings(gateway, withIntegration('report-runner', { accessLifetime: '90d' }), async () => {
      // The current second has started, so it does not count.
      const grant = await gateway.grant();
      expect(grant.expires_in).toBe(7_775_999);
      expect(grant.expires).toBe(grant.refresh_until);
      gateway.clock.advance(7_775_990);
      expect((await gateway.api('/files/1', grant.access_token)).status).toBe(200);
      gateway.clock.advance(11);
      expect((await gateway.api('/files/1', grant.access_token)).status).toBe(401);
    });
  });
});

describe('rates', () => {
  const authorization = (token: string) => ({ headers: { authorization: `Bearer ${token}` } });
  const withRate =
    (route: string, rate: string): SettingsChange =>
    (settings) => ({ ...settings, limits: { rates: { ...settings.limits?.rates, [route]: rate } } });
  const requestDevice = (): Promise<Reply> =>
    gateway.post('/Authorize/Device', { client_id: 'report-runner', scope: 'files' });

  test.each(['token', 'certificate', 'device', 'revoke', 'verify'] as const)(
    'wire 1: too many %s requests get 400 on Authorize/Token, 429 elsewhere, with Retry-After, and succeed again afterwards',
    async (route) => {
      // One grant and one certificate, because each has its own limit.
      const { access_token, refresh_token } = await gateway.grant();
      let newest = refresh_token;
      const refreshNewest = async (): Promise<Reply> => {
        const reply = await gateway.refresh(newest);
        if (reply.status === 200) newest = String(reply.json['refresh_token']);
        return reply;
      };
      const sendRequest = (): Promise<Reply> => {
        switch (route) {
          case 'token':
            return refreshNewest();
          case 'certificate':
            return gateway.post(
              '/Authorize/Certificate',
              { client_id: 'report-runner', scope: 'files' },
              { as: gateway.users.alice },
            );
          case 'device':
            return requestDevice();
          case 'revoke':
            return gateway.request({ path: '/authsvc/Revoke/Token', ...authorization(access_token) });
          case 'verify':
            return gateway.request({ path: '/authsvc/Authorize/Verify', ...authorization(access_token) });
        }
      };
      const rate = route === 'revoke' || route === 'verify' ? 'token' : route;
      await withSettings(gateway, withRate(rate, '6/m'), async () => {
        for (let count = 0; count < 6; count += 1) expect((await sendRequest()).status).toBe(200);
        const rejected = await sendRequest();
        expect(rejected).toMatchObject({
          status: route === 'token' ? 400 : 429,
          json: { Error: 'invalid_request' },
        });
        expect(rejected.headers['retry-after']).toBe('10');
        // A rejected request does not use up its token.
        gateway.clock.advance(10);
        expect((await sendRequest()).status).toBe(200);
      });
    },
  );

  test('wire 1: a reload does not reset the count', () =>
    withSettings(gateway, withRate('device', '2/m'), async () => {
      expect((await requestDevice()).status).toBe(200);
      expect((await requestDevice()).status).toBe(200);
      await withSettings(gateway, withTokens({ accessLifetime: '2h' }), async () =>
        expect((await requestDevice()).status).toBe(429),
      );
    }));
});
