import * as oauth from 'oauth4webapi';
import * as openid from 'openid-client';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { type ClientGateway, startClientGateway } from '../support/client-gateway.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { withTokens } from '../support/reconfigure.ts';

/** Third-party libraries, used as documented, with a running gateway over TLS. */
let at: ClientGateway;
freezeClock();
beforeAll(async () => {
  at = await startClientGateway();
});
afterAll(() => at.close());

/** openid-client waits between polls in real time; instead, the clock of the gateway is advanced. */
beforeEach(() => {
  const real = globalThis.setTimeout;
  const passing = (run: () => void, milliseconds?: number, ...args: []): NodeJS.Timeout => {
    const isPoll = new Error('stack').stack?.includes('/openid-client/') === true;
    if (isPoll) at.gateway.clock.advance((milliseconds ?? 0) / 1_000);
    return real(run, isPoll ? 0 : milliseconds, ...args);
  };
  vi.spyOn(globalThis, 'setTimeout').mockImplementation(Object.assign(passing, { __promisify__: real.__promisify__ }));
});
afterEach(() => void vi.restoreAllMocks());

const SCOPE = 'files:read reports:read';

describe.each(['jwt', 'opaque'] as const)('with %s tokens', (format) => {
  beforeAll(() => at.gateway.reload(withTokens({ format })));

  test('openid-client: discovery, device flow with pending and slow_down, refresh, replay, introspection, a call, revocation', async () => {
    const reported: string[] = [];
    const real = at.fetch();
    let polls = 0;
    /** Sends the second poll twice, so that the library gets a slow_down response. */
    const customFetch: openid.CustomFetch = async (target, options) => {
      const isPoll = options.body instanceof URLSearchParams && options.body.has('device_code');
      if (isPoll && (polls += 1) === 2) await real(target, options);
      const response = await real(target, options);
      if (isPoll) reported.push(response.ok ? 'granted' : String((await readJson(response.clone()))['error']));
      if (reported.at(-1) === 'slow_down') await at.approve(codes.user_code);
      return response;
    };
    const config = await openid.discovery(new URL(at.url), 'report-runner', undefined, openid.None(), {
      algorithm: 'oauth2',
      [openid.customFetch]: customFetch,
    });
    expect(config.serverMetadata().issuer).toBe(at.url);
    const codes = await openid.initiateDeviceAuthorization(config, { scope: SCOPE });
    const first = await openid.pollDeviceAuthorizationGrant(config, codes);
    expect(reported).toEqual(['authorization_pending', 'slow_down', 'granted']);

    const call = await openid.fetchProtectedResource(config, first.access_token, new URL(`${at.url}/files/1`), 'GET');
    expect(call.status).toBe(200);
    const second = await openid.refreshTokenGrant(config, String(first.refresh_token));
    expect(second.access_token).not.toBe(first.access_token);

    const asServer = await openid.discovery(new URL(at.url), 'report-runner', undefined, openid.None(), {
      algorithm: 'oauth2',
      [openid.customFetch]: at.fetch(at.gateway.users.alice),
    });
    expect(await openid.tokenIntrospection(asServer, second.access_token)).toMatchObject({
      active: true,
      scope: SCOPE,
      client_id: 'report-runner',
    });
    const third = await openid.refreshTokenGrant(config, String(second.refresh_token));
    await expect(openid.refreshTokenGrant(config, String(first.refresh_token))).rejects.toMatchObject({
      error: 'invalid_grant',
    });
    expect(await openid.tokenIntrospection(asServer, third.access_token)).toEqual({ active: false });

    const machine = await openid.clientCredentialsGrant(asServer, { scope: 'files:read' });
    expect(machine.refresh_token).toBeUndefined();
    await openid.tokenRevocation(config, machine.access_token);
    await openid.tokenRevocation(config, 'never heard of');
    expect(await openid.tokenIntrospection(asServer, machine.access_token)).toEqual({ active: false });
  });

  test('oauth4webapi: the same flow, step by step', async () => {
    const options = { [oauth.customFetch]: at.fetch() };
    const client = { client_id: 'report-runner' };
    const issuer = new URL(`${at.url}/authsvc`);
    const as = await oauth.processDiscoveryResponse(
      issuer,
      await oauth.discoveryRequest(issuer, { ...options, algorithm: 'oauth2' }),
    );
    expect(as.issuer).toBe(issuer.href);

    const begin = async () =>
      oauth.processDeviceAuthorizationResponse(
        as,
        client,
        await oauth.deviceAuthorizationRequest(as, client, oauth.None(), { scope: SCOPE }, options),
      );
    const poll = async (deviceCode: string) =>
      oauth.processDeviceCodeResponse(
        as,
        client,
        await oauth.deviceCodeGrantRequest(as, client, oauth.None(), deviceCode, options),
      );
    const refresh = async (token: string | undefined) =>
      oauth.processRefreshTokenResponse(
        as,
        client,
        await oauth.refreshTokenGrantRequest(as, client, oauth.None(), String(token), options),
      );

    const codes = await begin();
    await expect(poll(codes.device_code)).rejects.toMatchObject({ error: 'authorization_pending' });
    await expect(poll(codes.device_code)).rejects.toMatchObject({ error: 'slow_down' });
    await at.approve(codes.user_code);
    at.gateway.clock.advance(Number(codes.interval) + 5);
    const first = await poll(codes.device_code);
    const call = async (token: string): Promise<number> =>
      (
        await oauth
          .protectedResourceRequest(token, 'GET', new URL(`${at.url}/files/1`), undefined, undefined, options)
          .catch((error: oauth.WWWAuthenticateChallengeError) => error)
      ).status;
    expect(await call(first.access_token)).toBe(200);

    const second = await refresh(first.refresh_token);
    const third = await refresh(second.refresh_token);
    expect(await call(third.access_token)).toBe(200);
    await expect(refresh(first.refresh_token)).rejects.toMatchObject({ error: 'invalid_grant' });
    expect(await call(third.access_token), 'the entire grant is revoked').toBe(401);

    const mine = await begin();
    await at.approve(mine.user_code);
    const other = await poll(mine.device_code);
    const introspect = async (token: string) =>
      oauth.processIntrospectionResponse(
        as,
        client,
        await oauth.introspectionRequest(as, client, oauth.None(), token, {
          [oauth.customFetch]: at.fetch(at.gateway.users.alice),
        }),
      );
    expect(await introspect(other.access_token)).toMatchObject({ active: true, token_type: 'Bearer' });
    await oauth.processRevocationResponse(
      await oauth.revocationRequest(as, client, oauth.None(), String(other.refresh_token), options),
    );
    expect(await introspect(other.access_token)).toEqual({ active: false });
    expect(await call(other.access_token)).toBe(401);
  });
});

test('oauth4webapi: a separate resource server verifies a JWT with the published keys', async () => {
  await at.gateway.reload(withTokens({ format: 'jwt' }));
  const options = { [oauth.customFetch]: at.fetch() };
  const as = await oauth.processDiscoveryResponse(
    new URL(at.url),
    await oauth.discoveryRequest(new URL(at.url), { ...options, algorithm: 'oauth2' }),
  );
  const { access_token } = await at.gateway.grant();
  const request = new Request('https://api.example.test/', {
    headers: { authorization: `Bearer ${access_token}` },
  });
  const claims = await oauth.validateJwtAccessToken(as, request, at.url, {
    ...options,
    signingAlgorithms: ['EdDSA', 'Ed25519'],
  });
  expect(claims).toMatchObject({ client_id: 'report-runner', scope: 'files:read' });
});

const readJson = async (response: Response): Promise<Record<string, unknown>> =>
  (await response.json()) as Record<string, unknown>;
