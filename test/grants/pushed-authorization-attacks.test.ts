import { describe, expect, test } from 'vitest';
import { type CodeFlow, type Fields, ISSUER, SECRET, WEB } from '../support/code-client.ts';
import { signForeign } from '../support/foreign-issuer.ts';
import { createOAuthClient, refusal } from '../support/oauth-client.ts';
import { expectInvalidRequestPage, SIGNING_KEY, useCodeGateway } from './code-gateway.ts';

const at = useCodeGateway();

describe('pushed requests', () => {
  const push = async (flow: CodeFlow): Promise<string> => {
    const { json } = await createOAuthClient(at.gateway).post('par', flow.parameters());
    return String(json['request_uri']);
  };
  const open = (flow: CodeFlow, requestUri: string, more = '') =>
    flow.authorize(`${new URLSearchParams({ client_id: 'app', request_uri: requestUri }).toString()}${more}`);

  test('a transaction is not a request_uri, and a request_uri is not a transaction', async () => {
    const flow = at.start();
    const { redirectTo = '' } = await flow.authorize();
    const transaction = new URL(redirectTo).searchParams.get('request') ?? '';
    expectInvalidRequestPage(await open(flow, `urn:ietf:params:oauth:request_uri:${transaction}`), 'a transaction');
    const requestUri = await push(flow);
    const page = await flow.browser.get(
      `/authsvc/device/sign-in?request=${requestUri.replace('urn:ietf:params:oauth:request_uri:', '')}`,
    );
    expect(page.text).toContain('Request expired');
  });

  test('the client of the request_uri must be named once, and is the one that pushed', async () => {
    const flow = at.start();
    const requestUri = await push(flow);
    for (const more of ['&client_id=web', '&client_id=app', `&request_uri=${encodeURIComponent(requestUri)}`])
      expectInvalidRequestPage(await open(flow, requestUri, more), more);
    expectInvalidRequestPage(
      await flow.authorize(new URLSearchParams({ request_uri: requestUri }).toString()),
      'without client_id',
    );
  });

  test('a client cannot push for another, and authenticates with one method', async () => {
    const flow = at.start();
    const web = { client_id: 'web', redirect_uri: WEB.redirectUris?.[0] ?? '' };
    const basic = (id: string, secret = SECRET) => ({
      headers: { authorization: `Basic ${Buffer.from(`${id}:${secret}`).toString('base64')}` },
    });
    const post = (fields: Fields, more = {}) => createOAuthClient(at.gateway).post('par', fields, more);
    const fields = flow.parameters(web);
    expect(await post({ ...fields, client_id: 'app' }, basic('web'))).toMatchObject(refusal('invalid_request'));
    expect(await post({ ...fields, client_secret: SECRET }, basic('web'))).toMatchObject(refusal('invalid_request'));
    expect(await post({ ...flow.parameters(), client_secret: SECRET })).toMatchObject(refusal('invalid_client', 401));
    expect(await post(flow.parameters(), basic('app'))).toMatchObject(refusal('invalid_client', 401));
    const claims = { aud: ISSUER, exp: Math.floor(at.gateway.clock.now()) + 60 };
    const assert = async (subject: string, jti: string) => ({
      client_assertion: await signForeign(SIGNING_KEY, { iss: subject, sub: subject, jti, ...claims }),
      client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
    });
    // The assertion is of a client that may do this, the request names another.
    expect(await post({ ...flow.parameters(), ...(await assert('signing', '1')) })).toMatchObject(
      refusal('invalid_client', 401),
    );
    expect(await post({ ...flow.parameters({ client_id: 'signing' }), ...(await assert('app', '2')) })).toMatchObject(
      refusal('invalid_client', 401),
    );
    const both = {
      ...flow.parameters({ client_id: 'signing' }),
      ...(await assert('signing', '3')),
      client_secret: 'x',
    };
    expect(await post(both)).toMatchObject(refusal('invalid_request'));
    const good = {
      ...(await assert('signing', '4')),
      client_assertion: await signForeign(SIGNING_KEY, {
        iss: 'signing',
        sub: 'signing',
        jti: '4',
        ...claims,
        aud: `${ISSUER}/authsvc/oauth2/par`,
      }),
    };
    const signing = flow.parameters({ client_id: 'signing' });
    expect((await post({ ...signing, ...good })).status).toBe(201);
    expect(await post({ ...signing, ...good }), 'a replayed assertion').toMatchObject(refusal('invalid_client', 401));
  });

  test('a request_uri that two users have opened is decided once, for one of them', async () => {
    const [alice, bob] = [at.start(), at.start()];
    const requestUri = await push(alice);
    const query = new URLSearchParams({ client_id: 'app', request_uri: requestUri }).toString();
    await alice.reachReview(query, 'alice');
    await bob.reachReview(query, 'bob');
    const pages = await Promise.all([alice, bob].map(({ browser }) => browser.post('/authsvc/device/approve')));
    expect(new Set(pages.map(({ status }) => status))).toEqual(new Set([303, 409]));
    const approvals = at.gateway.auditEvents('authorization_approved');
    expect(approvals).toHaveLength(1);
    const response = pages.find(({ status }) => status === 303)?.redirectTo ?? '';
    expect((await alice.exchange(new URL(response).searchParams.get('code') ?? '')).status).toBe(200);
    expect(at.gateway.auditEvents('grant_issued')).toMatchObject([{ identity: approvals[0]?.['identity'] }]);
    expect((await alice.browser.follow(await alice.authorize(query))).text).toContain('Already answered');
  });
});
