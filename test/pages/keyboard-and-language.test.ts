import type { Page } from 'playwright-core';
import { expect, test } from 'vitest';
import { LANGUAGES } from '../../src/domain/language.ts';
import { horizontalOverflow, openWindow, PHONE } from '../support/chromium.ts';
import {
  clickButton,
  followLink,
  getHeading,
  openReview,
  signIn,
  submitUserCode,
  waitForNavigation,
} from '../support/page-states.ts';
import { BASE } from '../support/pages-harness.ts';
import { PASSWORD } from '../support/test-gateway.ts';
import { chooseVariants } from '../support/variants.ts';
import { pagesInBrowser } from './browser-states.ts';

const setting = pagesInBrowser();

test('everything can be done with the keyboard alone, and the focus is always visible', async () => {
  const { pages, desktop } = setting();
  const { page } = desktop;
  const pending = await pages.requestCodes();
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
  const enter = (): Promise<void> => waitForNavigation(page, () => page.keyboard.press('Enter'));
  await tabTo('Code');
  await page.keyboard.type(pending.user_code.toLowerCase().replace('-', ''));
  await enter();
  expect(await getHeading(page)).toBe('Sign in');
  await tabTo('Username');
  await page.keyboard.type('alice');
  await tabTo('Password');
  await page.keyboard.type(PASSWORD);
  await enter();
  expect(await getHeading(page)).toBe('Approve this request?');
  await tabTo('Approve');
  await enter();
  expect(await getHeading(page)).toBe('Approved');
  expect(await pages.readState(pending)).toBe('confirmed');
});

test('a German browser without scripts gets German pages, and another language once it is chosen', async () => {
  const { browser, pages } = setting();
  const window = await openWindow(browser, { ...PHONE, locale: 'de-DE', javaScriptEnabled: false });
  const { page } = window;
  try {
    const pending = await pages.requestCodes('reports:read');
    await submitUserCode({ pages, page }, pending.user_code);
    await signIn({ pages, page });
    expect(await getHeading(page)).toBe('Diese Anfrage genehmigen?');
    expect(await page.locator('main').textContent()).toContain('Ihre Verkaufsberichte ansehen');
    await followLink(page, 'English');
    expect(await getHeading(page)).toBe('Approve this request?');
    await clickButton(page, 'Approve');
    expect(await getHeading(page)).toBe('Approved');
  } finally {
    await window.close();
  }
});

/** Bottom edges of the elements and the top edge of the first one that matches `lower`, in the window. */
const measure = (page: Page, upper: string, lower: string) =>
  page.evaluate(
    ([above = '', below = '']) => {
      const { document } = globalThis as unknown as {
        document: { querySelectorAll(selector: string): ArrayLike<MeasuredElement> };
      };
      const [first] = Array.from(document.querySelectorAll(below));
      return {
        bottoms: Array.from(document.querySelectorAll(above), (element) => element.getBoundingClientRect().bottom),
        top: first?.getBoundingClientRect().top ?? 0,
      };
    },
    [upper, lower],
  );

interface MeasuredElement {
  getBoundingClientRect(): { readonly top: number; readonly bottom: number };
}

test.each(
  chooseVariants(
    [
      [360, 640],
      [375, 667],
      [390, 844],
    ],
    [[375, 667]],
  ),
)(
  'on a phone of %i × %i, permissions, IP address and expiry are always above Approve and Deny, which are of equal size',
  async (width, height) => {
    const { browser, pages } = setting();
    const resources = ['accounts', 'calendars', 'files', 'invoices', 'mail', 'orders', 'photos', 'tasks'];
    const scope = resources.map((resource) => `${resource}:read,write,delete`).join(';');
    await pages.reconfigure((settings) => ({
      ...settings,
      integrations: (settings.integrations ?? []).map((integration) =>
        integration.clientId === 'report-runner'
          ? { ...integration, name: 'Quarterly Report Runner for the Northern Region', scope }
          : integration,
      ),
    }));
    const window = await openWindow(browser, { ...PHONE, viewport: { width, height } });
    const { page } = window;
    try {
      await openReview({ pages, page }, 'alice', { scope, deviceName: 'x'.repeat(64) });
      expect(await page.locator('main li').count()).toBe(8);
      const pageHeight = (await page.locator('body').boundingBox())?.height ?? 0;
      for (let y = 0; y < pageHeight; y += 150) {
        await page.mouse.wheel(0, y === 0 ? 0 : 150);
        const { bottoms, top } = await measure(page, 'main li, main dd', '.choice');
        expect(bottoms).toHaveLength(8 + 4);
        expect(Math.max(...bottoms)).toBeLessThanOrEqual(top);
      }
      const [approve, deny] = await Promise.all(
        ['Approve', 'Deny'].map((name) => page.getByRole('button', { name, exact: true }).boundingBox()),
      );
      expect([deny?.width, deny?.height]).toEqual([approve?.width, approve?.height]);
      expect(await horizontalOverflow(page)).toBeLessThanOrEqual(0);
      // The warning is visible without scrolling.
      await page.reload();
      const warning = await page.locator('.note').boundingBox();
      expect((warning?.y ?? height) + (warning?.height ?? 0)).toBeLessThanOrEqual(height);
      await clickButton(page, 'Approve');
      expect(await getHeading(page)).toBe('Approved');
    } finally {
      await window.close();
    }
  },
);

test.each(LANGUAGES)('on a phone, times take two lines at most: %s', async (locale) => {
  const { browser, pages } = setting();
  const window = await openWindow(browser, { ...PHONE, viewport: { width: 375, height: 667 }, locale });
  const { page } = window;
  try {
    await openReview({ pages, page });
    const times = page.locator('dd', { has: page.locator('time') });
    expect(await times.count()).toBe(2);
    for (const time of await times.all()) expect((await time.boundingBox())?.height).toBeLessThan(50);
  } finally {
    await window.close();
  }
});
