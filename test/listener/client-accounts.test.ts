import { describe, expect, test } from 'vitest';
import { ClientAccounts, deriveClientLimits } from '../../src/listener/client-accounts.ts';

const MIB = 1_048_576;
const microtasks = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe('what may be held', () => {
  test('one network may hold three quarters of it, and another one still has a share', () => {
    const accounts = new ClientAccounts(1_000);
    const first = accounts.openConnection('192.0.2.1', () => {});
    while (first.mayGrow) first.add(10);
    expect(first.bytes).toBe(750);
    const sameNetwork = accounts.openConnection('192.0.2.200', () => {});
    const other = accounts.openConnection('198.51.100.1', () => {});
    expect([sameNetwork.mayGrow, other.mayGrow]).toEqual([false, true]);
  });

  test.each([
    ['192.0.2.1', '192.0.2.254', true],
    ['192.0.2.1', '192.0.3.1', false],
    ['2001:db8:1:2::3', '2001:db8:1:ffff::1', true],
    ['2001:db8:1::1', '2001:db8:2::1', false],
  ])('%s and %s are the same network: %s', (one, other, isSame) => {
    const accounts = new ClientAccounts(1_000);
    const [first, second] = [one, other].map((address) => accounts.openConnection(address, () => {}));
    expect(first?.account === second?.account).toBe(isSame);
  });

  test('beyond the limit, the largest holding of the account that holds the most is evicted', async () => {
    const accounts = new ClientAccounts(1_000);
    const evicted: string[] = [];
    const open = (name: string, address: string, bytes: number): void => {
      const connection = accounts.openConnection(address, () => void evicted.push(name));
      connection.add(bytes);
    };
    open('newcomer', '198.51.100.1', 300);
    open('small', '192.0.2.1', 100);
    open('large', '192.0.2.2', 400);
    open('medium', '192.0.2.3', 250);
    await microtasks();
    expect([evicted, accounts.bytes, accounts.evictions]).toEqual([['large'], 650, 1]);
  });

  test('connections with authorized requests are evicted last', async () => {
    const accounts = new ClientAccounts(1_000);
    const evicted: string[] = [];
    const authorized = accounts.openConnection('192.0.2.1', () => void evicted.push('authorized'));
    authorized.hasAuthorized = true;
    authorized.add(700);
    accounts.openConnection('192.0.2.2', () => void evicted.push('unknown')).add(350);
    await microtasks();
    expect(evicted).toEqual(['unknown']);
    authorized.add(400);
    await microtasks();
    expect(evicted).toEqual(['unknown', 'authorized']);
    expect(accounts.bytes).toBe(0);
  });

  test('what an evicted connection gives back later is not counted twice', async () => {
    const accounts = new ClientAccounts(1_000);
    const connection = accounts.openConnection('192.0.2.1', () => {});
    connection.add(2_000);
    await microtasks();
    connection.add(-2_000);
    connection.close();
    expect(accounts.bytes).toBe(0);
  });

  test('a connection whose address becomes known later takes its bytes along', () => {
    const accounts = new ClientAccounts(1_000);
    const connection = accounts.openConnection('10.0.0.1', () => {});
    connection.add(100);
    const balancer = connection.account;
    connection.setAddress('192.0.2.1');
    expect([balancer.bytes, connection.account.bytes, accounts.bytes]).toEqual([0, 100, 100]);
    connection.close();
    expect(accounts.bytes).toBe(0);
  });

  test('holdings of an identity and of a network are counted together, and released once', () => {
    const accounts = new ClientAccounts(1_000);
    const [response, body] = [accounts.hold('alice', () => {}), accounts.hold('alice', () => {})];
    response.set(300);
    body.set(200);
    expect(response.account.bytes).toBe(500);
    response.release();
    response.release();
    response.set(100);
    expect([body.account.bytes, accounts.bytes]).toEqual([200, 200]);
  });

  test('a second release does not affect what the same client holds by then', () => {
    const accounts = new ClientAccounts(1_000);
    const first = accounts.hold('alice', () => {});
    first.set(100);
    first.release();
    const second = accounts.hold('alice', () => {});
    second.set(800);
    first.release();
    expect([accounts.mayGrow('alice'), accounts.hold('alice', () => {}).account]).toEqual([false, second.account]);
  });

  test('random charges of many clients never leave more than the limit, and nothing when all have closed', async () => {
    const accounts = new ClientAccounts(100_000);
    const open = new Set<ReturnType<ClientAccounts['openConnection']>>();
    let seed = 1;
    const random = (below: number): number => {
      seed = (seed * 48_271) % 2_147_483_647;
      return seed % below;
    };
    for (let step = 0; step < 5_000; step += 1) {
      const connections = [...open];
      const one = connections[random(connections.length || 1)];
      if (one === undefined || random(10) === 0) {
        const added = accounts.openConnection(`192.0.${random(5)}.${random(250)}`, () => {
          open.delete(added);
        });
        open.add(added);
      } else if (random(20) === 0) {
        open.delete(one);
        one.close();
      } else one.add(random(2) === 0 ? random(5_000) : -Math.min(one.bytes, random(5_000)));
      if (step % 50 === 0) {
        await microtasks();
        expect(accounts.bytes).toBeLessThanOrEqual(100_000);
      }
    }
    for (const connection of open) connection.close();
    expect(accounts.bytes).toBe(0);
  });
});

describe('processor time', () => {
  test('it is forgotten within a second', () => {
    const { account } = new ClientAccounts(1_000).openConnection('192.0.2.1', () => {});
    account.addTime(60, 10_000);
    expect(account.hasExceededTime(10_000)).toBe(true);
    expect(account.hasExceededTime(10_500)).toBe(false);
  });
});

describe('limits from the memory of the container', () => {
  test.each([
    [120 * MIB, 1, 10 * MIB, 644, 386],
    [240 * MIB, 1, 20 * MIB, 2_626, 1_575],
    [480 * MIB, 1, 40 * MIB, 6_589, 3_953],
    [480 * MIB, 4, 10 * MIB, 1_201, 720],
    [64 * 1_024 * MIB, 1, 256 * MIB, 10_000, 10_000],
    [16 * MIB, 1, 8 * MIB, 100, 100],
  ])('%i bytes, %i workers: %i bytes, %i connections, %i kept', (memory, workers, bytes, connections, kept) => {
    expect(deriveClientLimits(workers, memory)).toEqual({ bytes, connections, keptConnections: kept });
  });
});
