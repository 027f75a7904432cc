import { describe, expect, test } from 'vitest';
import { hashClientSecret } from '../../src/grants/client-authentication.ts';
import { APP, type CodeFlow, type Fields, ISSUER, SECRET } from '../support/code-client.ts';
import { formToken, type Page } from '../support/form-browser.ts';
import { withIntegration, withSettings } from '../support/reconfigure.ts';
import { useCodeGateway } from './code-gateway.ts';

const at = useCodeGateway();

/** Submits a form of an approval page as it was shown, whatever page the browser shows now. */
const submitForm = (flow: CodeFlow, { url, text }: Page, action: 'approve' | 'deny', changes: Fields = {}) =>
  flow.browser.send(
    'POST',
    url.replace('/review', `/${action}`),
    new URLSearchParams({
      form_token: formToken(text, `/${action}`),
      ...(action === 'approve' && { scope: 'files:read' }),
      ...changes,
    }).toString(),
    { origin: ISSUER, 'sec-fetch-site': 'same-origin' },
  );

describe('a transaction and its forms', () => {
  const TRANSACTION = /\/sign-in\?request=/;

  test('a review page that another user of the browser has opened cannot be approved by this one', async () => {
    const flow = at.start();
    const alice = await flow.reachReview();
    await flow.browser.submit('/authsvc/device/sign-out');
    await flow.signIn('bob');
    const posted = await submitForm(flow, alice, 'approve');
    expect([posted.status, posted.redirectTo]).toEqual([403, undefined]);
    expect(at.gateway.auditEvents('authorization_approved')).toEqual([]);
  });

  test('a form token of one page, request or decision is not valid for another', async () => {
    const flow = at.start();
    const first = await flow.reachReview({ state: 'first' });
    const second = await flow.reachReview({ state: 'second', scope: 'reports:write' });
    const approve = (url: string, token: string, scope: string) =>
      flow.browser.send(
        'POST',
        url.replace('/review', '/approve'),
        new URLSearchParams({ form_token: token, scope }).toString(),
        { origin: ISSUER, 'sec-fetch-site': 'same-origin' },
      );
    for (const [what, url, token, scope] of [
      ['the other request', second.url, formToken(first.text, '/approve'), 'files:read'],
      ['another scope', first.url, formToken(first.text, '/approve'), 'reports:write'],
      ['the form to deny', first.url, formToken(first.text, '/deny'), 'files:read'],
      ['the form to sign out', first.url, formToken(first.text, '/sign-out'), 'files:read'],
      ['no transaction', `${ISSUER}/authsvc/device/approve`, formToken(first.text, '/approve'), 'files:read'],
      ['no token', first.url, '', 'files:read'],
    ] as const)
      expect((await approve(url, token, scope)).status, what).toBe(403);
    expect(at.gateway.auditEvents('authorization_approved')).toEqual([]);
    expect((await approve(first.url, formToken(first.text, '/approve'), 'files:read')).redirectTo).toContain('code=');
  });

  test('another site cannot send the forms, and a script cannot', async () => {
    const flow = at.start();
    const review = await flow.reachReview();
    const body = new URLSearchParams({
      form_token: formToken(review.text, '/approve'),
      scope: 'files:read',
    }).toString();
    const url = review.url.replace('/review', '/approve');
    for (const headers of [
      { origin: 'https://evil.example.test', 'sec-fetch-site': 'cross-site' },
      { origin: 'null', 'sec-fetch-site': 'cross-site' },
      { 'sec-fetch-site': 'cross-site' },
      { 'sec-fetch-site': 'same-site' },
      {
        origin: ISSUER,
        'sec-fetch-site': 'same-origin',
        'sec-fetch-mode': 'cors',
        'sec-fetch-dest': 'empty',
      },
      { origin: ISSUER, 'sec-fetch-site': 'same-origin', 'sec-fetch-dest': 'iframe' },
      { origin: 'https://app.example.test' },
      { origin: ISSUER, 'content-type': 'text/plain' },
    ])
      expect((await flow.browser.send('POST', url, body, headers as Fields)).status).toBe(403);
    expect(at.gateway.auditEvents('authorization_approved')).toEqual([]);
  });

  test('the session cookie of another browser does not continue a transaction, and a transaction not in the URL twice', async () => {
    const victim = at.start();
    await victim.reachReview();
    const attacker = at.start();
    const { redirectTo = '' } = await attacker.authorize();
    expect(redirectTo).toMatch(TRANSACTION);
    // The link of the attacker, in the browser of the victim, who is signed in.
    const page = await victim.browser.get(redirectTo.replace('/sign-in', '/review'));
    expect(page.text).toContain('Request expired');
    const own = (await victim.authorize()).redirectTo ?? '';
    const transaction = new URL(own).searchParams.get('request') ?? '';
    const twice = await victim.browser.get(`${own}&request=${transaction}`);
    expect(twice.text).toContain('Request expired');
  });

  test('several tabs that an app opens at once in a new browser continue independently', async () => {
    const flow = at.start();
    // None of the requests has the cookie of another response. Two may get the same name: then the older tab starts again.
    const begun = await Promise.all(['1', '2', '3', '4'].map((state) => flow.authorize({ state })));
    const names = new Set(begun.map(({ headers }) => String(headers['set-cookie']).split('=')[0]));
    const pages = [];
    for (const { redirectTo = '' } of begun) pages.push(await flow.browser.open(redirectTo));
    expect(pages.filter(({ text }) => text.includes('name="password"'))).toHaveLength(names.size);
    // From now on there is one more request, and no more cookies.
    const cookies = flow.browser.cookie.split('; ').length;
    await flow.authorize();
    expect(flow.browser.cookie.split('; ')).toHaveLength(cookies);
  });

  test('prefetch, prerender, frames, images and scripts get no page, and begin nothing', async () => {
    const flow = at.start();
    for (const headers of [
      { 'sec-purpose': 'prefetch' },
      { 'sec-purpose': 'prefetch;prerender' },
      { purpose: 'prefetch' },
      { 'x-moz': 'prefetch' },
      { 'sec-fetch-dest': 'iframe' },
      { 'sec-fetch-dest': 'image', 'sec-fetch-mode': 'no-cors' },
      { 'sec-fetch-dest': 'empty', 'sec-fetch-mode': 'cors' },
      { 'service-worker-navigation-preload': 'true' },
    ]) {
      const page = await flow.authorize({}, headers);
      expect([page.status, page.redirectTo, page.headers['set-cookie']]).toEqual([403, undefined, undefined]);
    }
  });

  test('a HEAD request changes nothing', async () => {
    const flow = at.start();
    const review = await flow.reachReview();
    for (const url of [review.url, review.url.replace('/review', '/approve'), review.url.replace('/review', '/deny')])
      await flow.browser.send('HEAD', url);
    expect(at.gateway.auditEvents('authorization_approved')).toEqual([]);
    expect(at.gateway.auditEvents('authorization_denied')).toEqual([]);
    await flow.browser.get(review.url);
    expect((await flow.decide('approve')).searchParams.has('code')).toBe(true);
  });

  test('a user who lost access between the page and the decision approves nothing', async () => {
    const flow = at.start();
    await flow.reachReview({}, 'bob');
    const setAccess = (access: NonNullable<typeof APP.access>) =>
      at.gateway.reload((settings) => ({
        ...settings,
        integrations: settings.integrations?.map((one) => (one.clientId === 'app' ? { ...one, access } : one)),
      }));
    await setAccess([{ groups: ['operators'] }]);
    const posted = await flow.browser.post('/authsvc/device/approve');
    expect([posted.status, posted.redirectTo]).toEqual([403, undefined]);
    expect(posted.text).toContain('You can’t approve this request');
    expect(at.gateway.auditEvents('authorization_approved')).toEqual([]);
    await setAccess(APP.access ?? []);
  });

  test('approved and denied at the same time, a request has one of the two outcomes', async () => {
    const flow = at.start();
    const review = await flow.reachReview();
    const pages = await Promise.all([submitForm(flow, review, 'approve'), submitForm(flow, review, 'deny')]);
    expect(new Set(pages.map(({ status }) => status))).toEqual(new Set([303, 409]));
    expect(
      ['authorization_approved', 'authorization_denied'].flatMap((event) => at.gateway.auditEvents(event)),
    ).toHaveLength(1);
  });

  test('fields that the page does not have are refused', async () => {
    const flow = at.start();
    const review = await flow.reachReview();
    for (const changes of [
      { audience: 'https://api.example.test' },
      { audience: '' },
      { scope: 'files:read","' },
      { scope: '' },
    ])
      expect((await submitForm(flow, review, 'approve', changes)).status).toBe(403);
    expect((await submitForm(flow, review, 'approve')).redirectTo).toContain('code=');
  });

  test('a form of one client is refused for another, although both request the same scope', async () => {
    const flow = at.start();
    const app = await flow.reachReview();
    const second = await flow.reachReview({
      client_id: 'second',
      redirect_uri: 'https://second.example.test/callback',
    });
    for (const [url, text] of [
      [app.url, second.text],
      [second.url, app.text],
    ] as const)
      expect((await submitForm(flow, { ...app, url, text }, 'approve')).status).toBe(403);
    expect((await submitForm(flow, second, 'approve')).redirectTo).toMatch(/^https:\/\/second.*code=/);
  });

  test('a form is worth nothing after a sign-out, also after a new sign-in of the same user', async () => {
    const flow = at.start();
    const review = await flow.reachReview();
    await flow.browser.submit('/authsvc/device/sign-out');
    expect((await submitForm(flow, review, 'approve')).status).toBe(403);
    await flow.browser.open(review.url);
    await flow.signIn();
    expect((await submitForm(flow, review, 'approve')).status).toBe(403);
    expect(at.gateway.auditEvents('authorization_approved')).toEqual([]);
  });

  test('nothing is sent to a redirect URI that was removed after the page was shown', async () => {
    const flow = at.start();
    const review = await flow.reachReview();
    const removed = withIntegration('app', { redirectUris: ['https://app.example.test/new'] });
    await withSettings(at.gateway, removed, async () => {
      for (const action of ['approve', 'deny'] as const) {
        const page = await submitForm(flow, review, action);
        expect([page.status, page.redirectTo]).toEqual([403, undefined]);
      }
    });
    expect(at.gateway.auditEvents('authorization_approved')).toEqual([]);
  });

  test('a code needs the secret that the client got after the approval', async () => {
    const flow = at.start();
    const code = await flow.obtainCode();
    const confidential = withIntegration('app', { clientSecretHashes: [hashClientSecret(SECRET)] });
    await withSettings(at.gateway, confidential, async () => {
      expect((await flow.exchange(code)).status).toBe(401);
      expect((await flow.exchange(code, { client_secret: SECRET })).status).toBe(200);
    });
  });
});
