import { describe, expect, test } from 'vitest';
import { type Fields, ISSUER, readResponse } from '../support/code-client.ts';
import type { Page } from '../support/form-browser.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { useCodeGateway } from './code-gateway.ts';

const at = useCodeGateway();

describe('a transaction', () => {
  test('works only in the browser in which it began', async () => {
    const [victim, attacker] = [at.start(), at.start()];
    const continued = (await attacker.authorize()).redirectTo ?? '';
    await victim.reachReview();
    const page = await victim.browser.get(continued);
    expect([page.status, page.text.includes('Request expired')]).toEqual([403, true]);
    expect((await attacker.browser.open(continued)).status).toBe(200);
  });

  test.each<[string, (url: string) => string]>([
    ['forged', (url) => `${url.slice(0, -2)}${url.endsWith('AA') ? 'BB' : 'AA'}`],
    ['truncated', (url) => url.slice(0, -10)],
    ['repeated', (url) => `${url}&request=x`],
    ['a sealed session', (url) => url.replace(/request=.*/, 'request=ghs_abcd.e30.AAAA')],
  ])('that is %s cannot be continued', async (_, change) => {
    const flow = at.start();
    const { redirectTo = '' } = await flow.authorize();
    expect((await flow.browser.get(change(redirectTo))).status).toBe(403);
    expect((await flow.browser.open(redirectTo)).status).toBe(200);
  });

  test('expires after ten minutes', async () => {
    const flow = at.start();
    const { redirectTo = '' } = await flow.authorize();
    at.gateway.clock.advance(601);
    const page = await flow.browser.get(redirectTo);
    expect([page.status, page.text.includes('Request expired')]).toEqual([403, true]);
  });

  test('is decided once: after approval and after denial, nothing can be decided any more', async () => {
    for (const decision of ['approve', 'deny'] as const) {
      const flow = at.start();
      const review = await flow.reachReview();
      const response = await flow.decide(decision);
      if (decision === 'approve')
        expect((await flow.exchange(response.searchParams.get('code') ?? '')).status).toBe(200);
      const back = await flow.browser.get(review.url);
      expect([back.status, back.text.includes('Already answered')]).toEqual([409, true]);
    }
  });

  test('that is approved by a double click gives the same code twice while it is unused', async () => {
    const flow = at.start();
    const review = await flow.reachReview();
    const first = await flow.decide('approve');
    const again = async (action: string) => {
      const form = new RegExp(`action="([^"]*/${action}[^"]*)">(.*?)</form>`, 's').exec(review.text);
      const body = new URLSearchParams();
      for (const [, name = '', value = ''] of (form?.[2] ?? '').matchAll(/name="([^"]+)" value="([^"]*)"/g))
        body.set(name, value);
      return flow.browser.send('POST', form?.[1] ?? '', body.toString(), {
        origin: ISSUER,
        'sec-fetch-site': 'same-origin',
      });
    };
    expect(readResponse(await again('approve')).href).toBe(first.href);
    expect((await again('deny')).status).toBe(409);
    expect((await flow.exchange(first.searchParams.get('code') ?? '')).status).toBe(200);
    expect((await again('approve')).status).toBe(409);
    expect(at.gateway.auditEvents('authorization_approved')).toHaveLength(1);
  });

  test('has its own forms: two tabs are decided independently, and a form of one is refused for the other', async () => {
    const flow = at.start();
    await flow.reachReview();
    const one = await flow.reachReview({ state: 'one' });
    const two = await flow.reachReview({ state: 'two', redirect_uri: 'http://127.0.0.1:5000/callback' });
    const token = (page: Page): string => /\/approve[^>]*>.*?value="([^"]*)"/s.exec(page.text)?.[1] ?? '';
    const approve = (url: string, form_token: string) =>
      flow.browser.send(
        'POST',
        url.replace('/review', '/approve'),
        new URLSearchParams({ form_token, scope: 'files:read' }).toString(),
        { origin: ISSUER, 'sec-fetch-site': 'same-origin' },
      );
    expect((await approve(one.url, token(two))).status).toBe(403);
    expect(readResponse(await approve(two.url, token(two))).href).toMatch(/^http:\/\/127.*state=two/);
    expect(readResponse(await approve(one.url, token(one))).href).toMatch(/^https:.*state=one/);
  });

  test('is not approved without a sign-in, with a form of another site, or with another scope', async () => {
    const flow = at.start();
    const review = await flow.reachReview();
    const url = review.url.replace('/review', '/approve');
    const form_token = /\/approve[^>]*>.*?value="([^"]*)"/s.exec(review.text)?.[1] ?? '';
    const send = (fields: Fields, headers: Fields = { origin: ISSUER, 'sec-fetch-site': 'same-origin' }) =>
      flow.browser.send('POST', url, new URLSearchParams(fields).toString(), headers);
    expect((await send({ scope: 'files:read' })).status).toBe(403);
    expect((await send({ form_token, scope: 'reports:write' })).status).toBe(403);
    expect(
      (await send({ form_token, scope: 'files:read' }, { origin: 'https://evil.test', 'sec-fetch-site': 'cross-site' }))
        .status,
    ).toBe(403);
    const attacker = at.start();
    await attacker.browser.follow(await attacker.authorize());
    expect((await attacker.browser.send('POST', url, `form_token=${form_token}`)).status).toBe(403);
    expect(at.gateway.auditEvents('authorization_approved')).toEqual([]);
    expect((await send({ form_token, scope: 'files:read' })).status).toBe(303);
  });

  test('continues with a sign-in after the session has ended', async () => {
    const flow = at.start();
    const review = await flow.reachReview();
    flow.browser.cookie = flow.browser.cookie
      .split('; ')
      .filter((cookie) => cookie.startsWith('__Host-gatehouse-browser-'))
      .join('; ');
    const posted = await flow.browser.post('/authsvc/device/approve');
    expect(posted.redirectTo).toContain('/authsvc/device/sign-in?request=');
    const page = await flow.browser.open(review.url);
    expect(page.text).toContain('name="password"');
    await flow.signIn();
    expect((await flow.decide('approve')).searchParams.has('code')).toBe(true);
  });

  test.each<[string, Fields]>([
    ['a prefetch', { 'sec-purpose': 'prefetch' }],
    ['a prerender', { 'sec-purpose': 'prefetch;prerender' }],
    ['a prefetch of an older browser', { purpose: 'prefetch' }],
    ['a script', { 'sec-fetch-mode': 'cors', 'sec-fetch-dest': 'empty' }],
    ['a frame', { 'sec-fetch-dest': 'iframe' }],
    ['an image', { 'sec-fetch-mode': 'no-cors', 'sec-fetch-dest': 'image' }],
  ])('does not begin with %s', async (_, headers) => {
    const flow = at.start();
    const page = await flow.authorize({}, headers);
    expect([page.status, page.redirectTo, page.headers['set-cookie']]).toEqual([403, undefined, undefined]);
  });

  test('begins with GET only', async () => {
    const flow = at.start();
    const body = new URLSearchParams(flow.parameters()).toString();
    const page = await flow.browser.send('POST', '/authsvc/oauth2/authorize', body, {
      'sec-fetch-site': 'none',
    });
    expect([page.status, page.headers['allow']]).toEqual([405, 'GET, HEAD']);
  });

  test('identifies the browser with a cookie that only this host can set, and that is not forwarded', async () => {
    const flow = at.start();
    const page = await flow.authorize();
    expect([page.headers['set-cookie']].flat()).toEqual([
      expect.stringMatching(
        /^__Host-gatehouse-browser-[0-9]+=ghs_.*; Path=\/; Max-Age=86400; HttpOnly; SameSite=Lax; Secure$/,
      ),
    ]);
    const reply = await at.gateway.api('/health', undefined, {
      headers: { cookie: `a=1; ${flow.browser.cookie}; b=2` },
    });
    expect(reply.json['headers']).toMatchObject({ cookie: 'a=1; b=2' });
  });

  test('a sign-in changes the session, so a session that an attacker has set is worth nothing', async () => {
    const flow = at.start();
    await flow.browser.follow(await flow.authorize());
    const before = flow.browser.cookie;
    const review = await flow.signIn();
    const after = flow.browser.cookie;
    flow.browser.cookie = before;
    const page = await flow.browser.open(review.url);
    expect(page.text).toContain('name="password"');
    flow.browser.cookie = after;
    expect((await flow.browser.open(review.url)).text).toContain('Approve');
  });
});

describe('a new sign-in', () => {
  test.each<[string, Fields, boolean]>([
    ['no parameter', {}, false],
    ['prompt=consent', { prompt: 'consent' }, false],
    ['prompt=login', { prompt: 'login' }, true],
    ['prompt=select_account', { prompt: 'select_account consent' }, true],
    ['max_age=60', { max_age: '60' }, true],
    ['max_age=3600', { max_age: '3600' }, false],
  ])('%s: required is %s', async (_, changes, isRequired) => {
    const flow = at.start();
    await flow.reachReview();
    at.gateway.clock.advance(120);
    const page = await flow.browser.follow(await flow.authorize(changes));
    expect(page.text.includes('name="password"')).toBe(isRequired);
    if (isRequired) await flow.signIn();
    expect((await flow.decide('approve')).searchParams.has('code')).toBe(true);
  });

  describe('in the second of the last one', () => {
    freezeClock();
    test.each<[string, Fields, boolean]>([
      ['no parameter', {}, false],
      ['prompt=login', { prompt: 'login' }, true],
      ['prompt=login with max_age', { prompt: 'login', max_age: '3600' }, true],
      ['prompt=select_account', { prompt: 'select_account' }, true],
      ['max_age=0', { max_age: '0' }, true],
      ['max_age=1', { max_age: '1' }, false],
    ])('%s: required is %s', async (_, changes, isRequired) => {
      const flow = at.start();
      await flow.reachReview();
      const page = await flow.browser.follow(await flow.authorize(changes));
      expect(page.text.includes('name="password"')).toBe(isRequired);
      if (isRequired) await flow.signIn();
      expect((await flow.decide('approve')).searchParams.has('code')).toBe(true);
    });

    test('is for one request: another one that requires it needs its own', async () => {
      const flow = at.start();
      const first = await flow.authorize({ prompt: 'login' });
      const second = await flow.authorize({ prompt: 'login' });
      await flow.browser.follow(first);
      await flow.signIn();
      expect((await flow.browser.follow(second)).text).toContain('name="password"');
      await flow.signIn();
      expect((await flow.decide('approve')).searchParams.has('code')).toBe(true);
    });

    test('may be made on the pages of another request if it is made later', async () => {
      const flow = at.start();
      const first = await flow.authorize({ prompt: 'login' });
      at.gateway.clock.advance(1);
      await flow.browser.follow(await flow.authorize());
      await flow.signIn();
      expect((await flow.browser.follow(first)).text).toContain('Approve');
    });
  });

  test('cannot be skipped by sending the form of the approval', async () => {
    const flow = at.start();
    await flow.reachReview();
    at.gateway.clock.advance(120);
    const { redirectTo = '' } = await flow.authorize({ prompt: 'login' });
    const review = await flow.browser.get(redirectTo.replace('/sign-in', '/review'));
    expect(review.redirectTo).toContain('/sign-in');
    const form_token = 'any';
    const posted = await flow.browser.send(
      'POST',
      redirectTo.replace('/sign-in', '/approve'),
      `form_token=${form_token}`,
      {
        origin: ISSUER,
        'sec-fetch-site': 'same-origin',
      },
    );
    expect(posted.status).toBe(403);
  });
});
