import { connect } from 'node:tls';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { type Failure, withFailure } from '../support/fault-injection.ts';
import { splitRefreshToken } from '../support/forged-tokens.ts';
import { withSettings, withTokens } from '../support/reconfigure.ts';
import { until } from '../support/serve-process.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';
import { createRefreshClient, INVALID_GRANT } from './refresh-client.ts';

/** Rows R14–R16: failures between the client, the gateway and the store. */
let gateway: TestGateway;
beforeAll(async () => {
  // Time advances only through `gateway.clock`, so a slow machine cannot make a token expire.
  vi.useFakeTimers({ toFake: ['Date'] });
  gateway = await startGateway();
});
afterAll(async () => {
  await gateway?.close();
  vi.useRealTimers();
});

const { rotate, requestStatus, reuseEvents, expectFamilyEnded } = createRefreshClient(() => gateway);

test('R14: the client disconnects after sending: its retry within the window gets the successor', async () => {
  for (let attempt = 0; attempt < 10; attempt += 1) {
    const grant = await gateway.grant();
    const { grantId } = splitRefreshToken(grant.refresh_token);
    const body = JSON.stringify({ client_id: 'report-runner', refresh_token: grant.refresh_token });
    const logLength = gateway.log.length;
    await new Promise<void>((resolve, reject) => {
      const socket = connect({
        host: '127.0.0.1',
        port: gateway.port,
        ca: gateway.ca.pem,
        servername: 'localhost',
      });
      socket.on('error', reject);
      socket.on('close', () => resolve());
      socket.on('secureConnect', () => {
        const head = `POST /authsvc/Authorize/Token HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n`;
        // In every second attempt the body is incomplete.
        socket.write(head + (attempt % 2 === 0 ? body : body.slice(0, -5)), () => socket.destroy());
      });
    });
    await until('the request is logged', () => gateway.log.slice(logLength).some((line) => line.event === 'request'));
    const successor = await rotate(grant.refresh_token);
    expect(splitRefreshToken(successor.refresh_token)).toMatchObject({ grantId, generation: 2 });
    await rotate(successor.refresh_token);
    expect(reuseEvents(grant)).toEqual([]);
  }
});

test.each(['not executed', 'response lost'] as const)(
  'R15: a store write is %s: 400 invalid_request with Retry-After, never invalid_grant, and the retry converges',
  async (failure: Failure) => {
    const grant = await gateway.grant();
    const { grants } = gateway.server.store;
    await withFailure(grants, 'replace', failure, async () => {
      for (let attempt = 0; attempt < (failure === 'response lost' ? 1 : 3); attempt += 1) {
        const reply = await gateway.refresh(grant.refresh_token);
        expect(reply).toMatchObject({ status: 400, json: { Error: 'invalid_request' } });
        expect(reply.headers['retry-after']).toMatch(/^[1-9]\d*$/);
      }
    });
    const successor = await rotate(grant.refresh_token);
    expect(splitRefreshToken(successor.refresh_token).generation).toBe(2);
    expect((await rotate(grant.refresh_token)).refresh_token).toBe(successor.refresh_token);
    expect(splitRefreshToken((await rotate(successor.refresh_token)).refresh_token).generation).toBe(3);
    expect(reuseEvents(grant)).toEqual([]);
  },
);

test('R15: the response to a supersede announcement is lost: the retry converges, and only the old access token is revoked', async () => {
  await withSettings(gateway, withTokens({ refresh: { supersede: true } }), async () => {
    const first = await gateway.grant();
    const { revocations, grants } = gateway.server.store;
    const lost = await withFailure(revocations, 'announce', 'response lost', () =>
      gateway.refresh(first.refresh_token),
    );
    expect(lost.json).toMatchObject({ Error: 'invalid_request' });
    const unwritten = await withFailure(grants, 'replace', 'not executed', () => gateway.refresh(first.refresh_token));
    expect(unwritten.json).toMatchObject({ Error: 'invalid_request' });
    const second = await rotate(first.refresh_token);
    expect(await requestStatus(second.access_token)).toBe(200);
    expect(await requestStatus(first.access_token)).toBe(401);
  });
});

test('R15: the response to a reuse announcement is lost: the client gets a temporary error, and the grant is revoked', async () => {
  const first = await gateway.grant();
  const second = await rotate(first.refresh_token);
  gateway.clock.advance(11);
  const { revocations } = gateway.server.store;
  const reply = await withFailure(revocations, 'announce', 'response lost', () => gateway.refresh(first.refresh_token));
  expect(reply.json).toMatchObject({ Error: 'invalid_request' });
  await expectFamilyEnded(second);
});

test('R16: a failover rolled the record back: the newer token is accepted, the record is rolled forward and audited', async () => {
  const first = await gateway.grant();
  const { grantId } = splitRefreshToken(first.refresh_token);
  const { grants } = gateway.server.store;
  const old = await grants.read(grantId);
  const second = await rotate(first.refresh_token);
  const third = await rotate(second.refresh_token);
  const now = await grants.read(grantId);
  if (old === undefined || now === undefined) throw new Error('grant not found');
  await grants.replace(grantId, now.version, old.record, old.record.refreshUntil + 86_400);

  const fourth = await rotate(third.refresh_token);
  expect(splitRefreshToken(fourth.refresh_token)).toMatchObject({ grantId, generation: 4 });
  expect((await grants.read(grantId))?.record.generation).toBe(4);
  expect(gateway.auditEvents('refresh_rolled_forward').at(-1)).toMatchObject({
    grant: grantId,
    generation: 4,
  });
  expect((await rotate(third.refresh_token)).refresh_token).toBe(fourth.refresh_token);
  expect(await requestStatus(fourth.access_token)).toBe(200);
  expect(await gateway.refresh(second.refresh_token), 'spent before the failover, spent after it').toMatchObject(
    INVALID_GRANT,
  );
  await expectFamilyEnded(fourth);
});

test('R16: a record rolled back to before its revocation stays revoked', async () => {
  const grant = await gateway.grant();
  const { grantId } = splitRefreshToken(grant.refresh_token);
  const { grants } = gateway.server.store;
  const old = await grants.read(grantId);
  const headers = { authorization: `Bearer ${grant.access_token}` };
  expect((await gateway.request({ path: '/authsvc/Revoke/Token', headers })).status).toBe(200);
  const now = await grants.read(grantId);
  if (old === undefined || now === undefined) throw new Error('grant not found');
  await grants.replace(grantId, now.version, old.record, old.record.refreshUntil + 86_400);
  await expectFamilyEnded(grant);
});
