import { expect, test } from 'vitest';
import { openWindow, PHONE } from '../support/chromium.ts';
import { BASE } from '../support/confirm-pages.ts';
import { PASSWORD } from '../support/house.ts';
import { followLink, headingOf, leading, press, signIn, typeCode } from '../support/page-states.ts';
import { pagesInBrowser } from './pages-in-a-browser.ts';

const setting = pagesInBrowser();

test('everything can be done with the keyboard alone, and the focus is always visible', async () => {
  const { pages, desktop } = setting();
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
  const { browser, pages } = setting();
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
