import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { MESSAGES } from '../../src/pages/views/messages/languages.ts';
import { describeScope } from '../../src/pages/views/scope-text.ts';
import { createDeviceClient } from '../support/device-client.ts';
import { formToken } from '../support/form-browser.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { BASE, type PagesHarness, startPagesHarness, storeUnavailable, toScope } from '../support/pages-harness.ts';
import { withIntegration, withUser } from '../support/reconfigure.ts';
import { PASSWORD } from '../support/test-gateway.ts';

let pages: PagesHarness;
freezeClock();
beforeAll(async () => {
  pages = await startPagesHarness();
});
afterAll(() => pages.close());
beforeEach(() => pages.reset());

test('a user enters the code, signs in, reviews and approves, and the device gets its token', async () => {
  const pending = await pages.requestCodes('reports:read,write;files');
  const alice = pages.browser();
  expect((await alice.get(BASE)).text).toContain('<label for="user_code">');
  const signIn = await alice.submit(BASE, { user_code: pending.user_code });
  expect(signIn.text).toContain('autocomplete="current-password"');
  const review = await alice.signIn();
  for (const shown of [
    'Report runner',
    'See and change reports',
    'Use files</li>',
    'reports:read,write',
    pending.user_code,
    '198.51.100.7',
    'just now',
    '5 minutes',
    'Alice Example',
    'Not you? Sign out',
  ])
    expect(review.text).toContain(shown);
  expect(await pages.readState(pending)).toBe('pending');

  const end = await alice.submit(`${BASE}/approve`);
  expect(end.status).toBe(200);
  expect(end.text).toContain('return to your device');
  expect(await pages.readState(pending)).toBe('confirmed');
  const issued = await createDeviceClient(pages.gateway).exchange(pending.device_code);
  expect(issued.status).toBe(200);
  expect(pages.events()).toEqual(['device_requested', 'sign_in', 'device_confirmed', 'grant_issued']);
});

const readDeviceName = (text: string): string | undefined => /<dt>Device name<\/dt><dd>(.*?)<\/dd>/s.exec(text)?.[1];

test('the page shows the name of the device as a claim', async () => {
  const pending = await pages.requestCodes('reports:read', { device_name: 'Kitchen display' });
  const review = await pages.browser().reachReview(pending.user_code);
  expect(readDeviceName(review.text)).toBe(
    '<bdi>Kitchen display</bdi><small>As stated by the device, not verified</small>',
  );
  const [requested] = pages.gateway.auditEvents('device_requested');
  expect(requested).toMatchObject({ device_name: 'Kitchen display' });
});

test('the OAuth endpoint accepts the name of the device as well', async () => {
  const reply = await pages.gateway.request({
    method: 'POST',
    path: '/authsvc/oauth2/device_authorization',
    headers: { 'content-type': 'application/x-www-form-urlencoded' },
    body: 'client_id=report-runner&scope=reports:read&device_name=Living+room+TV',
  });
  const review = await pages.browser().reachReview(String(reply.json['user_code']));
  expect(readDeviceName(review.text)).toContain('<bdi>Living room TV</bdi>');
});

test.each([
  ['markup', '<b onclick="x">\'&', '&lt;b onclick=&quot;x&quot;&gt;&#39;&amp;'],
  ['right-to-left overrides', 'TV\u202e\u2066gnp.exe\u200f', 'TV gnp.exe'],
  ['line breaks and control characters', 'a\r\n\u0000\u001b[31mb\u2028c', 'a [31mb c'],
  ['invisible characters', '\u200bTV\u00ad\ufeff', 'TV'],
  ['combining marks', `e${'\u0301'.repeat(50)}`, 'e\u0301\u0301\u0301'],
  ['a long name', 'x'.repeat(10_000), 'x'.repeat(64)],
  ['a long name of emoji', '📺'.repeat(400), '📺'.repeat(64)],
  ['a name in a right-to-left script', 'התקן של דנה', 'התקן של דנה'],
])('the name of a device cannot change the page: %s', async (_what, device_name, shown) => {
  const pending = await pages.requestCodes('reports:read', { device_name });
  const review = await pages.browser().reachReview(pending.user_code);
  expect(readDeviceName(review.text)).toMatch(/^<bdi>[^<>]*<\/bdi><small>/);
  expect(readDeviceName(review.text)).toContain(`<bdi>${shown}</bdi>`);
});

test.each([
  ['omitted', {}],
  ['empty', { device_name: '' }],
  ['invisible', { device_name: '\u200b\u2060 \n' }],
])('a device without a visible name has none on the page: %s', async (_what, more) => {
  const pending = await pages.requestCodes('reports:read', more);
  const review = await pages.browser().reachReview(pending.user_code);
  expect(readDeviceName(review.text)).toBeUndefined();
});

test('Deny closes the request and shows a confirmation', async () => {
  const pending = await pages.requestCodes();
  const alice = pages.browser();
  await alice.reachReview(pending.user_code);
  const end = await alice.submit(`${BASE}/deny`);
  expect(end.text).toContain('<h1>Denied</h1>');
  expect(await pages.readState(pending)).toBe('denied');
});

test('D09 a code is accepted in any case, with dashes and spaces; letters outside the alphabet are not corrected', async () => {
  const pending = await pages.requestCodes();
  const letters = pending.user_code.replace('-', '');
  for (const typed of [
    letters.toLowerCase(),
    ` ${pending.user_code} `,
    letters.split('').join(' '),
    letters.toLowerCase().split('').join('-'),
  ]) {
    const browser = pages.browser();
    await browser.get(BASE);
    expect((await browser.submit(BASE, { user_code: typed })).text).toContain('name="password"');
  }
  const browser = pages.browser();
  await browser.get(BASE);
  const looksAlike = await browser.submit(BASE, { user_code: `0${letters.slice(1)}` });
  expect(looksAlike.status).toBe(400);
});

test('D10 malformed, unknown and expired codes get the same page', async () => {
  const pending = await pages.requestCodes();
  const responses: string[] = [];
  const type = async (code: string): Promise<void> => {
    const browser = pages.browser();
    await browser.get(BASE);
    const response = await browser.submit(BASE, { user_code: code });
    expect(response.status).toBe(400);
    responses.push(
      response.text.replace(/name="form_token" value="[^"]*"/, '').replace(/(name="user_code" value=")[^"]*/, '$1'),
    );
  };
  await type('not a code');
  await type('BCDF-GHJK');
  pages.gateway.clock.advance(300);
  await type(pending.user_code);
  expect(responses[0]).toContain('This code is invalid or has expired');
  expect(new Set(responses).size).toBe(1);
});

test('D11 a link with the code fills it in, and every step still requires confirmation', async () => {
  const pending = await pages.requestCodes();
  const alice = pages.browser();
  const page = await alice.get(`${BASE}?user_code=${pending.user_code}`);
  expect(page.status).toBe(200);
  expect(page.text).toContain(`name="user_code" value="${pending.user_code}"`);
  await alice.submit(BASE, { user_code: pending.user_code });
  const review = await alice.signIn();
  expect(review.text).toContain(pending.user_code);
  for (const path of ['', '/sign-in', '/review', '/approve', '/deny', '/done'])
    await alice.get(`${BASE}${path}?user_code=${pending.user_code}&approve=yes`);
  expect(await pages.readState(pending)).toBe('pending');
});

test('D11 the links to other languages keep the code of the link, and nothing else of it', async () => {
  const browser = pages.browser();
  const page = await browser.get(`${BASE}?user_code=bcdf%20ghjk&next=%22%3E%3Cscript%3E`);
  const [, link = ''] = /<a href="([^"]+)" lang="de"/.exec(page.text) ?? [];
  expect(link.replaceAll('&amp;', '&')).toBe(`${BASE}?user_code=BCDF-GHJK&language=de`);
  const german = await browser.get(link.replaceAll('&amp;', '&'));
  expect(german.text).toContain('<html lang="de">');
  expect(german.text).toContain('name="user_code" value="BCDF-GHJK"');
});

test('D11 a link without exactly one valid code fills in nothing, and says so', async () => {
  const browser = pages.browser();
  for (const query of ['user_code=%22%3E%3Cscript%3E', 'user_code=BCDFGHJK&user_code=BCDFGHJL', 'user_code=%ff'])
    expect(await browser.get(`${BASE}?${query}`)).toMatchObject({
      status: 400,
      text: expect.stringMatching(
        /role="alert"[^>]*>The code in the link is not valid[^<]*<[\s\S]*name="user_code" value=""[\s\S]*href="[^"?]+\?language=de"/,
      ),
    });
  for (const query of ['', 'user_code='])
    expect(await browser.get(`${BASE}?${query}`)).toMatchObject({
      status: 200,
      text: expect.not.stringContaining('role="alert"'),
    });
});

test('D15 a second click on Approve shows the same page and confirms once', async () => {
  const pending = await pages.requestCodes();
  const alice = pages.browser();
  const review = await alice.reachReview(pending.user_code);
  const body = new URLSearchParams({ form_token: formToken(review.text, `${BASE}/approve`) }).toString();
  const both = await Promise.all([
    alice.send('POST', `${BASE}/approve`, body),
    alice.send('POST', `${BASE}/approve`, body),
  ]);
  expect(both.map(({ status, headers }) => [status, headers.location])).toEqual([
    [303, `${BASE}/done`],
    [303, `${BASE}/done`],
  ]);
  const later = await alice.send('POST', `${BASE}/approve`, body);
  expect((await alice.follow(later)).text).toContain('<h1>Approved</h1>');
  expect(pages.events().filter((event) => event === 'device_confirmed')).toHaveLength(1);
});

test('D15 a denied request stays denied', async () => {
  const pending = await pages.requestCodes();
  const [alice, other] = [pages.browser(), pages.browser()];
  await alice.reachReview(pending.user_code);
  await other.reachReview(pending.user_code);
  await other.submit(`${BASE}/deny`);
  const late = await alice.submit(`${BASE}/approve`);
  expect(late.status).toBe(409);
  expect(late.text).toContain('Already denied');
  expect(await pages.readState(pending)).toBe('denied');
});

test('D15 an expired request cannot be approved', async () => {
  const pending = await pages.requestCodes();
  const alice = pages.browser();
  await alice.reachReview(pending.user_code);
  pages.gateway.clock.advance(300);
  const late = await alice.submit(`${BASE}/approve`);
  expect(late.status).toBe(410);
  expect(late.text).toContain('Code expired');
  expect(await pages.readState(pending)).toBe('pending');
});

test('an approved request is shown to the next user as already approved', async () => {
  const pending = await pages.requestCodes();
  const alice = pages.browser();
  await alice.reachReview(pending.user_code);
  await alice.submit(`${BASE}/approve`);
  const late = await pages.browser().reachReview(pending.user_code, 'rita');
  expect(late.status).toBe(409);
  expect(late.text).toContain('Already approved');
});

test('D16 HEAD and prefetch change nothing, at any URL', async () => {
  const pending = await pages.requestCodes();
  const alice = pages.browser();
  await alice.reachReview(pending.user_code);
  for (const path of ['', '/sign-in', '/certificate', '/review', '/approve', '/deny', '/sign-out', '/done']) {
    const head = await alice.send('HEAD', `${BASE}${path}?user_code=${pending.user_code}`);
    expect(head.text).toBe('');
    await alice.get(`${BASE}${path}?user_code=${pending.user_code}`, {
      'sec-purpose': 'prefetch',
      purpose: 'prefetch',
    });
  }
  expect(await pages.readState(pending)).toBe('pending');
  expect(pages.events()).toEqual(['device_requested', 'sign_in']);
  expect((await alice.get(`${BASE}/review`)).text).toContain('Alice Example');
});

test('a user without access can only deny or sign out', async () => {
  const pending = await pages.requestCodes();
  const bob = pages.browser();
  const review = await bob.reachReview(pending.user_code, 'bob');
  expect(review.text).toContain('You don’t have access to this app');
  expect(review.text).not.toContain(`action="${BASE}/approve"`);
  expect((await bob.submit(`${BASE}/deny`)).text).toContain('<h1>Denied</h1>');
});

test('a user with less access than requested sees which permissions exceed it', async () => {
  const pending = await pages.requestCodes('files:read;reports:write');
  const review = await pages.browser().reachReview(pending.user_code, 'rita');
  expect(review.text).toContain('requests more access than you can grant: Change reports.');
  expect(review.text).not.toContain(`action="${BASE}/approve"`);
});

test('access that is removed between review and Approve is checked again', async () => {
  const pending = await pages.requestCodes();
  const alice = pages.browser();
  await alice.reachReview(pending.user_code);
  await pages.reconfigure(withIntegration('report-runner', { access: [] }));
  const late = await alice.submit(`${BASE}/approve`);
  expect(late.status).toBe(403);
  expect(late.text).toContain('You can’t approve this request');
  expect(await pages.readState(pending)).toBe('pending');
});

test('a disabled user gets the same page as for a wrong password', async () => {
  const pending = await pages.requestCodes();
  const browser = pages.browser();
  const disabled = await browser.reachReview(pending.user_code, 'dora');
  const wrong = await browser.signIn('nobody', 'x');
  expect(disabled.status).toBe(403);
  expect(disabled.text.replace('value="dora"', 'value="nobody"')).toBe(wrong.text);
});

test('a user disabled after signing in cannot approve', async () => {
  const pending = await pages.requestCodes();
  const alice = pages.browser();
  await alice.reachReview(pending.user_code);
  await pages.reconfigure(withUser('alice', { disabled: true }));
  const late = await alice.submit(`${BASE}/approve`);
  expect(late.status).toBe(403);
  expect(late.text).toContain('Your account is disabled');
  expect(await pages.readState(pending)).toBe('pending');
});

test('a user who was removed from the directory has to sign in again', async () => {
  const pending = await pages.requestCodes();
  const alice = pages.browser();
  await alice.reachReview(pending.user_code);
  await pages.reconfigure(withUser('alice', { id: '{00000000-0000-4000-8000-000000000000}', name: 'gone' }));
  expect((await alice.submit(`${BASE}/approve`)).text).toContain('name="password"');
  expect(await pages.readState(pending)).toBe('pending');
});

test('after signing out, another user can sign in and decide the same request', async () => {
  const pending = await pages.requestCodes();
  const browser = pages.browser();
  await browser.reachReview(pending.user_code, 'bob');
  const out = await browser.submit(`${BASE}/sign-out`);
  expect(out.text).toContain('name="password"');
  expect((await browser.get(`${BASE}/review`)).headers.location).toBe(`${BASE}/sign-in`);
  await browser.get(`${BASE}/sign-in`);
  const review = await browser.signIn();
  expect(review.text).toContain('Alice Example');
});

test('the fifth wrong password closes the request, and no typed text is logged', async () => {
  const pending = await pages.requestCodes();
  const browser = pages.browser();
  await browser.get(BASE);
  await browser.submit(BASE, { user_code: pending.user_code });
  for (let tries = 1; tries <= 4; tries += 1) {
    const wrong = await browser.submit(`${BASE}/sign-in`, {
      user_name: 'hunter2-in-the-wrong-field',
      password: 'pw-x',
    });
    expect(wrong.status).toBe(403);
    expect(wrong.text).toContain('Incorrect username or password');
  }
  const last = await browser.signIn('alice', 'pw-x');
  expect(last.text).toContain('Request closed');
  expect(await pages.readState(pending)).toBe('closed');
  expect(pages.events().filter((event) => event === 'sign_in_failed')).toHaveLength(5);
  expect(pages.gateway.logLines.join('')).not.toMatch(/hunter2|pw-x/);
});

test('concurrent wrong passwords are checked one after another, at most five of them', async () => {
  const pending = await pages.requestCodes();
  const browser = pages.browser();
  await browser.get(BASE);
  const page = await browser.submit(BASE, { user_code: pending.user_code });
  const token = formToken(page.text, `${BASE}/sign-in`);
  const responses = await Promise.all(
    Array.from({ length: 7 }, (_, index) =>
      browser.send(
        'POST',
        `${BASE}/sign-in`,
        new URLSearchParams({
          form_token: token,
          user_name: 'alice',
          password: index === 6 ? PASSWORD : 'guess',
        }).toString(),
      ),
    ),
  );
  expect(responses.filter(({ status }) => status === 403).length).toBeLessThanOrEqual(4);
  expect(pages.events().filter((event) => event === 'sign_in_failed').length).toBeLessThanOrEqual(5);
});

test('an integration that is removed while the page is open is reported on the page', async () => {
  const pending = await pages.requestCodes();
  const alice = pages.browser();
  await alice.reachReview(pending.user_code);
  await pages.reconfigure((settings) => ({ ...settings, integrations: [], routes: [] }));
  const review = await alice.get(`${BASE}/review`);
  expect(review.status).toBe(409);
  expect(review.text).toContain('no longer available');
});

test('an unreachable store is reported on the page, and the user can continue once it is back', async () => {
  const pending = await pages.requestCodes();
  const alice = pages.browser();
  await alice.reachReview(pending.user_code);
  const review = await alice.get(`${BASE}/review`);
  pages.beforeStore = storeUnavailable;
  const token = formToken(review.text, `${BASE}/approve`);
  const unreachable = await alice.send('POST', `${BASE}/approve`, `form_token=${token}`);
  expect(unreachable.status).toBe(503);
  expect(unreachable.headers['retry-after']).toBe('7');
  expect(unreachable.text).toContain('Your code remains valid');
  expect(unreachable.text).toContain(`href="${BASE}/review"`);
  pages.beforeStore = () => {};
  await alice.get(`${BASE}/review`);
  expect((await alice.submit(`${BASE}/approve`)).text).toContain('<h1>Approved</h1>');
});

test('an unreachable store does not count as a wrong code', async () => {
  const browser = pages.browser();
  pages.beforeStore = storeUnavailable;
  for (let tries = 0; tries < 7; tries += 1) {
    await browser.get(BASE);
    expect((await browser.submit(BASE, { user_code: 'BCDF-GHJK' })).status).toBe(503);
  }
  expect(pages.events()).not.toContain('code_guess_failed');
});

test('sign-ins beyond the queue limit get "busy" and do not count as failed', async () => {
  const pending = await pages.requestCodes();
  const busy = await pages.fillSignInQueue(pending.user_code);
  expect(busy.status).toBe(503);
  expect(busy.headers['retry-after']).toBe('1');
  expect(busy.text).toContain('Service busy');
  expect(pages.events()).not.toContain('sign_in_failed');
});

test('a configuration reload between any two steps does not affect the user', async () => {
  const pending = await pages.requestCodes();
  const browser = pages.browser();
  const reload = (): Promise<void> => pages.reconfigure((settings) => settings);
  await browser.get(BASE);
  await reload();
  await browser.submit(BASE, { user_code: pending.user_code });
  await reload();
  await browser.signIn();
  await reload();
  expect((await browser.submit(`${BASE}/approve`)).text).toContain('<h1>Approved</h1>');
});

test('permissions are described in plain words, each exactly once', () => {
  expect(describeScope(toScope('my_files:delete,zoom,read,list,x-ray;Notes:read,view;all'), MESSAGES.en)).toEqual([
    'Use all',
    'See, list and delete my files',
    'Use my files (“x-ray”, “zoom”)',
    'See notes',
  ]);
  expect(describeScope(toScope('a:constructor'), MESSAGES.en)).toEqual(['Use a (“constructor”)']);
});
