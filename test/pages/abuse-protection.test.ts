import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { parseForm } from '../../src/pages/form.ts';
import { html, sanitizeText } from '../../src/pages/views/html.ts';
import { readKeyFile } from '../../src/server/keys.ts';
import { openSealingKeys } from '../../src/tokens/keyring.ts';
import { createSealer } from '../../src/tokens/sealer.ts';
import { formToken } from '../support/form-browser.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { BASE, type PagesHarness, startPagesHarness } from '../support/pages-harness.ts';
import { createCa, issue } from '../support/pki.ts';
import { withIntegration, withUser } from '../support/reconfigure.ts';
import { approveAfterSignIn, guessConcurrently, WRONG, withRates } from './code-guesses.ts';

let pages: PagesHarness;
freezeClock();
beforeAll(async () => {
  pages = await startPagesHarness();
});
afterAll(() => pages.close());
beforeEach(() => pages.reset());

describe('guessing codes', () => {
  test('D08 a session is locked after five wrong codes, even for the right one', async () => {
    const pending = await pages.requestCodes();
    const browser = pages.browser();
    await browser.get(BASE);
    for (let tries = 1; tries <= 5; tries += 1)
      expect((await browser.submit(BASE, { user_code: WRONG })).status).toBe(400);
    const locked = await browser.submit(BASE, { user_code: pending.user_code });
    expect(locked.status).toBe(429);
    expect(Number(locked.headers['retry-after'])).toBeGreaterThan(800);
    expect(locked.text).toContain('Too many attempts');
    expect((await browser.get(BASE)).status).toBe(429);
    expect(pages.gateway.auditEvents('code_guess_failed')).toHaveLength(5);
    expect(pages.gateway.logLines.join('')).not.toContain(WRONG);
  });

  test('D08 restoring an old cookie does not reset the count', async () => {
    const browser = pages.browser();
    const first = await browser.get(BASE);
    const kept = browser.cookie;
    const body = `user_code=${WRONG}&form_token=${formToken(first.text, BASE)}`;
    const statuses: number[] = [];
    for (let tries = 1; tries <= 6; tries += 1) {
      browser.cookie = kept;
      statuses.push((await browser.send('POST', BASE, body)).status);
    }
    expect(statuses).toEqual([400, 400, 400, 400, 400, 429]);
  });

  test('D08 the count survives sign-in and sign-out', async () => {
    const pending = await pages.requestCodes();
    const browser = pages.browser();
    await browser.get(BASE);
    for (let tries = 1; tries <= 4; tries += 1) await browser.submit(BASE, { user_code: WRONG });
    await browser.submit(BASE, { user_code: pending.user_code });
    await browser.signIn();
    await browser.submit(`${BASE}/sign-out`);
    await browser.get(BASE);
    expect((await browser.submit(BASE, { user_code: WRONG })).status).toBe(400);
    expect((await browser.get(BASE)).status).toBe(429);
  });

  test('D08 wrong codes are limited per address, across its sessions', async () => {
    await pages.reconfigure(withRates({ codeGuesses: '5/m' }));
    const pending = await pages.requestCodes();
    for (let tries = 1; tries <= 5; tries += 1) {
      const browser = pages.browser({ address: '203.0.113.1' });
      await browser.get(BASE);
      expect((await browser.submit(BASE, { user_code: WRONG })).status).toBe(400);
    }
    const again = pages.browser({ address: '203.0.113.1' });
    await again.get(BASE);
    const rejected = await again.submit(BASE, { user_code: pending.user_code });
    expect(rejected.status).toBe(429);
    expect(rejected.headers['retry-after']).toBe('12');
    const other = pages.browser({ address: '203.0.113.2' });
    expect((await other.reachReview(pending.user_code)).text).toContain('Alice Example');
    pages.gateway.clock.advance(12);
    await again.get(BASE);
    expect((await again.submit(BASE, { user_code: pending.user_code })).text).toContain('name="password"');
  });

  test('D08 addresses in one IPv6 /64 count as one address', async () => {
    await pages.reconfigure(withRates({ codeGuesses: '1/m' }));
    const [first, second] = [pages.browser({ address: '2001:db8::1' }), pages.browser({ address: '2001:db8::2' })];
    await first.get(BASE);
    expect((await first.submit(BASE, { user_code: WRONG })).status).toBe(400);
    await second.get(BASE);
    expect((await second.submit(BASE, { user_code: WRONG })).status).toBe(429);
  });

  test('D08 concurrent guesses from many addresses do not exceed the shared limit', () => guessConcurrently(pages, 1));

  test.each([
    ['IPv4 /24', ['192.0.2.1', '192.0.2.2', '192.0.2.3']],
    ['IPv6 /48', ['2001:db8:1:1::1', '2001:db8:1:2::1', '2001:db8:1:3::1']],
  ])('D08 the addresses of one network (%s) share a limit, and do not use up that of others', async (_, network) => {
    await pages.reconfigure(withRates({ codeGuesses: '5/h', networkCodeGuesses: '8/h', allCodeGuesses: '10/h' }));
    const pending = await pages.requestCodes();
    const statuses: number[] = [];
    for (const address of network)
      for (let guesses = 0; guesses < 5; guesses += 1) {
        const guesser = pages.browser({ address });
        await guesser.get(BASE);
        statuses.push((await guesser.submit(BASE, { user_code: WRONG })).status);
      }
    expect(statuses.filter((status) => status === 400)).toHaveLength(8);
    const user = pages.browser({ address: '198.51.100.7' });
    await user.get(BASE);
    expect((await user.submit(BASE, { user_code: pending.user_code })).text).toContain('name="password"');
  });

  test('D08 a user with the right code can sign in and continue while guesses from many networks use up the limit', async () => {
    await pages.reconfigure(withRates({ codeGuesses: '5/m', networkCodeGuesses: '20/m', allCodeGuesses: '60/m' }));
    const pending = await pages.requestCodes();
    let last = 0;
    for (let network = 0; last !== 429; network += 1) {
      const guesser = pages.browser({ address: `100.64.${network}.1` });
      await guesser.get(BASE);
      for (let guesses = 0; guesses < 5 && last !== 429; guesses += 1)
        last = (await guesser.submit(BASE, { user_code: WRONG })).status;
    }
    await approveAfterSignIn(pages, pending);
    expect(pages.gateway.logLines.join('')).not.toContain(pending.user_code);
  });

  test('D08 the signed-in users of one network share a limit, separate from users who are not signed in', async () => {
    await pages.reconfigure(withRates({ codeGuesses: '2/h', networkCodeGuesses: '3/h' }));
    let addresses = 0;
    const guess = async (name?: string): Promise<number> => {
      addresses += 1;
      const browser = pages.browser({ address: `192.0.2.${addresses}` });
      if (name !== undefined) {
        await browser.open(`${BASE}/grants`);
        await browser.signIn(name);
      }
      await browser.get(BASE);
      return (await browser.submit(BASE, { user_code: WRONG })).status;
    };
    const statuses: number[] = [];
    for (const name of [undefined, undefined, undefined, undefined, 'alice', 'alice', 'alice', 'rita', 'bob'])
      statuses.push(await guess(name));
    expect(statuses).toEqual([400, 400, 400, 429, 400, 400, 429, 400, 429]);
  });

  test('D08 each signed-in user has one limit across all sessions and addresses', async () => {
    await pages.reconfigure(withRates({ allCodeGuesses: '1/h', codeGuesses: '3/h' }));
    const statuses: number[] = [];
    for (let sessions = 0; sessions < 3; sessions += 1) {
      const browser = pages.browser();
      await browser.open(`${BASE}/grants`);
      await browser.signIn('rita');
      for (let guesses = 0; guesses < 2; guesses += 1) {
        await browser.get(BASE);
        statuses.push((await browser.submit(BASE, { user_code: WRONG })).status);
      }
    }
    expect(statuses).toEqual([400, 400, 400, 429, 429, 429]);
    expect(pages.gateway.auditEvents('code_guess_failed')[0]).toMatchObject({
      identity: expect.stringMatching(/^local:/),
    });
    // This does not affect the limits of other users.
    const other = pages.browser();
    await other.get(BASE);
    expect((await other.submit(BASE, { user_code: WRONG })).status).toBe(400);
    const alice = pages.browser();
    await alice.open(`${BASE}/grants`);
    await alice.signIn('alice');
    await alice.get(BASE);
    expect((await alice.submit(BASE, { user_code: WRONG })).status).toBe(400);
  });

  test('an address that requests pages too often gets 429 with Retry-After', async () => {
    await pages.reconfigure(withRates({ page: '3/m' }));
    const browser = pages.browser();
    for (let visits = 1; visits <= 3; visits += 1) expect((await browser.get(BASE)).status).toBe(200);
    const rejected = await browser.get(BASE);
    expect([rejected.status, rejected.headers['retry-after']]).toEqual([429, '20']);
  });

  test('an address that tries to sign in too often gets 429, and the request stays open', async () => {
    const pending = await pages.requestCodes();
    const browser = pages.browser({ address: '203.0.113.1' });
    await browser.open(`${BASE}/grants`);
    for (let tries = 1; tries <= 20; tries += 1)
      expect((await browser.signIn(`user-${tries}`, 'wrong')).status).toBe(403);
    const same = pages.browser({ address: '203.0.113.1' });
    await same.get(BASE);
    await same.submit(BASE, { user_code: pending.user_code });
    const rejected = await same.signIn();
    expect([rejected.status, rejected.headers['retry-after']]).toEqual([429, '3']);
    expect(await pages.readState(pending)).toBe('pending');
  });
});

describe('forged forms', () => {
  const openReviewForm = async () => {
    const pending = await pages.requestCodes();
    const alice = pages.browser();
    const page = await alice.reachReview(pending.user_code);
    const token = formToken(page.text, `${BASE}/approve`);
    return { pending, alice, page, token, body: `form_token=${token}` };
  };

  test('D12 a form without its token is rejected', async () => {
    const { pending, alice } = await openReviewForm();
    for (const body of ['', 'form_token=', 'form_token=x', 'approve=yes']) {
      const rejected = await alice.send('POST', `${BASE}/approve`, body, { origin: pages.url });
      expect(rejected.status).toBe(403);
    }
    expect(await pages.readState(pending)).toBe('pending');
  });

  test('D12 a form with the token of another session is rejected', async () => {
    const { pending, alice } = await openReviewForm();
    const mallory = pages.browser();
    const theirs = await mallory.reachReview(pending.user_code, 'rita');
    const token = formToken(theirs.text, `${BASE}/deny`);
    expect(token).not.toBe('');
    expect((await alice.send('POST', `${BASE}/deny`, `form_token=${token}`)).status).toBe(403);
    expect(await pages.readState(pending)).toBe('pending');
  });

  test('D12 a form from another origin is rejected', async () => {
    const { pending, alice, body } = await openReviewForm();
    for (const origin of ['https://evil.example', 'null', `${pages.url}.evil.example`, 'http://127.0.0.1'])
      expect((await alice.send('POST', `${BASE}/approve`, body, { origin })).status).toBe(403);
    expect(await pages.readState(pending)).toBe('pending');
  });

  test('D12 a cross-site or same-site form is rejected', async () => {
    const { pending, alice, body } = await openReviewForm();
    for (const site of ['cross-site', 'same-site', 'whatever', ''])
      expect((await alice.send('POST', `${BASE}/approve`, body, { 'sec-fetch-site': site })).status).toBe(403);
    expect(await pages.readState(pending)).toBe('pending');
  });

  test('D12 another content type is rejected', async () => {
    const { pending, alice, body } = await openReviewForm();
    for (const type of [
      'text/plain',
      'multipart/form-data; boundary=x',
      'application/json',
      'application/x-www-form-urlencoded; charset=utf-16',
      'text/plain, application/x-www-form-urlencoded',
    ])
      expect((await alice.send('POST', `${BASE}/approve`, body, { 'content-type': type })).status).toBe(403);
    expect(await pages.readState(pending)).toBe('pending');
  });

  test('an origin of null is accepted with Sec-Fetch-Site: same-origin', async () => {
    const { alice, body } = await openReviewForm();
    const headers = { origin: 'null', 'sec-fetch-site': 'same-origin' };
    expect((await alice.send('POST', `${BASE}/approve`, body, headers)).status).toBe(303);
  });

  test('the token of one form does not work for another', async () => {
    const { pending, alice, page } = await openReviewForm();
    const token = formToken(page.text, `${BASE}/sign-out`);
    expect((await alice.send('POST', `${BASE}/approve`, `form_token=${token}`)).status).toBe(403);
    expect(await pages.readState(pending)).toBe('pending');
  });

  test('the review of one request does not approve another', async () => {
    const { pending, alice, token } = await openReviewForm();
    const second = await pages.requestCodes();
    await alice.get(BASE);
    await alice.submit(BASE, { user_code: second.user_code });
    const rejected = await alice.send('POST', `${BASE}/approve`, `form_token=${token}`);
    expect(rejected.status).toBe(403);
    expect(await pages.readState(pending)).toBe('pending');
    expect(await pages.readState(second)).toBe('pending');
  });

  test('nothing is approved before a sign-in', async () => {
    const pending = await pages.requestCodes();
    const browser = pages.browser();
    await browser.get(BASE);
    const page = await browser.submit(BASE, { user_code: pending.user_code });
    for (const from of [BASE, `${BASE}/sign-in`])
      for (const action of ['approve', 'deny']) {
        const token = formToken(page.text, from);
        expect((await browser.send('POST', `${BASE}/${action}`, `form_token=${token}`)).status).toBe(403);
      }
    expect((await browser.get(`${BASE}/review`)).headers.location).toBe(`${BASE}/sign-in`);
    expect(await pages.readState(pending)).toBe('pending');
  });

  test('ambiguous and unreadable bodies are rejected', async () => {
    const { pending, alice, token } = await openReviewForm();
    for (const body of [
      `form_token=${token}&form_token=${token}`,
      `form_token=${token}&x=%ff`,
      `form_token=${token}&x=%zz`,
      `form_token=${token}&${Array.from({ length: 20 }, (_, at) => `f${at}=1`).join('&')}`,
    ])
      expect((await alice.send('POST', `${BASE}/approve`, body)).status).toBe(400);
    const large = await alice.send('POST', `${BASE}/approve`, `form_token=${token}&x=${'a'.repeat(17_000)}`);
    expect(large.status).toBe(413);
    const packed = await alice.send('POST', `${BASE}/approve`, 'x', { 'content-encoding': 'gzip' });
    expect(packed.status).toBe(400);
    expect(await pages.readState(pending)).toBe('pending');
  });

  test('another method gets 405 with Allow, another path 404', async () => {
    const browser = pages.browser();
    const approve = await browser.get(`${BASE}/approve`);
    expect([approve.status, approve.headers.allow]).toEqual([405, 'POST']);
    const put = await browser.send('PUT', BASE);
    expect([put.status, put.headers.allow]).toEqual([405, 'GET, HEAD, POST']);
    for (const path of ['/nothing', '/sign-in/', '/__proto__', '/constructor'])
      expect((await browser.get(`${BASE}${path}`)).status).toBe(404);
    expect((await browser.get(`${BASE}/`)).status).toBe(200);
    expect((await browser.get(`${BASE}/REVIEW`)).headers.location).toBe(BASE);
  });
});

describe('sessions', () => {
  test('signing in changes the session id: a cookie from before no longer works', async () => {
    const pending = await pages.requestCodes();
    const victim = pages.browser();
    const first = await victim.get(BASE);
    await victim.submit(BASE, { user_code: pending.user_code });
    const planted = victim.cookie;
    const review = await victim.signIn();
    const before = `user_code=${pending.user_code}&form_token=${formToken(first.text, BASE)}`;
    expect((await victim.send('POST', BASE, before)).status).toBe(403);

    const attacker = pages.browser();
    attacker.cookie = planted;
    expect((await attacker.get(`${BASE}/review`)).headers.location).toBe(`${BASE}/sign-in`);
    const token = formToken(review.text, `${BASE}/approve`);
    expect((await attacker.send('POST', `${BASE}/approve`, `form_token=${token}`)).status).toBe(403);
    expect(await pages.readState(pending)).toBe('pending');
  });

  test('a cookie that was changed, sealed for another purpose or sent twice is not a session', async () => {
    const pending = await pages.requestCodes();
    const alice = pages.browser();
    await alice.reachReview(pending.user_code);
    const good = alice.cookie;
    const [name = '', value = ''] = good.split('=');
    const text = Buffer.from(value.split('.')[1] ?? '', 'base64url').toString();
    const forged = value
      .split('.')
      .with(1, Buffer.from(text.replace('"wrongCodes":0', '"wrongCodes":1')).toString('base64url'));
    const { server, clock } = pages.gateway;
    const sealer = createSealer(openSealingKeys(readKeyFile(server.settings())), () => clock.now());
    const cookies = [
      `${name}=${forged.join('.')}`,
      `${name}=${value.slice(0, -2)}AA`,
      `${name}=${sealer.seal('another purpose', text)}`,
      `${name}=${sealer.seal('device page session', '{"id":"short"}')}`,
      `${name}=${sealer.seal('device page session', 'not json')}`,
      `${name}=`,
      `${good}; ${good}`,
    ];
    for (const cookie of cookies) {
      const response = await alice.get(`${BASE}/review`, { cookie });
      expect(response.status).toBe(403);
      expect(response.text).toContain('Page expired');
    }
    const among = { cookie: `other=1; ${good}; more=2` };
    expect((await alice.get(`${BASE}/review`, among)).status).toBe(200);
  });

  test('a session is valid until one second before its end, and not after', async () => {
    const pending = await pages.requestCodes();
    const alice = pages.browser();
    await alice.reachReview(pending.user_code);
    pages.gateway.clock.advance(899);
    expect((await alice.get(`${BASE}/review`)).status).toBe(410);
    pages.gateway.clock.advance(1);
    const late = await alice.get(`${BASE}/review`);
    expect(late.status).toBe(403);
    expect(late.text).toContain('Page expired');
  });

  test('over plain http, for development, the cookie has no __Host- prefix', async () => {
    await pages.reconfigure((settings) => ({ ...settings, publicUrl: 'http://localhost' }));
    const [cookie = ''] = [(await pages.browser().get(BASE)).headers['set-cookie'] ?? []].flat();
    expect(cookie).toMatch(/^gatehouse=ghs_[^;]+; Path=\/; Max-Age=900; HttpOnly; SameSite=Strict$/);
  });
});

describe('contents of a page', () => {
  test('D13 every response forbids framing, loading, storing and referrers', async () => {
    const pending = await pages.requestCodes();
    const alice = pages.browser();
    const responses = [
      await alice.get(BASE),
      await alice.reachReview(pending.user_code),
      await alice.get(`${BASE}/nothing`),
      await alice.send('POST', `${BASE}/approve`, 'form_token=x'),
      await alice.get(`${BASE}/sign-in`),
    ];
    expect(responses.map(({ status }) => status)).toEqual([200, 200, 404, 403, 303]);
    for (const { headers } of responses) {
      expect(headers['content-security-policy']).toMatch(
        /^default-src 'none'; style-src 'sha256-[A-Za-z0-9+/=]+'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'$/,
      );
      expect(headers).toMatchObject({
        'x-frame-options': 'DENY',
        'referrer-policy': 'no-referrer',
        'cache-control': 'no-store',
        'x-content-type-options': 'nosniff',
        'cross-origin-opener-policy': 'same-origin',
        'cross-origin-resource-policy': 'same-origin',
      });
      expect(headers['permissions-policy']).toContain('camera=()');
    }
  });

  test('D13 pages have no scripts, no external resources and no inline styles', async () => {
    const pending = await pages.requestCodes();
    const review = await pages.browser().reachReview(pending.user_code);
    expect(review.text).not.toMatch(/<script|\son[a-z]+=|javascript:|\ssrc=|\sstyle=|https?:\/\//i);
  });

  test('D14 names are escaped and truncated, and cannot change the text direction', async () => {
    const name = `<script>alert(1)</script>"'&\u202Eeman\u2066\u200B\u0000\n${'x'.repeat(200)}`;
    await pages.reconfigure((settings) =>
      withIntegration('report-runner', { name })(withUser('alice', { displayName: '<b>\u202Eecila' })(settings)),
    );
    const pending = await pages.requestCodes();
    const { text } = await pages.browser().reachReview(pending.user_code);
    expect(text).toContain('&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;eman');
    expect(text).toContain('&lt;b&gt;ecila');
    expect(text).not.toMatch(/[\u202a-\u202e\u2066-\u2069\u200b\0]/);
    expect(text).not.toContain('x'.repeat(100));
  });

  test('D14 typed text is escaped', async () => {
    const browser = pages.browser();
    await browser.get(BASE);
    const { text } = await browser.submit(BASE, { user_code: '"><img src=x>' });
    expect(text).toContain('value="&quot;&gt;&lt;img src=x&gt;"');
  });

  test('D14 templates escape everything except their own markup', () => {
    expect(html`<p class="${'"x'}">${['<', html`<b>${'&'}</b>`]}${false}${undefined}${3}</p>`.markup).toBe(
      '<p class="&quot;x">&lt;<b>&amp;</b>3</p>',
    );
    expect(sanitizeText(`a${'\u0301'.repeat(50)}`)).toBe(`a${'\u0301'.repeat(3)}`);
    expect(sanitizeText('Größe 漢字 ✓')).toBe('Größe 漢字 ✓');
    expect(sanitizeText('é'.repeat(500))).toBe(`${'é'.repeat(79)}…`);
  });

  test('forms are parsed strictly', () => {
    expect([...(parseForm('a=1+2&b=%C3%A9&c') ?? [])]).toEqual([
      ['a', '1 2'],
      ['b', 'é'],
      ['c', ''],
    ]);
    for (const text of ['a=1&a=2', 'a=%C3', 'a=%', 'a=é', 'a=1 2', 'a=\0']) expect(parseForm(text)).toBeUndefined();
  });
});

describe('over TLS', () => {
  test('the cookie is bound to this host and to TLS', async () => {
    const [cookie = ''] = [(await pages.browser().get(BASE)).headers['set-cookie'] ?? []].flat();
    expect(cookie).toMatch(/^__Host-gatehouse=ghs_[^;]+; Path=\/; Max-Age=900; HttpOnly; SameSite=Strict; Secure$/);
  });

  test('a user can sign in with a client certificate and approve', async () => {
    const pending = await pages.requestCodes();
    const alice = pages.browser({ certificate: await issue(pages.gateway.ca, { commonName: 'alice' }) });
    await alice.get(BASE);
    expect((await alice.submit(BASE, { user_code: pending.user_code })).text).toContain('Sign in with a certificate');
    const review = await alice.submit(`${BASE}/certificate`);
    expect(review.text).toContain('Alice Example');
    expect((await alice.submit(`${BASE}/approve`)).text).toContain('<h1>Approved</h1>');
    expect(pages.gateway.auditEvents('sign_in')).toMatchObject([
      {
        by: 'certificate',
        name: 'alice',
        certificate_subject: 'CN=alice',
        request_id: expect.any(String),
        from: expect.any(String),
      },
    ]);
  });

  test('certificate sign-in is offered only to browsers that present one', async () => {
    const pending = await pages.requestCodes();
    const browser = pages.browser();
    await browser.get(BASE);
    expect((await browser.submit(BASE, { user_code: pending.user_code })).text).not.toContain(
      'Sign in with a certificate',
    );
  });

  test.each([
    ['of another CA', 'certificate_issuer_not_approved', async () => issue(await createCa(), { commonName: 'alice' })],
    ['of a disabled user', 'identity_disabled', () => issue(pages.gateway.ca, { commonName: 'dora' })],
    ['of an unknown user', 'identity_unknown', () => issue(pages.gateway.ca, { commonName: 'mallory' })],
  ])('a certificate %s does not sign in, and a password still does', async (_which, reason, make) => {
    const pending = await pages.requestCodes();
    const browser = pages.browser({ certificate: await make() });
    await browser.get(BASE);
    await browser.submit(BASE, { user_code: pending.user_code });
    const rejected = await browser.submit(`${BASE}/certificate`);
    expect(rejected.status).toBe(403);
    expect(rejected.text).toContain('You can’t sign in with this certificate');
    expect(pages.gateway.auditEvents('sign_in_failed')).toMatchObject([{ reason }]);
    expect(await pages.readState(pending)).toBe('pending');
    const review = await browser.signIn();
    expect(review.text).toContain('Alice Example');
  });
});
