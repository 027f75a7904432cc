import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { DeviceRequest } from '../../src/domain/device-request.ts';
import type { GrantDeps } from '../../src/grants/deps.ts';
import { confirmDevice } from '../../src/grants/device-grant.ts';
import { revokeAllGrants } from '../../src/grants/revoke.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { createDeviceClient } from '../support/device-client.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { beginRequest, createHttpsClient, jsonPostInit } from '../support/https-client.ts';
import { createMemoryStore } from '../support/memory-store.ts';
import { withSettings, withTokens } from '../support/reconfigure.ts';
import { ALICE, startGateway, type TestGateway, type TokenGrant } from '../support/test-gateway.ts';

freezeClock();
let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway.close());

test('with a retry window of 0, eight concurrent refreshes of one token do not revoke the grant; a later one does', () =>
  withSettings(gateway, withTokens({ refresh: { retryWindow: '0s' } }), async () => {
    const { refresh_token: token } = await gateway.grant();
    const replies = await Promise.all(Array.from({ length: 8 }, () => gateway.refresh(token)));
    const [winner, ...others] = replies.filter(({ status }) => status === 200);
    expect(others).toEqual([]);
    expect((await gateway.refresh(String(winner?.json['refresh_token']))).status).toBe(200);
    gateway.clock.advance(3);
    await gateway.refresh(token);
    expect(gateway.auditEvents('refresh_reuse')).toHaveLength(1);
  }));

test('a token is denied while the store is still writing its revocation', async () => {
  const { access_token: token } = await gateway.grant();
  const { revocations } = gateway.server.store;
  const announce = revocations.announce.bind(revocations);
  const announced = Promise.withResolvers<void>();
  const flushed = Promise.withResolvers<void>();
  Object.assign(revocations, {
    announce: (...given: Parameters<typeof announce>) => {
      announced.resolve();
      return flushed.promise.then(() => announce(...given));
    },
  });
  try {
    const revoked = gateway.api('/authsvc/Revoke/Token', token);
    await announced.promise;
    expect((await gateway.api('/whoami', token)).status).toBe(401);
    flushed.resolve();
    expect((await revoked).status).toBe(200);
    expect((await gateway.api('/whoami', token)).status).toBe(401);
  } finally {
    flushed.resolve();
    Object.assign(revocations, { announce });
  }
});

test.each(['create', 'replace'] as const)(
  'V13 tokens of a request that was in progress at the revocation of all grants of the user are revoked: %s',
  async (operation) => {
    const { grants } = gateway.server.store;
    const { refresh_token: token } = await gateway.grant();
    const original = grants[operation];
    const began = Promise.withResolvers<void>();
    const revoked = Promise.withResolvers<void>();
    Object.assign(grants, {
      [operation]: async (...given: Parameters<typeof grants.replace>) => {
        began.resolve();
        await revoked.promise;
        return (original as typeof grants.replace)(...given);
      },
    });
    try {
      const issuing =
        operation === 'create'
          ? gateway.grant()
          : gateway.refresh(token).then(({ json }) => json as unknown as TokenGrant);
      await began.promise;
      await revokeAllGrants(
        { store: gateway.server.store, now: () => gateway.clock.now() },
        { of: 'identity', identity: ALICE },
        86_400,
      );
      revoked.resolve();
      const issued = await issuing;
      expect((await gateway.api('/whoami', issued.access_token)).status).toBe(401);
      expect((await gateway.refresh(issued.refresh_token)).status).toBe(400);
    } finally {
      revoked.resolve();
      Object.assign(grants, { [operation]: original });
    }
    const later = await gateway.grant();
    expect((await gateway.api('/whoami', later.access_token)).status).toBe(200);
  },
);

test('V13 a request that arrived before the revocation of all grants of the user obtains nothing valid after it', async () => {
  const { store } = gateway.server;
  const { revocations } = store;
  const getLastNumber = revocations.getLastNumber.bind(revocations);
  const arrived = Promise.withResolvers<void>();
  Object.assign(revocations, {
    getLastNumber: () => {
      arrived.resolve();
      return getLastNumber();
    },
  });
  const client = createHttpsClient({ port: gateway.port, ca: gateway.ca.pem, as: gateway.users.alice });
  try {
    const { body, ...init } = jsonPostInit('/Authorize/Certificate', {
      client_id: 'report-runner',
      scope: 'files:read',
    });
    const { sent, reply } = beginRequest({ port: gateway.port, agent: client.agent, ...init });
    sent.write(body.slice(0, 1));
    await arrived.promise;
    await revokeAllGrants({ store, now: () => gateway.clock.now() }, { of: 'identity', identity: ALICE }, 86_400);
    sent.end(body.slice(1));
    const { status, json } = await reply;
    expect(status).toBe(200);
    expect((await gateway.api('/whoami', String(json['access_token']))).status).toBe(401);
    expect((await gateway.refresh(String(json['refresh_token']))).status).toBe(400);
  } finally {
    client.close();
    Object.assign(revocations, { getLastNumber });
  }
});

test('an approval is refused when the device flow was disabled after the page was shown', async () => {
  const now = (): number => 1_800_000_000;
  const store = createMemoryStore({ now });
  const request: DeviceRequest = {
    state: 'pending',
    id: 'r'.repeat(22),
    clientId: 'lab',
    scope: 'files:read',
    askedAt: now(),
    askedFrom: '192.0.2.1',
    expires: now() + 300,
    failedSignIns: 0,
  };
  await store.devices.create(request.id, request, request.expires);
  const log = createLogger({ level: 'error', format: 'json', write: () => {} });
  // Only what a decision reads; the integration has been removed.
  const deps = { store, now, log, integrations: new Map(), policy: { device: { enabled: true } } };
  const user = {
    identity: 'local:{42}',
    displayName: 'Mallory',
    directory: 'staff',
    groups: new Set<string>(),
    disabled: true,
  };
  const decided = await confirmDevice(deps as unknown as GrantDeps, request.id, user);
  expect(decided).toMatchObject({ ok: false, refusal: { reason: 'client_unknown' } });
  expect((await store.devices.read(request.id))?.record.state).toBe('pending');
});

test('an approval given before all grants of the user were revoked yields no token; a later approval does', async () => {
  const device = createDeviceClient(gateway);
  const [phished, renewed] = [await device.requestCodes(), await device.requestCodes()];
  await device.decideInBrowser(phished);
  const { store } = gateway.server;
  await revokeAllGrants({ store, now: () => gateway.clock.now() }, { of: 'identity', identity: ALICE }, 86_400);
  gateway.clock.advance(2);
  const late = await device.exchange(phished.device_code);
  expect(late.status).toBe(400);
  expect(late.text).not.toContain('access_token');
  expect((await device.decideInBrowser(renewed)).status).toBe(200);
  expect((await device.exchange(renewed.device_code)).status).toBe(200);
});

test('grants revoked by an operator stay revoked after the settings have shortened the grant lifetime', () =>
  withSettings(gateway, withTokens({ grantLifetime: '90d' }), async () => {
    const { refresh_token: token } = await gateway.grant();
    await gateway.reload(withTokens({ grantLifetime: '2h' }));
    const adminToken = readFileSync(join(gateway.folder, 'data/admin-token'), 'utf8').trim();
    const revoked = await fetch(`http://127.0.0.1:${gateway.adminPort}/admin/v1/revoke`, {
      method: 'POST',
      headers: { authorization: `Bearer ${adminToken}`, 'content-type': 'application/json' },
      body: JSON.stringify({ identity: ALICE }),
    });
    expect(revoked.status).toBe(200);
    for (const days of [1, 3, 60]) {
      gateway.clock.advance(days * 86_400);
      const reply = await gateway.refresh(token);
      expect(reply.status, `after ${days} more days`).toBe(400);
      expect(reply.text).not.toContain('access_token');
    }
  }));
