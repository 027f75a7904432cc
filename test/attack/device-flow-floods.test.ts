import { afterEach, describe, expect, test } from 'vitest';
import type { RecordStore } from '../../src/ports/store.ts';
import { type DeviceCodes, getRequestId } from '../support/device-client.ts';
import { withFailure } from '../support/fault-injection.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { type Reply, startGateway, type TestGateway } from '../support/test-gateway.ts';

const DEVICE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code';

describe('device requests of an attacker', () => {
  freezeClock();
  let gateway: TestGateway;
  const startWithLimits = async (device: { maxPending: number; maxPendingPerClient: number }): Promise<void> => {
    gateway = await startGateway((settings) => ({ ...settings, trustedProxies: ['127.0.0.1'], device }));
  };
  afterEach(() => gateway.close());

  const requestCodes = (from: string, clientId = 'report-runner'): Promise<Reply> =>
    gateway.post(
      '/Authorize/Device',
      { client_id: clientId, scope: 'files:read' },
      { headers: { 'x-forwarded-for': from } },
    );
  const poll = ({ device_code }: DeviceCodes): Promise<Reply> =>
    gateway.post('/Authorize/Token', { client_id: 'report-runner', grant_type: DEVICE_GRANT, device_code });
  const expectCodes = (reply: Reply): DeviceCodes => {
    expect(reply.status).toBe(200);
    return reply.json as unknown as DeviceCodes;
  };
  /** Requests codes `times` times from each address, and returns those granted. */
  const flood = async (addresses: readonly string[], times: number, clientId?: string): Promise<DeviceCodes[]> => {
    const granted: DeviceCodes[] = [];
    for (let index = 0; index < times; index += 1)
      for (const reply of await Promise.all(addresses.map((from) => requestCodes(from, clientId))))
        if (reply.status === 200) granted.push(reply.json as unknown as DeviceCodes);
    return granted;
  };
  const tenNetworks = Array.from({ length: 10 }, (_, index) => `2a0${index}:db8:0:1::1`);

  test('D18 when ten /64 networks fill the limit of an integration, a device in another network still gets a code', async () => {
    await startWithLimits({ maxPending: 1_000, maxPendingPerClient: 50 });
    const attack = await flood(tenNetworks, 7);
    // Five per network: a tenth of the limit.
    expect(attack).toHaveLength(50);
    expect((await requestCodes(tenNetworks[0] ?? '')).status).toBe(429);

    const user = expectCodes(await requestCodes('198.51.100.7'));
    expect((await poll(user)).json).toMatchObject({ Error: 'authorization_pending' });
    const [evicted, ...others] = gateway.auditEvents('device_evicted');
    expect(evicted).toMatchObject({ client: 'report-runner', from: expect.stringContaining('2a0') });
    expect(others).toEqual([]);
    // Only the evicted request is reported as expired to its device.
    const states = await Promise.all(attack.map(async (codes) => String((await poll(codes)).json['Error'])));
    expect(states.filter((state) => state === 'invalid_grant')).toHaveLength(1);
    expect(states.filter((state) => state === 'authorization_pending')).toHaveLength(49);
  });

  test.each(['devices', 'userCodes'] as const)(
    'a device whose requests failed because %s could not be written is not counted as flooding',
    async (part) => {
      await startWithLimits({ maxPending: 1_000, maxPendingPerClient: 20 });
      const records: RecordStore<unknown> = gateway.server.store[part];
      // Two requests of an address may be pending: a tenth of the limit.
      for (const failure of ['not executed', 'response lost', 'not executed'] as const) {
        const failed = await withFailure(records, 'create', failure, () => requestCodes('198.51.100.7'));
        expect(failed.json).toMatchObject({ Error: 'invalid_request' });
        expect(failed.headers['retry-after']).toBeDefined();
      }
      expectCodes(await requestCodes('198.51.100.7'));
      expectCodes(await requestCodes('198.51.100.7'));
      expect((await requestCodes('198.51.100.7')).status).toBe(429);
    },
  );

  test('D18 while the attack continues, every device in another network gets a code until the shares are equal', async () => {
    await startWithLimits({ maxPending: 1_000, maxPendingPerClient: 50 });
    await flood(tenNetworks, 5);
    for (let index = 0; index < 12; index += 1) {
      expectCodes(await requestCodes(`198.${index + 18}.100.7`));
      expect((await requestCodes(tenNetworks[index % 10] ?? '')).status).toBe(429);
    }
    const requestCount = gateway.auditEvents('device_requested').length;
    expect(requestCount - gateway.auditEvents('device_evicted').length).toBe(50);
  });

  test('D18 a thousand /64 of one /48, or of one /32, count as one network', async () => {
    await startWithLimits({ maxPending: 1_000, maxPendingPerClient: 40 });
    const getAddress = (index: number): string => `2001:db8:${(index % 7).toString(16)}:${index.toString(16)}::1`;
    expect(
      await flood(
        Array.from({ length: 60 }, (_, index) => getAddress(index)),
        1,
      ),
    ).toHaveLength(40);
    for (let index = 0; index < 5; index += 1) expectCodes(await requestCodes(`198.51.${index}.7`));
    expect(gateway.auditEvents('device_evicted')).toHaveLength(5);
  });

  test('D18 the limit of all integrations is shared between networks, too', async () => {
    await startWithLimits({ maxPending: 40, maxPendingPerClient: 30 });
    const attackers = Array.from({ length: 8 }, (_, index) => `2a0${index}:db8:0:1::1`);
    expect(await flood(attackers, 3, 'report-runner')).toHaveLength(24);
    expect(await flood(attackers, 3, 'other-app')).toHaveLength(16);
    expectCodes(await requestCodes('198.51.100.7'));
    expectCodes(await requestCodes('198.51.100.7', 'other-app'));
    expect(gateway.auditEvents('device_evicted')).toHaveLength(2);
    // An evicted request no longer counts against either limit, so the integration accepts as many again.
    gateway.clock.advance(301);
    expect(await flood(attackers, 3, 'report-runner')).toHaveLength(24);
  });

  test('D18 a refused request evicts no other', async () => {
    await startWithLimits({ maxPending: 8, maxPendingPerClient: 4 });
    // The attacker's network has the most requests overall, all of another integration.
    const near = Array.from({ length: 4 }, (_, index) => `2a00:db8:${index}:1::1`);
    expect(await flood(near, 1, 'other-app')).toHaveLength(4);
    const users = ['198.51.100.7', '198.51.101.7', '198.51.102.7', '198.51.103.7'];
    const pending = await flood(users, 1);
    expect(pending).toHaveLength(4);
    expect((await requestCodes('2a00:db8:9:1::1')).status).toBe(429);
    expect(gateway.auditEvents('device_evicted')).toEqual([]);
    for (const codes of pending) expect((await poll(codes)).json).toMatchObject({ Error: 'authorization_pending' });
  });

  test('D18 a request that a user has approved is not evicted', async () => {
    await startWithLimits({ maxPending: 1_000, maxPendingPerClient: 10 });
    const approved = expectCodes(await requestCodes('203.0.113.1'));
    const { devices } = gateway.server.store;
    const id = getRequestId(approved);
    const found = await devices.read(id);
    if (found === undefined) throw new Error('device request not found');
    const confirmed = {
      ...found.record,
      state: 'confirmed',
      identity: 'local:{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}',
      decidedAt: found.record.askedAt,
    } as const;
    await devices.replace(id, found.version, confirmed, found.record.expires + 600);
    const neighbours = Array.from({ length: 9 }, (_, index) => `203.0.113.${index + 2}`);
    expect(await flood(neighbours, 1)).toHaveLength(9);
    for (const from of ['198.51.100.1', '192.0.2.1', '100.64.0.1', '198.18.0.1']) expectCodes(await requestCodes(from));
    expect((await poll(approved)).status).toBe(200);
  });
});
