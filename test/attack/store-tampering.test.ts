import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { isTemporary } from '../chaos/fleet.ts';
import { createDeviceClient, FORM, getRequestId } from '../support/device-client.ts';
import { embeddedStorePath, openRawEmbedded, openRawRedis, type RawRecords, tamper } from '../support/raw-records.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { scrape } from '../support/scrape.ts';
import {
  ALICE,
  BOB,
  REDIS_TIMEOUT_MS,
  startGateway,
  type TestGateway,
  type TokenGrant,
} from '../support/test-gateway.ts';

/** An attacker with write access to the store and their own tokens tries to obtain those of other users. */
let redis: RedisServer;
let gateway: TestGateway;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis.stop());
afterEach(() => gateway.close());

const decodeClaims = ({ access_token: token }: TokenGrant): Record<string, unknown> =>
  JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString()) as Record<string, unknown>;
const getGrantId = (grant: TokenGrant): string => String(decodeClaims(grant)['gid']);

let storeCount = 0;
const prefix = (): string => `t${storeCount}`;

const STORES = [
  {
    name: 'Redis',
    open() {
      storeCount += 1;
      const store = { type: 'redis', url: redis.url, prefix: prefix() } as const;
      return startGateway(
        (settings) => ({ ...settings, store, keys: { file: 'keys.json' } }),
        (folder) => writeKeyringFile(join(folder, 'keys.json'), createKeyringFile('EdDSA'), { replace: false }),
        REDIS_TIMEOUT_MS,
      );
    },
    /** Writes while gatehouse runs. */
    async attack(run: (raw: RawRecords) => Promise<void>) {
      const raw = openRawRedis(redis.port, prefix());
      try {
        await run(raw);
      } finally {
        await raw.close();
      }
    },
  },
  {
    name: 'the embedded store',
    open: () => startGateway(),
    /** Writes while gatehouse is stopped. */
    async attack(run: (raw: RawRecords) => Promise<void>) {
      await gateway.restart(async () => {
        const raw = openRawEmbedded(embeddedStorePath(gateway.folder));
        try {
          await run(raw);
        } finally {
          await raw.close();
        }
      });
    },
  },
] as const;

describe.each(STORES)('altered records in $name', (store) => {
  test('give no token for another identity or a wider scope, approve no device, and are logged as errors', async () => {
    gateway = await store.open();
    const steps = createDeviceClient(gateway);
    const [own, narrow, unaltered] = [
      await gateway.grant({ user: 'bob', scope: 'files:read' }),
      await gateway.grant({ scope: 'files:read' }),
      await gateway.grant({ scope: 'files:read' }),
    ];
    const codes = await steps.requestCodes();
    await store.attack(async (raw) => {
      await tamper(raw, 'grants', getGrantId(own), (text) => text.replace(BOB, ALICE));
      await tamper(raw, 'grants', getGrantId(narrow), (text) =>
        text.replace('"files:read"', '"reports:read,write;files:read"'),
      );
      await tamper(raw, 'devices', getRequestId(codes), (text) =>
        text.replace('"state":"pending"', `"state":"confirmed","identity":"${ALICE}"`),
      );
    });

    for (const { refresh_token: token } of [own, narrow]) {
      const reply = await gateway.refresh(token);
      expect([reply.status, reply.json['Error'], reply.json['access_token']]).toEqual([
        400,
        'invalid_grant',
        undefined,
      ]);
    }
    const exchanged = await steps.exchange(codes.device_code);
    expect([exchanged.status, exchanged.json['access_token']]).toEqual([400, undefined]);

    const refused = [getGrantId(own), getGrantId(narrow), getRequestId(codes)];
    const audits = gateway
      .auditEvents('record_refused')
      .map(({ record, reason }) => `${String(record)} ${String(reason)}`);
    expect(audits.toSorted()).toEqual(refused.map((id) => `${id} mac_wrong`).toSorted());
    const alarms = gateway.log.filter(({ event }) => event === 'store_record_refused');
    expect(alarms.map(({ level, record }) => `${String(level)} ${String(record)}`).toSorted()).toEqual(
      refused.map((id) => `error ${id}`).toSorted(),
    );
    const metrics = await scrape(gateway.adminPort);
    const getRefusedCount = (kind: string): number =>
      metrics.value(`gatehouse_store_records_refused_total{kind="${kind}",reason="mac_wrong"}`);
    // Grants are also read in the background after a start.
    expect(getRefusedCount('grants')).toBeGreaterThanOrEqual(2);
    expect([getRefusedCount('devices'), getRefusedCount('userCodes')]).toEqual([1, 0]);

    const next = await gateway.refresh(unaltered.refresh_token);
    expect(next.status).toBe(200);
    expect(decodeClaims(next.json as unknown as TokenGrant)).toMatchObject({
      sub: ALICE,
      scope: 'files:read',
    });
  });

  test('an earlier version of a grant that was restored keeps identity, scope and expiry, and stays revoked', async () => {
    gateway = await store.open();
    const [first, revoked] = [await gateway.grant(), await gateway.grant()];
    const old = new Map<string, string>();
    await store.attack(async (raw) => {
      for (const grant of [first, revoked]) old.set(getGrantId(grant), await raw.read('grants', getGrantId(grant)));
    });
    const second = (await gateway.refresh(first.refresh_token)).json as unknown as TokenGrant;
    expect((await gateway.api('/authsvc/Revoke/Token', revoked.access_token)).status).toBe(200);
    await store.attack(async (raw) => {
      for (const [id, text] of old) await raw.write('grants', id, text);
    });
    const third = await gateway.refresh(second.refresh_token);
    expect(third.status, third.text).toBe(200);
    expect(gateway.auditEvents('refresh_rolled_forward')).toHaveLength(1);
    const { sub, scope, client_id } = decodeClaims(first);
    expect(decodeClaims(third.json as unknown as TokenGrant)).toMatchObject({ sub, scope, client_id });
    expect(third.json['refresh_until']).toBe(first.refresh_until);
    expect((await gateway.refresh(revoked.refresh_token)).json['Error']).toBe('invalid_grant');
  });

  test('a grant that was altered, revoked and restored stays revoked for as long as it could be refreshed', async () => {
    gateway = await store.open();
    const grant = await gateway.grant();
    const id = getGrantId(grant);
    let original = '';
    await store.attack(async (raw) => {
      original = await raw.read('grants', id);
      await raw.write('grants', id, original.replace(ALICE, BOB));
    });
    expect((await gateway.api('/authsvc/Revoke/Token', grant.access_token)).status).toBe(200);
    await store.attack((raw) => raw.write('grants', id, original));
    const end = grant.refresh_until - gateway.clock.now();
    expect(end).toBeGreaterThan(7 * 86_400);
    gateway.clock.advance(end - 60);
    expect((await gateway.refresh(grant.refresh_token)).json['Error']).toBe('invalid_grant');
    expect(gateway.auditEvents('grant_refreshed')).toEqual([]);
  });

  test('a record with an unknown key is a temporary error, not an unknown grant', async () => {
    gateway = await store.open();
    const [grant, codes] = [await gateway.grant(), await createDeviceClient(gateway).requestCodes()];
    const rename = (text: string): string => text.replace(/"m":"[A-Za-z0-9]+\./, '"m":"mAnother1.');
    await store.attack(async (raw) => {
      await tamper(raw, 'grants', getGrantId(grant), rename);
      await tamper(raw, 'devices', getRequestId(codes), rename);
    });
    const body = new URLSearchParams({
      grant_type: 'refresh_token',
      client_id: 'report-runner',
      refresh_token: grant.refresh_token,
    });
    const path = '/authsvc/oauth2/token';
    const standard = await gateway.request({
      path,
      method: 'POST',
      headers: { 'content-type': FORM },
      body: body.toString(),
    });
    expect([standard.status, standard.json['error']]).toEqual([503, 'temporarily_unavailable']);
    for (const reply of [
      standard,
      await gateway.refresh(grant.refresh_token),
      await createDeviceClient(gateway).exchange(codes.device_code),
    ])
      expect(isTemporary(reply), reply.text).toBe(true);
    expect(gateway.auditEvents('record_refused')).toEqual([]);
  });

  test('unreadable or altered records do not prevent an operator from revoking a grant or all grants of an identity', async () => {
    gateway = await store.open();
    const token = readFileSync(join(gateway.folder, 'data/admin-token'), 'utf8').trim();
    const callAdminApi = async (path: string, body?: object): Promise<number> => {
      const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' };
      const url = `http://127.0.0.1:${gateway.adminPort}/admin/v1${path}`;
      return (await fetch(url, { method: 'POST', headers, ...(body && { body: JSON.stringify(body) }) })).status;
    };
    const [renamed, altered, unreadable, sound] = [
      await gateway.grant(),
      await gateway.grant(),
      await gateway.grant(),
      await gateway.grant(),
    ];
    let original = '';
    await store.attack(async (raw) => {
      await tamper(raw, 'grants', getGrantId(renamed), (text) => text.replace(/"m":"\w+\./, '"m":"mAnother1.'));
      original = await raw.read('grants', getGrantId(altered));
      await raw.write('grants', getGrantId(altered), original.replace(ALICE, BOB));
      await tamper(raw, 'grants', getGrantId(unreadable), (text) => text.replace('{"v":1', '{"v":2'));
    });
    expect(await callAdminApi(`/grants/${getGrantId(renamed)}/revoke`)).toBe(503);
    expect(await callAdminApi(`/grants/${getGrantId(altered)}/revoke`)).toBe(404);
    await store.attack((raw) => raw.write('grants', getGrantId(altered), original));
    expect((await gateway.refresh(altered.refresh_token)).json['Error']).toBe('invalid_grant');
    const callWith = async (grant: TokenGrant): Promise<number> =>
      (await gateway.api('/files/a', grant.access_token)).status;
    expect([await callWith(renamed), await callWith(altered), await callWith(sound)]).toEqual([401, 401, 200]);

    expect(await callAdminApi('/revoke', { identity: ALICE })).toBe(200);
    expect([await callWith(unreadable), await callWith(sound)]).toEqual([401, 401]);
    expect((await gateway.refresh(sound.refresh_token)).json['Error']).toBe('invalid_grant');
  });
});
