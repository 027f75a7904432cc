import { expect, test } from 'vitest';
import { atIndex, gatewayFleets, rates } from '../support/gateway-fleet.ts';
import { PASSWORD, type Reply, type TestGateway } from '../support/test-gateway.ts';

const { fleet } = gatewayFleets();

/** One person's browser, or a program that guesses codes, anywhere in front of the gateways. */
function guesser(from: string) {
  let cookie = '';
  const visit = async (
    gateway: TestGateway,
    place: string,
    fields?: Readonly<Record<string, string>>,
  ): Promise<Reply> => {
    const reply = await gateway.request({
      path: `/authsvc/device${place}`,
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
    putBack(old: string): void {
      cookie = old;
    },
  };
}

test('D08 a session is locked after five wrong codes, at whichever gateways they were typed and whatever cookie comes back', async () => {
  const { all } = await fleet(3, rates({ codeGuesses: 'off', allCodeGuesses: 'off' }));
  const one = guesser('203.0.113.10');
  await one.begin(atIndex(all, 0));
  const first = one.cookie();
  for (let index = 0; index < 5; index += 1) {
    expect((await one.guess(atIndex(all, index), 'WRNG-CDXX')).status).toBe(400);
    one.putBack(first);
  }
  for (const gateway of all) expect((await one.guess(gateway, 'WRNG-CDXX')).status).toBe(429);
});

test('D08 a hundred networks guess codes at three gateways: together they get the budget of all, and a person with the right code signs in and gets through', async () => {
  const { all } = await fleet(3, rates({ codeGuesses: '5/h', allCodeGuesses: '60/h' }));
  const codes = await atIndex(all, 0).post(
    '/Authorize/Device',
    { client_id: 'report-runner', scope: 'files:read' },
    { headers: { 'x-forwarded-for': '198.51.100.1' } },
  );
  const user = guesser('198.51.100.2');
  await user.begin(atIndex(all, 1));
  for (let index = 0; index < 8; index += 1)
    expect((await user.guess(atIndex(all, index), String(codes.json['user_code']))).status).toBe(303);

  let wrong = 0;
  let refused = 0;
  const began = performance.now();
  const guess = async (number: number): Promise<void> => {
    for (let address = number; address < 100; address += 10) {
      const attacker = guesser(`100.64.${address}.1`);
      await attacker.begin(atIndex(all, address));
      for (let iterations = 0; iterations < 2; iterations += 1) {
        const { status } = await attacker.guess(atIndex(all, address + iterations), 'WRNG-CDXX');
        if (status === 400) wrong += 1;
        if (status === 429) refused += 1;
      }
    }
  };
  await Promise.all(Array.from({ length: 10 }, (_, number) => guess(number)));
  // Sixty for all, refilled by one a minute.
  const elapsed = (performance.now() - began) / 1_000;
  expect(wrong).toBeGreaterThanOrEqual(60);
  expect(wrong).toBeLessThanOrEqual(60 + Math.ceil(elapsed / 60));
  expect(wrong + refused).toBe(200);

  // The request may have expired on a slow machine; a new one is as good.
  const late = await atIndex(all, 0).post(
    '/Authorize/Device',
    { client_id: 'report-runner', scope: 'files:read' },
    { headers: { 'x-forwarded-for': '198.51.100.1' } },
  );
  const code = String(late.json['user_code']);
  const visitor = guesser('198.51.100.3');
  await visitor.begin(atIndex(all, 0));
  expect((await visitor.guess(atIndex(all, 1), code)).status).toBe(429);
  expect((await visitor.signIn(atIndex(all, 2), 'alice', PASSWORD)).headers.location).toBe('/authsvc/device');
  await visitor.begin(atIndex(all, 0));
  expect((await visitor.guess(atIndex(all, 1), code)).headers.location).toBe('/authsvc/device/review');
});

test('D08 one address has five guesses in all, concurrently and over three gateways; without Redis none is looked up', async () => {
  const { all, relays } = await fleet(3, rates({ codeGuesses: '5/h', allCodeGuesses: '1000/h' }));
  const outsiders = await Promise.all(
    Array.from({ length: 9 }, async (_, index) => {
      const outsider = guesser('203.0.113.20');
      await outsider.begin(atIndex(all, index));
      return outsider;
    }),
  );
  const replies = await Promise.all(
    Array.from({ length: 27 }, (_, index) =>
      atIndex(outsiders, index).guess(atIndex(all, index), 'WRNG-CDXX'),
    ),
  );
  expect(replies.filter(({ status }) => status === 400)).toHaveLength(5);
  expect(replies.filter(({ status }) => status === 429)).toHaveLength(22);

  const fresh = guesser('203.0.113.21');
  await fresh.begin(atIndex(all, 0));
  for (const relay of relays) relay.set('refuse');
  const blind: number[] = [];
  for (let index = 0; index < 6; index += 1)
    blind.push((await fresh.guess(atIndex(all, index), 'WRNG-CDXX')).status);
  expect(blind.filter((status) => status !== 503 && status !== 429)).toEqual([]);
});

test('failed sign-ins of one name are counted over two gateways, and successful ones are not', async () => {
  const { all } = await fleet(2, rates({ codeGuesses: 'off', allCodeGuesses: 'off', device: 'off' }));
  let users = 0;
  /** Another person, on the sign-in page. */
  const atSignIn = async (gateway: TestGateway) => {
    users += 1;
    const from = `198.51.100.${users}`;
    const headers = { 'x-forwarded-for': from };
    const codes = await gateway.post(
      '/Authorize/Device',
      { client_id: 'report-runner', scope: 'files:read' },
      { headers },
    );
    const user = guesser(from);
    await user.begin(gateway);
    await user.guess(gateway, String(codes.json['user_code']));
    return user;
  };
  const signIn = async (index: number, name: string, password: string): Promise<number> => {
    const user = await atSignIn(atIndex(all, index));
    return (await user.signIn(atIndex(all, index), name, password)).status;
  };
  for (let index = 0; index < 4; index += 1) expect(await signIn(index, 'alice', PASSWORD)).toBe(303);
  const began = performance.now();
  const wrong: number[] = [];
  // Four at a time at each gateway: it rejects more than eight that wait for one name.
  const attempt = async (number: number): Promise<void> => {
    for (let index = number; index < 48; index += 8)
      wrong.push(await signIn(index, 'alice', `wrong ${index}`));
  };
  await Promise.all(Array.from({ length: 8 }, (_, number) => attempt(number)));
  expect(new Set(wrong)).toEqual(new Set([403, 429]));
  // Thirty at once, refilled by one in two seconds.
  const elapsed = (performance.now() - began) / 1_000;
  const tried = wrong.filter((status) => status === 403).length;
  expect(tried).toBeGreaterThanOrEqual(30);
  expect(tried).toBeLessThanOrEqual(30 + Math.ceil(elapsed / 2));
  expect(await signIn(0, 'bob', PASSWORD)).toBe(303);
});
