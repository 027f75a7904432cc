import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createForeignKey } from '../../support/foreign-issuer.ts';
import { type ForeignIssuerServer, startForeignIssuer } from '../../support/foreign-issuer-server.ts';
import { parseJson } from '../../support/https-client.ts';
import { createProtocolClients, PROTOCOLS, type ProtocolClients } from '../../support/protocols.ts';
import { startGateway, type TestGateway } from '../../support/test-gateway.ts';
import { until } from '../../support/until.ts';

const EXPIRED = 'The access token has expired.';
const OTHER_API = 'The access token was issued for another API.';
const NOT_ISSUED_HERE = 'The access token was not issued by this service.';

let issuer: ForeignIssuerServer;
let unreachable: ForeignIssuerServer;
let gateway: TestGateway;
let clients: ProtocolClients;
beforeAll(async () => {
  issuer = await startForeignIssuer();
  unreachable = await startForeignIssuer();
  unreachable.isUp = false;
  gateway = await startGateway((settings) => ({
    ...settings,
    trustedIssuers: {
      corp: { issuer: issuer.url, audience: 'files-api' },
      down: { issuer: unreachable.url, audience: 'files-api' },
    },
    trustedProxies: ['127.0.0.1'],
    routes: [
      { path: '/own/**', requires: 'any-token' },
      { path: '/corp/**', requires: 'any-token', issuers: ['own', 'corp'] },
      { path: '/down/**', requires: 'any-token', issuers: ['down'] },
      { path: '/tree/admin', requires: 'any-token' },
      { path: '/tree/**', requires: 'any-token', issuers: ['own', 'corp'] },
    ],
  }));
  clients = createProtocolClients(gateway);
});
afterAll(async () => {
  clients?.close();
  await gateway?.close();
  issuer?.close();
  unreachable?.close();
});

describe.each([...PROTOCOLS, 'forward-auth'] as const)('%s', (protocol) => {
  async function send(path: string, token: string) {
    const headers = { authorization: `Bearer ${token}` };
    const { text, ...reply } =
      protocol === 'forward-auth'
        ? await gateway.request({
            path: '/authsvc/check',
            headers: { ...headers, 'x-forwarded-method': 'GET', 'x-forwarded-uri': path },
          })
        : await clients.send(protocol, { path, headers });
    const line = await until('the log line', () =>
      gateway.log.find(({ event, request_id: id }) => event === 'request' && id === reply.headers['x-request-id']),
    );
    const challenge = String(reply.headers['www-authenticate']);
    return { status: reply.status, description: parseJson(text)['error_description'], challenge, line };
  }

  test.each([
    ['has expired', { exp: 1_000 }, EXPIRED, 'token_expired: expired (issuer corp)'],
    ['is for another API', { aud: 'other-api' }, OTHER_API, 'token_wrong_audience: wrong_audience (issuer corp)'],
  ])(
    'the response to an authentic token that %s says so, where the route accepts its issuer',
    async (_, claims, description, reason) => {
      const refused = await send('/corp/1', await issuer.sign(claims));
      expect(refused).toMatchObject({ status: 401, description, line: { decision: 'refused', reason } });
      expect(refused.challenge).toContain(`error_description="${description}"`);
    },
  );

  test('the response to a forged token does not depend on its claims', async () => {
    const attacker = await createForeignKey('ES256', 'k1');
    for (const claims of [{}, { exp: 1_000 }, { aud: 'other-api' }])
      expect(await send('/corp/1', await issuer.sign(claims, attacker))).toMatchObject({
        status: 401,
        description: NOT_ISSUED_HERE,
        line: { reason: 'token_not_authentic: invalid_signature (issuer corp)' },
      });
  });

  test.each(['/own/1', '/none'])(
    'on %s, which does not accept the issuer, the response does not depend on the token',
    async (path) => {
      for (const claims of [{}, { exp: 1_000 }, { aud: 'other-api' }])
        expect(await send(path, await issuer.sign(claims))).toMatchObject({
          status: 401,
          description: NOT_ISSUED_HERE,
        });
    },
  );

  test('the log names the cause if no route matches an authentic token', async () => {
    const token = await issuer.sign();
    expect(await send('/none', token)).toMatchObject({
      status: 401,
      description: NOT_ISSUED_HERE,
      line: { reason: 'no_rule (none of 5 rules has this path)', client: 'corp/cli' },
    });
    const reason = 'no_rule (routes[3] /tree/admin: equivalent_path; routes[4] /tree/**: ambiguous_path)';
    expect(await send('/tree/Admin', token)).toMatchObject({
      status: 401,
      description: NOT_ISSUED_HERE,
      line: { decision: 'refused', reason, client: 'corp/cli' },
    });
    const { access_token: own } = await gateway.grant();
    const { status, line } = await send('/tree/Admin', own);
    expect([status, line['reason']]).toEqual([protocol === 'forward-auth' ? 403 : 404, reason]);
    // The route matches, and does not list the issuer.
    expect((await send('/tree/admin', token)).line).toMatchObject({
      rule: 'routes[3] /tree/admin',
      reason: 'token_not_authentic: issuer_not_accepted (issuer corp)',
    });
  });

  test('requests during an outage of the issuer are logged with rule and cause', async () => {
    for (let count = 0; count < 3; count += 1)
      expect(await send('/down/1', await unreachable.sign())).toMatchObject({
        status: 503,
        line: {
          decision: 'failed',
          rule: 'routes[2] /down/**',
          reason: 'unavailable: keys_unavailable (issuer down)',
        },
      });
    const event = protocol === 'forward-auth' ? 'forward_auth_failed' : 'authorization_failed';
    const failures = gateway.log.filter((line) => line.event === event);
    // At most once a minute, over all data paths.
    expect(failures.length).toBeLessThan(3);
    expect(failures[0]).toMatchObject({
      level: 'error',
      issuer: 'down',
      code: 'keys_unavailable',
      requests: 1,
      cause: `${unreachable.url}/.well-known/openid-configuration responded with 503`,
    });
    expect(failures[0]).not.toHaveProperty('stack');
  });
});
