import { connect } from 'node:tls';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { type Failure, failing } from '../support/fault-injection.ts';
import { openRefresh } from '../support/forge.ts';
import { type House, openHouse } from '../support/house.ts';
import { under, withTokens } from '../support/reconfigure.ts';
import { until } from '../support/serve-process.ts';
import { INVALID_GRANT, refreshSteps } from './refresh-steps.ts';

/** Rows R14–R16: failures between the client, the gateway and the store. */
let house: House;
beforeAll(async () => {
  // Only `house.clock` moves the time: seconds that a busy machine takes are not part of any lifetime.
  vi.useFakeTimers({ toFake: ['Date'] });
  house = await openHouse();
});
afterAll(async () => {
  await house?.close();
  vi.useRealTimers();
});

const { rotated, call, reuses, expectFamilyEnded } = refreshSteps(() => house);

test('R14: the client disconnects after sending: its retry within the window gets the successor', async () => {
  for (let turn = 0; turn < 10; turn += 1) {
    const grant = await house.grant();
    const { grantId } = openRefresh(grant.refresh_token);
    const body = JSON.stringify({ client_id: 'report-runner', refresh_token: grant.refresh_token });
    const done = house.log.length;
    await new Promise<void>((resolve, reject) => {
      const socket = connect({
        host: '127.0.0.1',
        port: house.port,
        ca: house.ca.pem,
        servername: 'localhost',
      });
      socket.on('error', reject);
      socket.on('close', () => resolve());
      socket.on('secureConnect', () => {
        const head = `POST /authsvc/Authorize/Token HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n`;
        // Every second time the body never arrives whole.
        socket.write(head + (turn % 2 === 0 ? body : body.slice(0, -5)), () => socket.destroy());
      });
    });
    await until('the request has ended', () =>
      house.log.slice(done).some((line) => line.event === 'request'),
    );
    const successor = await rotated(grant.refresh_token);
    expect(openRefresh(successor.refresh_token)).toMatchObject({ grantId, generation: 2 });
    await rotated(successor.refresh_token);
    expect(reuses(grant)).toEqual([]);
  }
});

test.each(['does not happen', 'answer lost'] as const)(
  'R15: the store’s write %s: 400 invalid_request with Retry-After, never invalid_grant, and the retry converges',
  async (failure: Failure) => {
    const grant = await house.grant();
    const { grants } = house.gateway.store;
    await failing(grants, 'replace', failure, async () => {
      for (let turn = 0; turn < (failure === 'answer lost' ? 1 : 3); turn += 1) {
        const reply = await house.refresh(grant.refresh_token);
        expect(reply).toMatchObject({ status: 400, json: { Error: 'invalid_request' } });
        expect(reply.headers['retry-after']).toMatch(/^[1-9]\d*$/);
      }
    });
    const successor = await rotated(grant.refresh_token);
    expect(openRefresh(successor.refresh_token).generation).toBe(2);
    expect((await rotated(grant.refresh_token)).refresh_token).toBe(successor.refresh_token);
    expect(openRefresh((await rotated(successor.refresh_token)).refresh_token).generation).toBe(3);
    expect(reuses(grant)).toEqual([]);
  },
);

test('R15: the response to a supersede announcement is lost: the retry converges, and only the old access token is revoked', async () => {
  await under(house, withTokens({ refresh: { supersede: true } }), async () => {
    const first = await house.grant();
    const { revocations, grants } = house.gateway.store;
    const lost = await failing(revocations, 'announce', 'answer lost', () =>
      house.refresh(first.refresh_token),
    );
    expect(lost.json).toMatchObject({ Error: 'invalid_request' });
    const unwritten = await failing(grants, 'replace', 'does not happen', () =>
      house.refresh(first.refresh_token),
    );
    expect(unwritten.json).toMatchObject({ Error: 'invalid_request' });
    const second = await rotated(first.refresh_token);
    expect(await call(second.access_token)).toBe(200);
    expect(await call(first.access_token)).toBe(401);
  });
});

test('R15: the response to a reuse announcement is lost: the client gets a temporary error, and the grant is revoked', async () => {
  const first = await house.grant();
  const second = await rotated(first.refresh_token);
  house.clock.advance(11);
  const { revocations } = house.gateway.store;
  const reply = await failing(revocations, 'announce', 'answer lost', () =>
    house.refresh(first.refresh_token),
  );
  expect(reply.json).toMatchObject({ Error: 'invalid_request' });
  await expectFamilyEnded(second);
});

test('R16: a failover rolled the record back: the newer token is accepted, the record is rolled forward and audited', async () => {
  const first = await house.grant();
  const { grantId } = openRefresh(first.refresh_token);
  const { grants } = house.gateway.store;
  const old = await grants.read(grantId);
  const second = await rotated(first.refresh_token);
  const third = await rotated(second.refresh_token);
  const now = await grants.read(grantId);
  if (old === undefined || now === undefined) throw new Error('the grant is there');
  await grants.replace(grantId, now.version, old.record, old.record.refreshUntil + 86_400);

  const fourth = await rotated(third.refresh_token);
  expect(openRefresh(fourth.refresh_token)).toMatchObject({ grantId, generation: 4 });
  expect((await grants.read(grantId))?.record.generation).toBe(4);
  expect(house.audits('refresh_rolled_forward').at(-1)).toMatchObject({ grant: grantId, generation: 4 });
  expect((await rotated(third.refresh_token)).refresh_token).toBe(fourth.refresh_token);
  expect(await call(fourth.access_token)).toBe(200);
  expect(
    await house.refresh(second.refresh_token),
    'spent before the fail-over, spent after it',
  ).toMatchObject(INVALID_GRANT);
  await expectFamilyEnded(fourth);
});

test('R16: a record rolled back to before its revocation stays revoked', async () => {
  const grant = await house.grant();
  const { grantId } = openRefresh(grant.refresh_token);
  const { grants } = house.gateway.store;
  const old = await grants.read(grantId);
  const headers = { authorization: `Bearer ${grant.access_token}` };
  expect((await house.ask({ path: '/authsvc/Revoke/Token', headers })).status).toBe(200);
  const now = await grants.read(grantId);
  if (old === undefined || now === undefined) throw new Error('the grant is there');
  await grants.replace(grantId, now.version, old.record, old.record.refreshUntil + 86_400);
  await expectFamilyEnded(grant);
});
