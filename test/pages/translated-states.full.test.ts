import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { LANGUAGES } from '../../src/domain/language.ts';
import { MESSAGES } from '../../src/pages/views/messages/languages.ts';
import { axeViolations, type BrowserWindow, horizontalOverflow, openWindow, PHONE } from '../support/chromium.ts';
import { getHeading, listOverflowing, STATES, translate } from '../support/page-states.ts';
import { pagesInBrowser } from './browser-states.ts';

const listStrings = (value: unknown): readonly string[] => {
  if (typeof value === 'string') return [value.trim()];
  return typeof value === 'object' && value !== null ? Object.values(value).flatMap(listStrings) : [];
};
/** Short ones may be the same word in another language. */
const ENGLISH = new Set(listStrings(MESSAGES.en).filter((text) => text.length > 5));

const setting = pagesInBrowser();

describe.each(LANGUAGES.filter((language) => language !== 'en'))('every page and state in %s', (language) => {
  let window: BrowserWindow;
  beforeAll(async () => {
    const viewport = { width: 320, height: 640 };
    window = await openWindow(setting().browser, { ...PHONE, viewport, locale: language });
  });
  afterAll(() => window?.close());

  test.each(Object.entries(STATES))('%s', async (_name, state) => {
    const { page, context, consoleErrors } = window;
    await context.clearCookies();
    await state.reach({ pages: setting().pages, page });
    expect(await page.locator('html').getAttribute('lang')).toBe(language);
    expect(await getHeading(page)).toBe(translate(state.heading, language));
    const texts = (await page.locator('main').innerText()).split('\n').map((line) => line.trim());
    expect(texts.filter((text) => ENGLISH.has(text) || /undefined|\[object/.test(text))).toEqual([]);
    expect(await axeViolations(page)).toEqual([]);
    expect(await horizontalOverflow(page)).toBeLessThanOrEqual(0);
    expect(await listOverflowing(page)).toEqual([]);
    expect(consoleErrors).toEqual([]);
  });
});
