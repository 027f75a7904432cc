import { expect, test } from 'vitest';
import { createCodeFlow, withCodeClients } from '../support/code-client.ts';
import { gatewaysOnRedis } from '../support/gateways-on-redis.ts';
import { createOAuthClient } from '../support/oauth-client.ts';
import { until } from '../support/until.ts';

/** Concurrent uses of one code at two replicas: whatever their order, the code makes one grant, and a second use ends it. */
const { startTwoGateways, closeLater } = gatewaysOnRedis();
const ROUNDS = 25;

test('a code that is used at two replicas at once makes one grant, which is refused at both, with every token that was refreshed meanwhile', async () => {
  const [first, second] = await startTwoGateways(withCodeClients);
  const one = createCodeFlow(first);
  const other = createCodeFlow(second, one.pkce);
  closeLater(() => one[Symbol.asyncDispose]());
  closeLater(() => other[Symbol.asyncDispose]());
  for (let round = 0; round < ROUNDS; round += 1) {
    const code = await one.obtainCode();
    const use = async (flow: typeof one, gateway: typeof first) => {
      const reply = await flow.exchange(code);
      if (reply.status !== 200) return { status: reply.status, tokens: [] };
      const refreshed = await createOAuthClient(gateway).refresh(String(reply.json['refresh_token']), {
        client_id: 'app',
      });
      const issued = refreshed.status === 200 ? [reply.json, refreshed.json] : [reply.json];
      return { status: 200, tokens: issued };
    };
    const uses = await Promise.all([use(one, first), use(other, second)]);
    expect(
      uses.map(({ status }) => status).toSorted((left, right) => left - right),
      `round ${round}`,
    ).toEqual([200, 400]);
    const tokens = uses.flatMap((result) => result.tokens);
    for (const gateway of [first, second])
      for (const { access_token: token, refresh_token: refreshToken } of tokens) {
        await until(
          'the access token is refused',
          async () => (await gateway.api('/files/a', String(token))).status === 401,
        );
        const again = await createOAuthClient(gateway).refresh(String(refreshToken), { client_id: 'app' });
        expect(again.json['error'], `round ${round}`).toBe('invalid_grant');
      }
  }
});
