import { describe, expect, test } from 'vitest';
import { APP, type Fields, ISSUER } from '../support/code-client.ts';
import { formToken } from '../support/form-browser.ts';
import { useCodeGateway } from './code-gateway.ts';

const at = useCodeGateway();

describe('a transaction and its forms', () => {
  const TRANSACTION = /\/sign-in\?request=/;

  test('a review page that another user of the browser has opened cannot be approved by this one', async () => {
    const flow = at.start();
    const alice = await flow.reachReview();
    const approve = {
      token: formToken(alice.text, '/approve'),
      url: alice.url.replace('/review', '/approve'),
    };
    await flow.browser.submit('/authsvc/device/sign-out');
    await flow.signIn('bob');
    const posted = await flow.browser.send(
      'POST',
      approve.url,
      new URLSearchParams({ form_token: approve.token, scope: 'files:read' }).toString(),
      { origin: ISSUER, 'sec-fetch-site': 'same-origin' },
    );
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
    expect((await approve(first.url, formToken(first.text, '/approve'), 'files:read')).redirectTo).toContain(
      'code=',
    );
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
    for (const url of [
      review.url,
      review.url.replace('/review', '/approve'),
      review.url.replace('/review', '/deny'),
    ])
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
        integrations: settings.integrations?.map((one) =>
          one.clientId === 'app' ? { ...one, access } : one,
        ),
      }));
    await setAccess([{ groups: ['operators'] }]);
    const posted = await flow.browser.post('/authsvc/device/approve');
    expect([posted.status, posted.redirectTo]).toEqual([403, undefined]);
    expect(posted.text).toContain('You can’t approve this request');
    expect(at.gateway.auditEvents('authorization_approved')).toEqual([]);
    await setAccess(APP.access ?? []);
  });
});
