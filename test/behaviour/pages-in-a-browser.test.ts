import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import {
  axeFindings,
  DESKTOP,
  openChromium,
  openWindow,
  overflow,
  PHONE,
  type Window,
} from '../support/chromium.ts';
import { BASE, type ConfirmHouse, integration } from '../support/confirm-house.ts';
import { STATES, signIn, stateHouse, typeCode } from '../support/page-states.ts';

let browser: Browser;
let house: ConfirmHouse;
let window: Window | undefined;
beforeAll(async () => {
  browser = await openChromium();
});
afterAll(() => browser.close());
beforeEach(async () => {
  house = await stateHouse();
});
afterEach(async () => {
  await window?.close();
  window = undefined;
  await house.close();
});

const h1 = (): Promise<string | null | undefined> =>
  Promise.resolve(window?.page.getByRole('heading', { level: 1 }).textContent());

describe('every page and state, on a phone and on a desk', () => {
  let [withScripts, without]: Window[] = [];
  beforeAll(async () => {
    withScripts = await openWindow(browser, PHONE);
    without = await openWindow(browser, { ...DESKTOP, javaScriptEnabled: false });
  });
  afterAll(async () => {
    await withScripts?.close();
    await without?.close();
  });
  const heading = (page: Page): Promise<string | null> =>
    page.getByRole('heading', { level: 1 }).textContent();

  test.each(Object.entries(STATES))(
    '%s, with scripts: axe finds nothing, light or dark; nothing sticks out',
    async (_name, state) => {
      if (withScripts === undefined) throw new Error('no window');
      const { page, context, complaints } = withScripts;
      await context.clearCookies();
      await page.emulateMedia({ colorScheme: 'light' });
      await page.setViewportSize(PHONE.viewport);
      await state.reach({ house, page });
      expect(await heading(page)).toBe(state.heading);
      expect(await axeFindings(page)).toEqual([]);
      expect(await overflow(page)).toBeLessThanOrEqual(0);
      await page.emulateMedia({ colorScheme: 'dark' });
      await page.setViewportSize(DESKTOP.viewport);
      expect(await axeFindings(page)).toEqual([]);
      expect(await overflow(page)).toBeLessThanOrEqual(0);
      expect(complaints).toEqual([]);
      // Whatever the state, there is a way on.
      expect(await page.locator('main').locator('a[href], button').count()).toBeGreaterThan(0);
    },
  );

  test.each(Object.entries(STATES))('%s, without scripts', async (_name, state) => {
    if (without === undefined) throw new Error('no window');
    const { page, context } = without;
    await context.clearCookies();
    await page.setViewportSize(DESKTOP.viewport);
    await state.reach({ house, page });
    expect(await heading(page)).toBe(state.heading);
    await page.setViewportSize(PHONE.viewport);
    expect(await page.locator('script').count()).toBe(0);
    expect(await page.locator('main').locator('a[href], button').count()).toBeGreaterThan(0);
  });
});

test('by keyboard alone, from the code to the end, and the focus is always to be seen', async () => {
  window = await openWindow(browser, DESKTOP);
  const { page } = window;
  const asked = await house.ask();
  await page.goto(house.url + BASE);
  const tabTo = async (name: string): Promise<void> => {
    for (let presses = 0; presses < 20; presses += 1) {
      await page.keyboard.press('Tab');
      const focused = page.locator(':focus');
      const label = await focused.evaluate((element) => {
        const { textContent, labels, ariaLabel } = element as unknown as {
          textContent: string;
          labels?: ArrayLike<{ textContent: string }>;
          ariaLabel: string | null;
        };
        return ariaLabel ?? labels?.[0]?.textContent ?? textContent;
      });
      const outline = await focused.evaluate(
        (element) =>
          (
            globalThis as unknown as { getComputedStyle(e: unknown): { outlineStyle: string } }
          ).getComputedStyle(element).outlineStyle,
      );
      expect(outline).not.toBe('none');
      if (label === name) return;
    }
    throw new Error(`no ${name} can be reached by Tab`);
  };
  await tabTo('Code');
  await page.keyboard.type(asked.userCode.toLowerCase().replace('-', ''));
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Sign in' }).waitFor();
  await tabTo('User name');
  await page.keyboard.type('alice');
  await tabTo('Password');
  await page.keyboard.type('alice-password');
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Do you approve this?' }).waitFor();
  await tabTo('Approve');
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Approved' }).waitFor();
  expect(await house.stateOf(asked)).toBe('confirmed');
});

test('a browser in German is spoken to in German, and the choice stays', async () => {
  window = await openWindow(browser, { ...PHONE, locale: 'de-DE', javaScriptEnabled: false });
  const { page } = window;
  const asked = await house.ask({ scope: 'reports:read' });
  await typeCode({ house, page }, asked.userCode);
  await signIn({ house, page });
  expect(await h1()).toBe('Genehmigen Sie das?');
  expect(await page.locator('main').textContent()).toContain('Ihre Verkaufsberichte ansehen');
  await page.getByRole('link', { name: 'English' }).click();
  expect(await h1()).toBe('Do you approve this?');
  await page.getByRole('button', { name: 'Approve' }).click();
  expect(await h1()).toBe('Approved');
});

describe('what others may try, in a real browser', () => {
  let evil: Server;
  let served = '';
  beforeAll(async () => {
    evil = createServer((_request, response) => {
      response.writeHead(200, { 'content-type': 'text/html' }).end(served);
    });
    await new Promise<void>((resolve) => evil.listen(0, '127.0.0.1', resolve));
  });
  afterAll(() => {
    evil.closeAllConnections();
    evil.close();
  });
  const evilPort = (): number => (evil.address() as AddressInfo).port;

  async function reviewing(): Promise<{
    readonly window: Window;
    readonly asked: Awaited<ReturnType<ConfirmHouse['ask']>>;
    readonly token: string;
  }> {
    const opened = await openWindow(browser, DESKTOP);
    window = opened;
    const asked = await house.ask();
    await typeCode({ house, page: opened.page }, asked.userCode);
    await signIn({ house, page: opened.page });
    const token = await opened.page
      .locator(`form[action="${BASE}/approve"] input[name=form_token]`)
      .getAttribute('value');
    return { window: opened, asked, token: token ?? '' };
  }

  test.each([
    ['another site', (port: number) => `http://localhost:${port}/`],
    ['another port of the same site, to which cookies go', (port: number) => `http://127.0.0.1:${port}/`],
  ])('D12 a form that %s sends by itself approves nothing, even with the right token', async (_who, at) => {
    const { window: opened, asked, token } = await reviewing();
    served = `<form method="post" action="${house.url}${BASE}/approve"><input name="form_token" value="${token}"></form><script>document.forms[0].submit()</script>`;
    const page = await opened.context.newPage();
    await page.goto(at(evilPort()));
    await page.getByRole('heading', { level: 1 }).waitFor();
    expect(await page.getByRole('heading', { level: 1 }).textContent()).toMatch(
      /could not be accepted|has run out/,
    );
    expect(await house.stateOf(asked)).toBe('pending');
  });

  test('D13 no page of ours is shown in a frame', async () => {
    const { window: opened, asked } = await reviewing();
    served = `<iframe src="${house.url}${BASE}/review" width="600" height="900"></iframe>`;
    const page = await opened.context.newPage();
    await page.goto(`http://127.0.0.1:${evilPort()}/`, { waitUntil: 'load' });
    const texts = await Promise.all(
      page.frames().map((frame) =>
        frame
          .locator('body')
          .textContent()
          .catch(() => ''),
      ),
    );
    expect(texts.join(' ')).not.toContain('Approve');
    expect(page.frames().some((frame) => frame.url().startsWith('chrome-error:'))).toBe(true);
    expect(await house.stateOf(asked)).toBe('pending');
  });

  test('D08 the sixth wrong code in one browser is not looked at, and the right one neither', async () => {
    window = await openWindow(browser, PHONE);
    const { page } = window;
    const asked = await house.ask();
    for (let tries = 0; tries < 5; tries += 1) await typeCode({ house, page }, 'BCDF-GHJK');
    await page.goto(house.url + BASE);
    expect(await h1()).toBe('Too many tries');
    expect(await page.getByLabel('Code', { exact: true }).count()).toBe(0);
    expect(await house.stateOf(asked)).toBe('pending');
  });

  test('D11 D16 opening, reloading, prefetching and going back decide nothing', async () => {
    const { window: opened, asked } = await reviewing();
    const { page } = opened;
    await page.reload();
    await page.goBack();
    await page.goForward();
    for (const path of ['', '/review', '/approve', '/deny', '/done'])
      await page.goto(`${house.url}${BASE}${path}?user_code=${asked.userCode}`);
    served = ['', '/review', '/approve', '/deny']
      .map(
        (path) =>
          `<link rel="prefetch" href="${house.url}${BASE}${path}?user_code=${asked.userCode}"><img src="${house.url}${BASE}${path}">`,
      )
      .join('');
    await page.goto(`http://127.0.0.1:${evilPort()}/`, { waitUntil: 'networkidle' });
    expect(await house.stateOf(asked)).toBe('pending');
  });

  test('D15 a double click on Approve is one yes; going back and denying does not undo it', async () => {
    const { window: opened, asked } = await reviewing();
    house.world.latency = 50;
    await opened.page.getByRole('button', { name: 'Approve' }).dblclick();
    await opened.page.getByRole('heading', { name: 'Approved' }).waitFor();
    expect(house.audits.filter((line) => line['event'] === 'device_confirmed')).toHaveLength(1);
    await opened.page.goBack();
    const deny = opened.page.getByRole('button', { name: 'Deny' });
    if ((await deny.count()) > 0) await deny.click();
    expect(await house.stateOf(asked)).toBe('confirmed');
  });

  test('D14 an integration with a hostile name is text, and turns nothing around', async () => {
    house.world.integrations.set(
      'report-runner',
      integration({
        name: `<img src=x onerror=alert(1)>\u202eevil<script>alert(2)</script>${'x'.repeat(10_000)}`,
      }),
    );
    const { window: opened } = await reviewing();
    expect(opened.complaints).toEqual([]);
    expect(await opened.page.locator('main img, script').count()).toBe(0);
    expect(await opened.page.locator('main').textContent()).not.toContain('\u202e');
    expect(await overflow(opened.page)).toBeLessThanOrEqual(0);
  });

  test('a signed-out browser cannot go back into the pages of the person before', async () => {
    const { window: opened, asked } = await reviewing();
    const { page } = opened;
    await page.getByRole('button', { name: /Sign out/ }).click();
    await page.goBack();
    expect(await page.locator('body').textContent()).not.toContain('Alice Example');
    expect(await house.stateOf(asked)).toBe('pending');
  });
});
