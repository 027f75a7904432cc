import { expect, test } from 'vitest';
import { atIndex, gatewayFleets, rates } from '../support/gateway-fleet.ts';
import { PASSWORD, type Reply, type TestGateway } from '../support/test-gateway.ts';

const { fleet } = gatewayFleets();

/** A client that enters codes at any gateway, with one address and one cookie. */
function createClient(from: string) {
  let cookie = '';
  const visit = async (
    gateway: TestGateway,
    path: string,
    fields?: Readonly<Record<string, string>>,
  ): Promise<Reply> => {
    const reply = await gateway.request({
      path: `/authsvc/device${path}`,
      headers: {
        'x-forwarded-for': from,
        ...(cookie !== '' && { cookie }),
        ...(fields && { 'content-type': 'application/x-www-form-urlencoded' }),
      },
      ...(fields && { method: 'POST', body: new URLSearchParams(fields).toString() }),
    });
    const [set] = reply.headers['set-cookie'] ?? [];
    if (set !== undefined) cookie = set.split(';', 1)[0] ?? '';
    return reply;
  };
  let token = '';
  return {
    async begin(gateway: TestGateway): Promise<void> {
      const page = await visit(gateway, '');
      token = /action="\/authsvc\/device"><input[^>]* value="([^"]+)"/.exec(page.text)?.[1] ?? '';
      if (token === '') throw new Error(`no form: ${page.status} ${page.text}`);
    },
    guess: (gateway: TestGateway, code: string): Promise<Reply> =>
      visit(gateway, '', { user_code: code, form_token: token }),
    async signIn(gateway: TestGateway, name: string, password: string): Promise<Reply> {
      const page = await visit(gateway, '/sign-in');
      const form = /action="\/authsvc\/device\/sign-in"><input[^>]* value="([^"]+)"/.exec(page.text)?.[1];
      return visit(gateway, '/sign-in', { user_name: name, password, form_token: form ?? '' });
    },
    cookie: () => cookie,
    setCookie(old: string): void {
      cookie = old;
    },
  };
}

test('D08 a session is locked after five wrong codes at any gateways, even if an old cookie is restored', async () => {
  const { all } = await fleet(3, rates({ codeGuesses: 'off', allCodeGuesses: 'off' }));
  const client = createClient('203.0.113.10');
  await client.begin(atIndex(all, 0));
  const first = client.cookie();
  for (let index = 0; index < 5; index += 1) {
    expect((await client.guess(atIndex(all, index), 'WRNG-CDXX')).status).toBe(400);
    client.setCookie(first);
  }
  for (const gateway of all) expect((await client.guess(gateway, 'WRNG-CDXX')).status).toBe(429);
});

test('D08 guesses from a hundred networks at three gateways share one limit, and a user with the right code can sign in and continue', async () => {
  const { all } = await fleet(3, rates({ codeGuesses: '5/h', allCodeGuesses: '60/h' }));
  const codes = await atIndex(all, 0).post(
    '/Authorize/Device',
    { client_id: 'report-runner', scope: 'files:read' },
    { headers: { 'x-forwarded-for': '198.51.100.1' } },
  );
  const user = createClient('198.51.100.2');
  await user.begin(atIndex(all, 1));
  for (let index = 0; index < 8; index += 1)
    expect((await user.guess(atIndex(all, index), String(codes.json['user_code']))).status).toBe(303);

  let wrong = 0;
  let rejected = 0;
  const began = performance.now();
  const guess = async (number: number): Promise<void> => {
    for (let address = number; address < 100; address += 10) {
      const attacker = createClient(`100.64.${address}.1`);
      await attacker.begin(atIndex(all, address));
      for (let iterations = 0; iterations < 2; iterations += 1) {
        const { status } = await attacker.guess(atIndex(all, address + iterations), 'WRNG-CDXX');
        if (status === 400) wrong += 1;
        if (status === 429) rejected += 1;
      }
    }
  };
  await Promise.all(Array.from({ length: 10 }, (_, number) => guess(number)));
  // The shared limit is 60, refilled by one per minute.
  const elapsed = (performance.now() - began) / 1_000;
  expect(wrong).toBeGreaterThanOrEqual(60);
  expect(wrong).toBeLessThanOrEqual(60 + Math.ceil(elapsed / 60));
  expect(wrong + rejected).toBe(200);

  // The first request may have expired on a slow machine.
  const late = await atIndex(all, 0).post(
    '/Authorize/Device',
    { client_id: 'report-runner', scope: 'files:read' },
    { headers: { 'x-forwarded-for': '198.51.100.1' } },
  );
  const code = String(late.json['user_code']);
  const visitor = createClient('198.51.100.3');
  await visitor.begin(atIndex(all, 0));
  expect((await visitor.guess(atIndex(all, 1), code)).status).toBe(429);
  expect((await visitor.signIn(atIndex(all, 2), 'alice', PASSWORD)).headers.location).toBe('/authsvc/device');
  await visitor.begin(atIndex(all, 0));
  expect((await visitor.guess(atIndex(all, 1), code)).headers.location).toBe('/authsvc/device/review');
});

test('D08 one address has five concurrent guesses over three gateways; without Redis, no code is looked up', async () => {
  const { all, relays } = await fleet(3, rates({ codeGuesses: '5/h', allCodeGuesses: '1000/h' }));
  const outsiders = await Promise.all(
    Array.from({ length: 9 }, async (_, index) => {
      const outsider = createClient('203.0.113.20');
      await outsider.begin(atIndex(all, index));
      return outsider;
    }),
  );
  const replies = await Promise.all(
    Array.from({ length: 27 }, (_, index) => atIndex(outsiders, index).guess(atIndex(all, index), 'WRNG-CDXX')),
  );
  expect(replies.filter(({ status }) => status === 400)).toHaveLength(5);
  expect(replies.filter(({ status }) => status === 429)).toHaveLength(22);

  const fresh = createClient('203.0.113.21');
  await fresh.begin(atIndex(all, 0));
  for (const relay of relays) relay.set('refuse');
  const blind: number[] = [];
  for (let index = 0; index < 6; index += 1) blind.push((await fresh.guess(atIndex(all, index), 'WRNG-CDXX')).status);
  expect(blind.filter((status) => status !== 503 && status !== 429)).toEqual([]);
});

test('failed sign-ins for one name are counted across two gateways, successful ones are not', async () => {
  const { all } = await fleet(2, rates({ codeGuesses: 'off', allCodeGuesses: 'off', device: 'off' }));
  let users = 0;
  /** Another client on the sign-in page. */
  const openSignIn = async (gateway: TestGateway) => {
    users += 1;
    const from = `198.51.100.${users}`;
    const headers = { 'x-forwarded-for': from };
    const codes = await gateway.post(
      '/Authorize/Device',
      { client_id: 'report-runner', scope: 'files:read' },
      { headers },
    );
    const user = createClient(from);
    await user.begin(gateway);
    await user.guess(gateway, String(codes.json['user_code']));
    return user;
  };
  const signIn = async (index: number, name: string, password: string): Promise<number> => {
    const user = await openSignIn(atIndex(all, index));
    return (await user.signIn(atIndex(all, index), name, password)).status;
  };
  for (let index = 0; index < 4; index += 1) expect(await signIn(index, 'alice', PASSWORD)).toBe(303);
  const began = performance.now();
  const wrong: number[] = [];
  // Four at a time per gateway, because it rejects more than eight pending sign-ins for one name.
  const attempt = async (number: number): Promise<void> => {
    for (let index = number; index < 48; index += 8) wrong.push(await signIn(index, 'alice', `wrong ${index}`));
  };
  await Promise.all(Array.from({ length: 8 }, (_, number) => attempt(number)));
  expect(new Set(wrong)).toEqual(new Set([403, 429]));
  // The limit is 30, refilled by one every two seconds.
  const elapsed = (performance.now() - began) / 1_000;
  const tried = wrong.filter((status) => status === 403).length;
  expect(tried).toBeGreaterThanOrEqual(30);
  expect(tried).toBeLessThanOrEqual(30 + Math.ceil(elapsed / 2));
  expect(await signIn(0, 'bob', PASSWORD)).toBe(303);
});
