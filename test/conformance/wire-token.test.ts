import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createDeviceClient, DEVICE_GRANT, FORM } from '../support/device-client.ts';
import { withFailure } from '../support/fault-injection.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { withIntegration, withoutIntegration, withSettings, withTokens, withUser } from '../support/reconfigure.ts';
import { ALICE, BOB, type Reply, startGateway, type TestGateway, type TokenGrant } from '../support/test-gateway.ts';

/** Wire specification, section 2: POST Authorize/Token. */
let gateway: TestGateway;
freezeClock(250);
beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway.close());

const refusal = (Error: string) => ({ status: 400, json: { Error } });
const postToken = (body: Readonly<Record<string, unknown>>): Promise<Reply> =>
  gateway.post('/Authorize/Token', { client_id: 'report-runner', ...body });
const confirmDevice = async (identity = ALICE) => {
  const steps = createDeviceClient(gateway);
  const codes = await steps.requestCodes();
  await steps.confirm(codes, identity);
  return codes;
};
const read = (reply: Reply): TokenGrant => {
  expect(reply.status, reply.text).toBe(200);
  return reply.json as unknown as TokenGrant;
};

describe('request parameters', () => {
  test('wire 2: exactly one of refresh_token and device_code', async () => {
    const { refresh_token } = await gateway.grant();
    const { device_code } = await confirmDevice();
    for (const grant_type of [undefined, DEVICE_GRANT, 'refresh_token'])
      expect(await postToken({ refresh_token, device_code, grant_type })).toMatchObject(refusal('invalid_request'));
    expect(await postToken({})).toMatchObject(refusal('invalid_request'));
    expect((await postToken({ refresh_token })).status).toBe(200);
    expect((await postToken({ device_code, grant_type: DEVICE_GRANT })).status).toBe(200);
  });

  test('wire 2: with a refresh_token grant_type may be absent or refresh_token, and nothing else', async () => {
    const { refresh_token } = await gateway.grant();
    for (const grant_type of [DEVICE_GRANT, 'Refresh_Token', 'refresh', 'client_credentials'])
      expect(await postToken({ refresh_token, grant_type }), grant_type).toMatchObject(refusal('invalid_request'));
    expect((await postToken({ refresh_token, grant_type: 'refresh_token' })).status).toBe(200);
  });

  test('wire 2: a form-encoded refresh is invalid_request, with grant_type too', async () => {
    const { refresh_token } = await gateway.grant();
    const body = new URLSearchParams({
      client_id: 'report-runner',
      grant_type: 'refresh_token',
      refresh_token,
    });
    const reply = await gateway.request({
      path: '/authsvc/Authorize/Token',
      method: 'POST',
      headers: { 'content-type': FORM },
      body: body.toString(),
    });
    expect(reply).toMatchObject(refusal('invalid_request'));
  });

  test('wire 2: client_id empty is invalid_request', async () => {
    const { refresh_token } = await gateway.grant();
    expect(await postToken({ refresh_token, client_id: '' })).toMatchObject(refusal('invalid_request'));
  });
});

describe('internal failures', () => {
  const parts = [
    ['grants', 'read'],
    ['grants', 'replace'],
  ] as const;
  test.each(parts)(
    'wire 2: if %s.%s of the store fails, invalid_request with Retry-After and "temporary, retry", and the token works afterwards',
    async (part, operation) => {
      const { refresh_token } = await gateway.grant();
      const { store } = gateway.server;
      const reply = await withFailure(store[part], operation, 'not executed', () => gateway.refresh(refresh_token));
      expect(reply).toMatchObject(refusal('invalid_request'));
      expect(reply.headers['retry-after']).toMatch(/^[1-9]\d*$/);
      expect(reply.json['Error_description']).toMatch(/temporary.*retry/i);
      expect((await gateway.refresh(refresh_token)).status).toBe(200);
    },
  );

  test('wire 2: an internal error gets the same response, and its stack is logged', async () => {
    const { refresh_token } = await gateway.grant();
    const reply = await withFailure(
      gateway.server.store.grants,
      'read',
      'not executed',
      () => gateway.refresh(refresh_token),
      () => new TypeError('injected bug'),
    );
    expect(reply).toMatchObject(refusal('invalid_request'));
    expect(reply.headers['retry-after']).toBeDefined();
    expect(reply.text).not.toContain('injected bug');
    const line = gateway.log.findLast(({ event }) => event === 'internal_error');
    expect(line).toMatchObject({ error: 'injected bug', operation: 'token' });
    expect(line?.['stack']).toBeDefined();
    expect((await gateway.refresh(refresh_token)).status).toBe(200);
  });

  test('wire 2: a device code stays valid if its exchange fails internally', async () => {
    const { device_code } = await confirmDevice();
    const steps = createDeviceClient(gateway);
    const { store } = gateway.server;
    for (const run of [
      () => withFailure(store.devices, 'read', 'not executed', () => steps.exchange(device_code)),
      () => withFailure(store.grants, 'create', 'not executed', () => steps.exchange(device_code)),
    ])
      expect(await run()).toMatchObject(refusal('invalid_request'));
    expect((await steps.exchange(device_code)).status).toBe(200);
  });
});

describe('refusals', () => {
  test('wire 2: an unknown client_id, or that of another integration, is invalid_grant and changes nothing', async () => {
    const { refresh_token } = await gateway.grant();
    for (const client_id of ['nobody', 'other-app', 'report-Runner'])
      expect(await postToken({ refresh_token, client_id })).toMatchObject(refusal('invalid_grant'));
    read(await gateway.refresh(refresh_token));
  });

  test('wire 2: the grant of a removed integration is invalid_grant, and works again when the integration is added again', async () => {
    const { refresh_token } = await gateway.grant();
    await withSettings(gateway, withoutIntegration('report-runner'), async () =>
      expect(await gateway.refresh(refresh_token)).toMatchObject(refusal('invalid_grant')),
    );
    read(await gateway.refresh(refresh_token));
  });

  test.each([
    ['unknown', /invalid/, async (): Promise<string> => 'ghd_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'],
    ['forged', /invalid/, async () => `${(await confirmDevice()).device_code.slice(0, -3)}AAA`],
    [
      'expired',
      /expired/,
      async (): Promise<string> => {
        const codes = await confirmDevice();
        gateway.clock.advance(codes.expires_in + 1);
        return codes.device_code;
      },
    ],
    [
      'already used',
      /already used/,
      async (): Promise<string> => {
        const { device_code } = await confirmDevice();
        await createDeviceClient(gateway).exchange(device_code);
        return device_code;
      },
    ],
    [
      'denied by the user',
      /refused/,
      async (): Promise<string> => {
        const steps = createDeviceClient(gateway);
        const codes = await steps.requestCodes();
        await steps.decideInBrowser(codes, { decision: 'deny' });
        return codes.device_code;
      },
    ],
    [
      'closed after too many failed sign-ins',
      /wrong too often/,
      async (): Promise<string> => {
        const steps = createDeviceClient(gateway);
        const codes = await steps.requestCodes();
        for (let tries = 0; tries < 5; tries += 1)
          await expect(steps.decideInBrowser(codes, { password: `wrong ${tries}` })).rejects.toThrow(/no form/);
        return codes.device_code;
      },
    ],
  ] as const)(
    'wire 2: a device_code that is %s is invalid_grant, with the reason in the description',
    async (_, description, create) => {
      const reply = await createDeviceClient(gateway).exchange(await create());
      expect(reply).toMatchObject(refusal('invalid_grant'));
      expect(reply.json['Error_description']).toMatch(description);
    },
  );

  test.each([
    ['unknown', async (): Promise<string> => 'ghr_unknown'],
    ['forged', async () => `${(await gateway.grant()).refresh_token.slice(0, -1)}_`],
    [
      'spent',
      async (): Promise<string> => {
        const first = await gateway.grant();
        const second = read(await gateway.refresh(first.refresh_token));
        await gateway.refresh(second.refresh_token);
        return first.refresh_token;
      },
    ],
    [
      'of an expired grant',
      async (): Promise<string> => {
        const grant = await gateway.grant();
        gateway.clock.advance(grant.refresh_until - gateway.clock.now() + 1);
        return grant.refresh_token;
      },
    ],
    [
      'of a revoked grant',
      async (): Promise<string> => {
        const grant = await gateway.grant();
        await gateway.request({
          path: '/authsvc/Revoke/Token',
          headers: { authorization: `Bearer ${grant.access_token}` },
        });
        return grant.refresh_token;
      },
    ],
    [
      'of a grant that is no longer stored',
      async (): Promise<string> => {
        const grant = await gateway.grant();
        gateway.clock.advance(grant.refresh_until - gateway.clock.now() + 10 * 86_400);
        return grant.refresh_token;
      },
    ],
  ] as const)(
    'wire 2: a refresh_token that is %s is invalid_grant: obtain a new grant through an Authorize call',
    async (_, create) => {
      const reply = await gateway.refresh(await create());
      expect(reply).toMatchObject(refusal('invalid_grant'));
      expect(reply.json['Error_description']).toMatch(/obtain a new grant through an Authorize call/i);
    },
  );

  test('wire 2: a scope that the access entries no longer allow is invalid_grant, and works again with the entries', async () => {
    const { refresh_token } = await gateway.grant({ scope: 'reports:write' });
    const access = [{ groups: ['operators'], scope: 'reports:read;files:read' }];
    await withSettings(gateway, withIntegration('report-runner', { access }), async () =>
      expect(await gateway.refresh(refresh_token)).toMatchObject(refusal('invalid_grant')),
    );
    read(await gateway.refresh(refresh_token));
  });

  test('wire 2: a certificate-bound grant refreshed without its certificate is invalid_grant and changes nothing', async () => {
    await withSettings(gateway, withIntegration('report-runner', { bindToCertificate: true }), async () => {
      const { refresh_token } = await gateway.grant();
      const refresh = (as?: (typeof gateway.users)['alice']) =>
        gateway.post('/Authorize/Token', { client_id: 'report-runner', refresh_token }, as === undefined ? {} : { as });
      expect(await refresh()).toMatchObject(refusal('invalid_grant'));
      expect(await refresh(gateway.users.bob)).toMatchObject(refusal('invalid_grant'));
      read(await refresh(gateway.users.alice));
    });
  });

  test('wire 2: a grant that exceeds the reduced scope of its integration is invalid_scope and is kept', async () => {
    const { refresh_token } = await gateway.grant({ scope: 'files:read;reports:write' });
    await withSettings(gateway, withIntegration('report-runner', { scope: 'files:read' }), async () => {
      const reply = await gateway.refresh(refresh_token);
      expect(reply).toMatchObject(refusal('invalid_scope'));
      expect(reply.json['Error_description']).toContain('reports:write');
    });
    read(await gateway.refresh(refresh_token));
  });

  test('wire 2: polling faster than the interval is authorization_pending with Retry-After, and does not extend the interval', async () => {
    const steps = createDeviceClient(gateway);
    const codes = await steps.requestCodes();
    expect((await steps.exchange(codes.device_code)).headers['retry-after']).toBeUndefined();
    for (let polls = 0; polls < 5; polls += 1) {
      const early = await steps.exchange(codes.device_code);
      expect(early).toMatchObject(refusal('authorization_pending'));
      expect(early.headers['retry-after']).toMatch(/^[1-5]$/);
      gateway.clock.advance(0.5);
    }
    await steps.confirm(codes);
    gateway.clock.advance(2.5);
    read(await steps.exchange(codes.device_code));
  });

  test('wire 2: existing grants can be refreshed after the device flow is disabled', async () => {
    const steps = createDeviceClient(gateway);
    const { device_code } = await confirmDevice();
    const grant = read(await steps.exchange(device_code));
    await withSettings(
      gateway,
      (settings) => ({ ...settings, device: { enabled: false } }),
      async () => read(await gateway.refresh(grant.refresh_token)),
    );
    const other = read(await steps.exchange((await confirmDevice()).device_code));
    await withSettings(gateway, withIntegration('report-runner', { grants: ['certificate'] }), async () =>
      read(await gateway.refresh(other.refresh_token)),
    );
  });

  test.each([
    ['is disabled', withUser('bob', { disabled: true })],
    ['was removed from the access list', withUser('bob', { groups: [] })],
    [
      'was removed from the directory',
      withUser('bob', { id: '{00000000-0000-4000-8000-000000000000}', name: 'bobby', commonName: 'bobby' }),
    ],
    [
      'is no longer allowed this grant type',
      withIntegration('report-runner', { access: [{ groups: ['readers'], grants: ['device'] }] }),
    ],
  ] as const)('wire 2: a grant whose identity %s is unauthorized_client, and is kept', async (_, change) => {
    const { refresh_token } = await gateway.grant({ user: 'bob' });
    await withSettings(gateway, change, async () =>
      expect(await gateway.refresh(refresh_token)).toMatchObject(refusal('unauthorized_client')),
    );
    read(await gateway.refresh(refresh_token));
  });

  test('wire 2: a device code confirmed by a user who was removed from the access list is unauthorized_client, and is kept', async () => {
    const { device_code } = await confirmDevice(BOB);
    const steps = createDeviceClient(gateway);
    await withSettings(gateway, withUser('bob', { groups: [] }), async () =>
      expect(await steps.exchange(device_code)).toMatchObject(refusal('unauthorized_client')),
    );
    read(await steps.exchange(device_code));
  });
});

describe('rotation', () => {
  test('wire 2: the old access token stays valid until it expires, unless supersede is set', async () => {
    const first = await gateway.grant();
    const second = read(await gateway.refresh(first.refresh_token));
    expect((await gateway.api('/files/1', first.access_token)).status).toBe(200);
    await withSettings(gateway, withTokens({ refresh: { supersede: true } }), async () => {
      const third = read(await gateway.refresh(second.refresh_token));
      expect((await gateway.api('/files/1', first.access_token)).status).toBe(401);
      expect((await gateway.api('/files/1', second.access_token)).status).toBe(401);
      expect((await gateway.api('/files/1', third.access_token)).status).toBe(200);
    });
  });

  test('wire 2: 100 concurrent refreshes of one token: one rotation, the same tokens in every response', async () => {
    const { refresh_token } = await gateway.grant();
    const before = gateway.auditEvents('grant_refreshed').length;
    const replies = await Promise.all(Array.from({ length: 100 }, () => gateway.refresh(refresh_token)));
    expect(new Set(replies.map(({ status }) => status))).toEqual(new Set([200]));
    for (const name of ['access_token', 'refresh_token'])
      expect(new Set(replies.map(({ json }) => json[name])).size).toBe(1);
    expect(gateway.auditEvents('grant_refreshed').length - before).toBe(1);
  });

  test('wire 2: the retry window is at most 60 s', async () => {
    await expect(gateway.reload(withTokens({ refresh: { retryWindow: '61s' } }))).rejects.toThrow(/60s/);
  });
});
