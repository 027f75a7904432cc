import { once } from 'node:events';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import {
  axeFindings,
  DESKTOP,
  openChromium,
  openWindow,
  overflow,
  PHONE,
  type Window,
} from '../support/chromium.ts';
import { type Asked, BASE, type ConfirmPages } from '../support/confirm-pages.ts';
import { PASSWORD } from '../support/house.ts';
import {
  followLink,
  headingOf,
  leading,
  openStatePages,
  press,
  review,
  STATES,
  signIn,
  typeCode,
} from '../support/page-states.ts';
import { issueServer } from '../support/pki.ts';
import { withIntegration } from '../support/reconfigure.ts';

let browser: Browser;
let pages: ConfirmPages;
/** One window for every test that needs nothing special of it. */
let desktop: Window;
beforeAll(async () => {
  [browser, pages] = await Promise.all([openChromium(), openStatePages()]);
  desktop = await openWindow(browser, DESKTOP);
});
afterAll(async () => {
  await browser?.close();
  await pages?.close();
});
beforeEach(async () => {
  await pages.reset();
  await desktop.context.clearCookies();
  desktop.complaints.length = 0;
});

describe('every page and state', () => {
  let phone: Window;
  beforeAll(async () => {
    phone = await openWindow(browser, PHONE);
  });
  afterAll(() => phone.close());

  test.each(Object.entries(STATES))(
    '%s: axe finds nothing, light or dark; nothing overflows',
    async (_, state) => {
      const { page, context, complaints } = phone;
      await context.clearCookies();
      await page.emulateMedia({ colorScheme: 'light' });
      await state.reach({ pages, page });
      expect(await headingOf(page)).toBe(state.heading);
      expect(await axeFindings(page)).toEqual([]);
      expect(await overflow(page)).toBeLessThanOrEqual(0);
      // In the dark only the colours are others.
      await page.emulateMedia({ colorScheme: 'dark' });
      expect(await axeFindings(page, ['color-contrast'])).toEqual([]);
      expect(complaints).toEqual([]);
      expect(await page.locator('script').count()).toBe(0);
      // Every state offers a next step.
      expect(await page.locator('main').locator('a[href], button').count()).toBeGreaterThan(0);
    },
  );
});

test('everything can be done with the keyboard alone, and the focus is always visible', async () => {
  const { page } = desktop;
  const asked = await pages.ask();
  await page.goto(pages.url + BASE);
  const tabTo = async (name: string): Promise<void> => {
    for (let presses = 0; presses < 20; presses += 1) {
      await page.keyboard.press('Tab');
      const { label, outline } = await page.locator(':focus').evaluate((element) => {
        const { textContent, labels, ariaLabel } = element as unknown as {
          textContent: string;
          labels?: ArrayLike<{ textContent: string }>;
          ariaLabel: string | null;
        };
        const { getComputedStyle } = globalThis as unknown as {
          getComputedStyle: (of: unknown) => { outlineStyle: string };
        };
        return {
          label: ariaLabel ?? labels?.[0]?.textContent ?? textContent,
          outline: getComputedStyle(element).outlineStyle,
        };
      });
      expect(outline).not.toBe('none');
      if (label === name) return;
    }
    throw new Error(`no ${name} can be reached with Tab`);
  };
  const enter = (): Promise<void> => leading(page, () => page.keyboard.press('Enter'));
  await tabTo('Code');
  await page.keyboard.type(asked.user_code.toLowerCase().replace('-', ''));
  await enter();
  expect(await headingOf(page)).toBe('Sign in');
  await tabTo('User name');
  await page.keyboard.type('alice');
  await tabTo('Password');
  await page.keyboard.type(PASSWORD);
  await enter();
  expect(await headingOf(page)).toBe('Do you approve this?');
  await tabTo('Approve');
  await enter();
  expect(await headingOf(page)).toBe('Approved');
  expect(await pages.stateOf(asked)).toBe('confirmed');
});

test('a German browser without scripts gets German pages, and another language once it is chosen', async () => {
  const window = await openWindow(browser, { ...PHONE, locale: 'de-DE', javaScriptEnabled: false });
  const { page } = window;
  try {
    const asked = await pages.ask('reports:read');
    await typeCode({ pages, page }, asked.user_code);
    await signIn({ pages, page });
    expect(await headingOf(page)).toBe('Genehmigen Sie das?');
    expect(await page.locator('main').textContent()).toContain('Ihre Verkaufsberichte ansehen');
    await followLink(page, 'English');
    expect(await headingOf(page)).toBe('Do you approve this?');
    await press(page, 'Approve');
    expect(await headingOf(page)).toBe('Approved');
  } finally {
    await window.close();
  }
});

describe('attacks in a real browser', () => {
  let evil: Server;
  let served = '';
  beforeAll(async () => {
    const { pem, keyPem } = await issueServer(pages.house.ca);
    evil = createServer({ cert: pem, key: keyPem }, (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/html' }).end(served);
    });
    await once(evil.listen(0), 'listening');
  });
  afterAll(() => {
    evil.close();
    evil.closeAllConnections();
  });
  const evilAt = (host: string): string => `https://${host}:${(evil.address() as AddressInfo).port}/`;

  let page: Page;
  let tab: Page | undefined;
  beforeEach(() => {
    page = desktop.page;
  });
  afterEach(async () => {
    await tab?.close();
    tab = undefined;
  });

  async function reviewing(): Promise<Asked> {
    const asked = await review({ pages, page });
    expect(await headingOf(page)).toBe('Do you approve this?');
    return asked;
  }

  test.each([
    ['another site', '127.0.0.1'],
    ['another port of the same site, to which cookies go', 'localhost'],
  ])('D12 a form that %s submits approves nothing, even with the right token', async (_, host) => {
    const asked = await reviewing();
    const token = await page
      .locator(`form[action="${BASE}/approve"] input[name=form_token]`)
      .getAttribute('value');
    served = `<form method="post" action="${pages.url}${BASE}/approve"><input name="form_token" value="${token}"></form><script>document.forms[0].submit()</script>`;
    tab = await desktop.context.newPage();
    const attempt = tab.waitForResponse(`${pages.url}${BASE}/approve`);
    await tab.goto(evilAt(host));
    expect((await attempt).status()).toBe(403);
    expect(await headingOf(tab)).toMatch(/could not be accepted|has run out/);
    expect(await pages.stateOf(asked)).toBe('pending');
  });

  test('D13 no page is shown in a frame', async () => {
    const asked = await reviewing();
    served = `<iframe src="${pages.url}${BASE}/review" width="600" height="900"></iframe>`;
    tab = await desktop.context.newPage();
    await tab.goto(evilAt('localhost'));
    const [, frame] = tab.frames();
    expect(frame?.url()).toMatch(/^chrome-error:/);
    expect(await frame?.locator('body').textContent()).not.toContain('Approve');
    expect(await pages.stateOf(asked)).toBe('pending');
  });

  test('D11 D16 opening, reloading, prefetching and going back decide nothing', async () => {
    const asked = await reviewing();
    await page.reload();
    await page.goBack();
    await page.goForward();
    const url = (path: string): string => `${pages.url}${BASE}${path}?user_code=${asked.user_code}`;
    for (const path of ['', '/review', '/approve', '/deny', '/done']) await page.goto(url(path));
    const paths = ['', '/review', '/approve', '/deny'];
    served = paths
      .map((path) => `<img src="${url(path)}"><link rel="prefetch" href="${url(path)}">`)
      .join('');
    pages.house.forgetLog();
    await page.goto(evilAt('localhost'));
    // The browser hides what it has blocked: the gateway says what has arrived.
    const arrived = (): number => pages.house.log.filter(({ event }) => event === 'request').length;
    await vi.waitFor(() => expect(arrived()).toBeGreaterThanOrEqual(paths.length * 2), { timeout: 30_000 });
    expect(await pages.stateOf(asked)).toBe('pending');
  });

  test('D15 two clicks on Approve are one approval; going back and denying does not undo it', async () => {
    const asked = await reviewing();
    tab = await desktop.context.newPage();
    await tab.goto(page.url());
    // The first request is held until the second has arrived. `click` of a button would wait for its navigation.
    const held = Promise.withResolvers<void>();
    let arrived = 0;
    pages.beforeStore = () => {
      arrived += 1;
      return held.promise;
    };
    const approve = page.getByRole('button', { name: 'Approve' });
    await approve.scrollIntoViewIfNeeded();
    const { x = 0, y = 0 } = (await approve.boundingBox()) ?? {};
    await leading(page, async () => {
      for (const clicks of [1, 2]) {
        await page.mouse.click(x + 5, y + 5);
        await vi.waitFor(() => expect(arrived).toBe(clicks), { timeout: 30_000 });
      }
      held.resolve();
    });
    expect(await headingOf(page)).toBe('Approved');
    expect(pages.house.audits('device_confirmed')).toHaveLength(1);
    await page.goBack();
    expect(await headingOf(page)).toBe('Approved');
    await press(tab, 'Deny');
    expect(await headingOf(tab)).toBe('Already approved');
    expect(await pages.stateOf(asked)).toBe('confirmed');
  });

  test('D14 a hostile integration name is shown as text and reorders nothing', async () => {
    const name = `<img src=x onerror=alert(1)>\u202eevil<script>alert(2)</script>${'x'.repeat(180)}`;
    await pages.change(withIntegration('report-runner', { name }));
    await reviewing();
    expect(desktop.complaints).toEqual([]);
    expect(await page.locator('main img, script').count()).toBe(0);
    expect(await page.locator('main').textContent()).not.toContain('\u202e');
    expect(await overflow(page)).toBeLessThanOrEqual(0);
  });

  test('a browser that has signed out cannot go back to the pages of the person before', async () => {
    const asked = await reviewing();
    await press(page, /Sign out/);
    expect(await headingOf(page)).toBe('Sign in');
    await page.goBack();
    expect(await page.locator('body').textContent()).not.toContain('Alice Example');
    expect(await pages.stateOf(asked)).toBe('pending');
  });
});
