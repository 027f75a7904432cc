import { expect, test } from 'vitest';
import { openWindow, PHONE } from '../support/chromium.ts';
import {
  clickButton,
  followLink,
  getHeading,
  signIn,
  submitUserCode,
  waitForNavigation,
} from '../support/page-states.ts';
import { BASE } from '../support/pages-harness.ts';
import { PASSWORD } from '../support/test-gateway.ts';
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
