import * as oauth from 'oauth4webapi';
import * as openid from 'openid-client';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type ClientGateway, startClientGateway } from '../support/client-gateway.ts';
import { freezeClock } from '../support/frozen-clock.ts';

/** DPoP (RFC 9449) with third-party libraries, used as documented, with a running gateway over TLS. */
let at: ClientGateway;
freezeClock();
beforeAll(async () => {
  at = await startClientGateway();
});
afterAll(() => at.close());

describe.each(['off', 'required'] as const)('with dpop.nonce %s', (nonce) => {
  beforeAll(() => at.gateway.reload((settings) => ({ ...settings, dpop: { enabled: true, nonce } })));

  test.each(['ES256', 'Ed25519', 'PS256', 'RS256'])(
    'oauth4webapi with %s: device flow, a call, refresh',
    async (alg) => {
      const options = { [oauth.customFetch]: at.fetch() };
      const client = { client_id: 'report-runner' };
      const issuer = new URL(at.url);
      const as = await oauth.processDiscoveryResponse(
        issuer,
        await oauth.discoveryRequest(issuer, { ...options, algorithm: 'oauth2' }),
      );
      expect(as.dpop_signing_alg_values_supported).toContain(alg);
      const DPoP = oauth.DPoP({}, await oauth.generateKeyPair(alg));
      /** As its documentation says: the library takes the nonce from the error, and the request is sent again. */
      const retry = async <T>(send: () => Promise<T>): Promise<T> => {
        try {
          return await send();
        } catch (error) {
          if (nonce === 'off' || !oauth.isDPoPNonceError(error)) throw error;
          return send();
        }
      };
      const codes = await oauth.processDeviceAuthorizationResponse(
        as,
        client,
        await oauth.deviceAuthorizationRequest(as, client, oauth.None(), { scope: 'files:read' }, options),
      );
      await at.approve(codes.user_code);
      const first = await retry(async () =>
        oauth.processDeviceCodeResponse(
          as,
          client,
          await oauth.deviceCodeGrantRequest(as, client, oauth.None(), codes.device_code, {
            ...options,
            DPoP,
          }),
        ),
      );
      expect(first.token_type).toBe('dpop');
      const call = async (accessToken: string): Promise<number> =>
        (
          await retry(() =>
            oauth.protectedResourceRequest(
              accessToken,
              'GET',
              new URL(`${at.url}/files/1?page=2`),
              undefined,
              undefined,
              { ...options, DPoP },
            ),
          )
        ).status;
      expect(await call(first.access_token)).toBe(200);
      const second = await retry(async () =>
        oauth.processRefreshTokenResponse(
          as,
          client,
          await oauth.refreshTokenGrantRequest(as, client, oauth.None(), String(first.refresh_token), {
            ...options,
            DPoP,
          }),
        ),
      );
      expect(await call(second.access_token)).toBe(200);
      const plain = await at.fetch()(`${at.url}/files/1`, {
        headers: { authorization: `Bearer ${second.access_token}` },
      });
      expect(plain.status).toBe(401);
    },
  );

  test('openid-client: discovery, client credentials with a certificate, a call', async () => {
    const config = await openid.discovery(new URL(at.url), 'report-runner', undefined, openid.None(), {
      algorithm: 'oauth2',
      [openid.customFetch]: at.fetch(at.gateway.users.alice),
    });
    const DPoP = openid.getDPoPHandle(config, await openid.randomDPoPKeyPair());
    const tokens = await openid.clientCredentialsGrant(config, { scope: 'files:read' }, { DPoP });
    expect(tokens.token_type).toBe('dpop');
    for (let calls = 0; calls < 2; calls += 1) {
      const response = await openid.fetchProtectedResource(
        config,
        tokens.access_token,
        new URL(`${at.url}/files/1`),
        'GET',
        undefined,
        undefined,
        { DPoP },
      );
      expect(response.status).toBe(200);
    }
    await expect(
      openid.fetchProtectedResource(config, tokens.access_token, new URL(`${at.url}/files/1`), 'GET'),
    ).rejects.toMatchObject({ status: 401 });
  });
});
