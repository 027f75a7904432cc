import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { isTemporary } from '../chaos/fleet.ts';
import { createDeviceClient, FORM, getRequestId } from '../support/device-client.ts';
import {
  embeddedStorePath,
  openRawEmbedded,
  openRawRedis,
  type RawRecords,
  tamper,
} from '../support/raw-records.ts';
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

/** An attacker who can write to the store, and who has tokens of their own, wants those of others. */
let redis: RedisServer;
let gateway: TestGateway;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis.stop());
afterEach(() => gateway.close());

const claimsOf = ({ access_token: token }: TokenGrant): Record<string, unknown> =>
  JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString()) as Record<string, unknown>;
const grantIdOf = (grant: TokenGrant): string => String(claimsOf(grant)['gid']);

let opened = 0;
const prefix = (): string => `t${opened}`;

const STORES = [
  {
    name: 'Redis',
    open() {
      opened += 1;
      const store = { type: 'redis', url: redis.url, prefix: prefix() } as const;
      return startGateway(
        (settings) => ({ ...settings, store, keys: { file: 'keys.json' } }),
        (folder) =>
          writeKeyringFile(join(folder, 'keys.json'), createKeyringFile('EdDSA'), { replace: false }),
        REDIS_TIMEOUT_MS,
      );
    },
    /** While gatehouse runs. */
    async attack(by: (raw: RawRecords) => Promise<void>) {
      const raw = openRawRedis(redis.port, prefix());
      try {
        await by(raw);
      } finally {
        await raw.close();
      }
    },
  },
  {
    name: 'the embedded store',
    open: () => startGateway(),
    /** While it does not. */
    async attack(by: (raw: RawRecords) => Promise<void>) {
      await gateway.restart(async () => {
        const raw = openRawEmbedded(embeddedStorePath(gateway.folder));
        try {
          await by(raw);
        } finally {
          await raw.close();
        }
      });
    },
  },
] as const;

describe.each(STORES)('records that were altered in $name', (store) => {
  test('give no token for another identity or a wider scope, approve no device, and raise an alarm', async () => {
    gateway = await store.open();
    const steps = createDeviceClient(gateway);
    const [mine, narrow, kept] = [
      await gateway.grant({ user: 'bob', scope: 'files:read' }),
      await gateway.grant({ scope: 'files:read' }),
      await gateway.grant({ scope: 'files:read' }),
    ];
    const codes = await steps.requestCodes();
    await store.attack(async (raw) => {
      await tamper(raw, 'grants', grantIdOf(mine), (text) => text.replace(BOB, ALICE));
      await tamper(raw, 'grants', grantIdOf(narrow), (text) =>
        text.replace('"files:read"', '"reports:read,write;files:read"'),
      );
      await tamper(raw, 'devices', getRequestId(codes), (text) =>
        text.replace('"state":"pending"', `"state":"confirmed","identity":"${ALICE}"`),
      );
    });

    for (const { refresh_token: token } of [mine, narrow]) {
      const reply = await gateway.refresh(token);
      expect([reply.status, reply.json['Error'], reply.json['access_token']]).toEqual([
        400,
        'invalid_grant',
        undefined,
      ]);
    }
    const exchanged = await steps.exchange(codes.device_code);
    expect([exchanged.status, exchanged.json['access_token']]).toEqual([400, undefined]);

    const refused = [grantIdOf(mine), grantIdOf(narrow), getRequestId(codes)];
    const audits = gateway
      .auditEvents('record_refused')
      .map(({ record, reason }) => `${String(record)} ${String(reason)}`);
    expect(audits.toSorted()).toEqual(refused.map((id) => `${id} mac_wrong`).toSorted());
    const alarms = gateway.log.filter(({ event }) => event === 'store_record_refused');
    expect(alarms.map(({ level, record }) => `${String(level)} ${String(record)}`).toSorted()).toEqual(
      refused.map((id) => `error ${id}`).toSorted(),
    );
    const metrics = await scrape(gateway.adminPort);
    const counted = (kind: string): number =>
      metrics.value(`gatehouse_store_records_refused_total{kind="${kind}",reason="mac_wrong"}`);
    // Grants are also read in the background after a start.
    expect(counted('grants')).toBeGreaterThanOrEqual(2);
    expect([counted('devices'), counted('userCodes')]).toEqual([1, 0]);

    const next = await gateway.refresh(kept.refresh_token);
    expect(next.status).toBe(200);
    expect(claimsOf(next.json as unknown as TokenGrant)).toMatchObject({ sub: ALICE, scope: 'files:read' });
  });

  test('an earlier version of a grant that was put back keeps identity, scope and end, and stays revoked', async () => {
    gateway = await store.open();
    const [first, ended] = [await gateway.grant(), await gateway.grant()];
    const old = new Map<string, string>();
    await store.attack(async (raw) => {
      for (const grant of [first, ended])
        old.set(grantIdOf(grant), await raw.read('grants', grantIdOf(grant)));
    });
    const second = (await gateway.refresh(first.refresh_token)).json as unknown as TokenGrant;
    expect((await gateway.api('/authsvc/Revoke/Token', ended.access_token)).status).toBe(200);
    await store.attack(async (raw) => {
      for (const [id, text] of old) await raw.write('grants', id, text);
    });
    const third = await gateway.refresh(second.refresh_token);
    expect(third.status, third.text).toBe(200);
    expect(gateway.auditEvents('refresh_rolled_forward')).toHaveLength(1);
    const { sub, scope, client_id } = claimsOf(first);
    expect(claimsOf(third.json as unknown as TokenGrant)).toMatchObject({ sub, scope, client_id });
    expect(third.json['refresh_until']).toBe(first.refresh_until);
    expect((await gateway.refresh(ended.refresh_token)).json['Error']).toBe('invalid_grant');
  });

  test('a grant that was altered, revoked and put back as it was stays revoked for as long as it could be refreshed', async () => {
    gateway = await store.open();
    const grant = await gateway.grant();
    const id = grantIdOf(grant);
    let whole = '';
    await store.attack(async (raw) => {
      whole = await raw.read('grants', id);
      await raw.write('grants', id, whole.replace(ALICE, BOB));
    });
    expect((await gateway.api('/authsvc/Revoke/Token', grant.access_token)).status).toBe(200);
    await store.attack((raw) => raw.write('grants', id, whole));
    const end = grant.refresh_until - gateway.clock.now();
    expect(end).toBeGreaterThan(7 * 86_400);
    gateway.clock.advance(end - 60);
    expect((await gateway.refresh(grant.refresh_token)).json['Error']).toBe('invalid_grant');
    expect(gateway.auditEvents('grant_refreshed')).toEqual([]);
  });

  test('a record of a key that this process does not have is a temporary error, and not an unknown grant', async () => {
    gateway = await store.open();
    const [grant, codes] = [await gateway.grant(), await createDeviceClient(gateway).requestCodes()];
    const rename = (text: string): string => text.replace(/"m":"[A-Za-z0-9]+\./, '"m":"mAnother1.');
    await store.attack(async (raw) => {
      await tamper(raw, 'grants', grantIdOf(grant), rename);
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

  test('records that cannot be read or were altered keep an operator from ending neither a grant nor all of an identity', async () => {
    gateway = await store.open();
    const token = readFileSync(join(gateway.folder, 'data/admin-token'), 'utf8').trim();
    const administer = async (path: string, body?: object): Promise<number> => {
      const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' };
      const url = `http://127.0.0.1:${gateway.adminPort}/admin/v1${path}`;
      return (await fetch(url, { method: 'POST', headers, ...(body && { body: JSON.stringify(body) }) }))
        .status;
    };
    const [renamed, altered, unreadable, sound] = [
      await gateway.grant(),
      await gateway.grant(),
      await gateway.grant(),
      await gateway.grant(),
    ];
    let whole = '';
    await store.attack(async (raw) => {
      await tamper(raw, 'grants', grantIdOf(renamed), (text) =>
        text.replace(/"m":"\w+\./, '"m":"mAnother1.'),
      );
      whole = await raw.read('grants', grantIdOf(altered));
      await raw.write('grants', grantIdOf(altered), whole.replace(ALICE, BOB));
      await tamper(raw, 'grants', grantIdOf(unreadable), (text) => text.replace('{"v":1', '{"v":2'));
    });
    expect(await administer(`/grants/${grantIdOf(renamed)}/revoke`)).toBe(503);
    expect(await administer(`/grants/${grantIdOf(altered)}/revoke`)).toBe(404);
    await store.attack((raw) => raw.write('grants', grantIdOf(altered), whole));
    expect((await gateway.refresh(altered.refresh_token)).json['Error']).toBe('invalid_grant');
    const used = async (grant: TokenGrant): Promise<number> =>
      (await gateway.api('/files/a', grant.access_token)).status;
    expect([await used(renamed), await used(altered), await used(sound)]).toEqual([401, 401, 200]);

    expect(await administer('/revoke', { identity: ALICE })).toBe(200);
    expect([await used(unreadable), await used(sound)]).toEqual([401, 401]);
    expect((await gateway.refresh(sound.refresh_token)).json['Error']).toBe('invalid_grant');
  });
});
