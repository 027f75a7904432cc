import type { Page } from 'playwright-core';
import { expect, test } from 'vitest';
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

/** Whether the button is completely in the window, and nothing is in front of it. */
const isInReach = (page: Page, name: string): Promise<boolean> =>
  page.getByRole('button', { name, exact: true }).evaluate((element) => {
    const { document, innerHeight, innerWidth } = globalThis as unknown as {
      document: { elementFromPoint(x: number, y: number): unknown };
      innerHeight: number;
      innerWidth: number;
    };
    const button = element as unknown as {
      getBoundingClientRect(): Record<'top' | 'right' | 'bottom' | 'left', number>;
    };
    const { top, right, bottom, left } = button.getBoundingClientRect();
    const isVisible = top >= 0 && left >= 0 && bottom <= innerHeight && right <= innerWidth;
    return isVisible && document.elementFromPoint((left + right) / 2, (top + bottom) / 2) === button;
  });

test.each(
  chooseVariants(
    [
      [360, 640],
      [390, 844],
    ],
    [[360, 640]],
  ),
)(
  'on a phone of %i × %i, Approve and Deny are in reach without scrolling, and of equal size',
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
      expect([await isInReach(page, 'Approve'), await isInReach(page, 'Deny')]).toEqual([true, true]);
      const [approve, deny] = await Promise.all(
        ['Approve', 'Deny'].map((name) => page.getByRole('button', { name, exact: true }).boundingBox()),
      );
      expect([deny?.width, deny?.height]).toEqual([approve?.width, approve?.height]);
      expect(await horizontalOverflow(page)).toBeLessThanOrEqual(0);
      // The warning is visible before any scrolling too.
      const warning = await page.locator('.note').boundingBox();
      expect((warning?.y ?? height) + (warning?.height ?? 0)).toBeLessThanOrEqual(approve?.y ?? 0);
      await clickButton(page, 'Approve');
      expect(await getHeading(page)).toBe('Approved');
    } finally {
      await window.close();
    }
  },
);
