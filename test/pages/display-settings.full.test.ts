import type { BrowserContextOptions, Page } from 'playwright-core';
import { expect, test } from 'vitest';
import { axeViolations, horizontalOverflow, openWindow, PHONE } from '../support/chromium.ts';
import { openReview, STATES } from '../support/page-states.ts';
import { pagesInBrowser } from './browser-states.ts';

const setting = pagesInBrowser();

async function withReview<T>(options: BrowserContextOptions, check: (page: Page) => Promise<T>): Promise<T> {
  const { browser, pages } = setting();
  const window = await openWindow(browser, options);
  try {
    await openReview({ pages, page: window.page });
    return await check(window.page);
  } finally {
    await window.close();
  }
}

/** Computed styles of the first element that matches. */
const getStyles = (page: Page, selector: string, ...names: readonly string[]): Promise<readonly string[]> =>
  page
    .locator(selector)
    .first()
    .evaluate((element, properties) => {
      const { getComputedStyle } = globalThis as unknown as {
        getComputedStyle: (of: unknown) => { getPropertyValue(name: string): string };
      };
      const style = getComputedStyle(element);
      return properties.map((name) => style.getPropertyValue(name));
    }, names);

test.each(['review', 'grants', 'sign-in', 'root'])(
  '%s: nothing overflows in a small window, at 200 percent zoom, and with text twice as large',
  async (name) => {
    const { browser, pages } = setting();
    // 200 % of a window of 1,280 × 800, and the width that WCAG 2.2 requires (1.4.10).
    for (const viewport of [
      { width: 640, height: 400 },
      { width: 320, height: 256 },
    ]) {
      const window = await openWindow(browser, { viewport, deviceScaleFactor: 2 });
      const { page } = window;
      await pages.reset();
      await STATES[name]?.reach({ pages, page });
      expect(await horizontalOverflow(page)).toBeLessThanOrEqual(0);
      await page.evaluate(() => {
        const { document } = globalThis as unknown as {
          document: { documentElement: { style: { fontSize: string } } };
        };
        document.documentElement.style.fontSize = '200%';
      });
      expect(await horizontalOverflow(page)).toBeLessThanOrEqual(0);
      await window.close();
    }
  },
);

test('the buttons never cover the element that has the focus', async () => {
  await withReview({ ...PHONE, viewport: { width: 360, height: 640 } }, async (page) => {
    const covered: string[] = [];
    const links = await page.locator('a[href], button, summary').count();
    for (let presses = 0; presses < links; presses += 1) {
      await page.keyboard.press('Tab');
      const hidden = await page.locator(':focus').evaluate((element) => {
        const focused = element as unknown as FocusedElement;
        const { document } = globalThis as unknown as {
          document: { elementFromPoint(x: number, y: number): unknown };
        };
        const { top, bottom, left, right } = focused.getBoundingClientRect();
        const front = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
        return focused.contains(front) ? undefined : focused.textContent;
      });
      if (hidden !== undefined) covered.push(hidden);
    }
    expect(covered).toEqual([]);
  });
});

interface FocusedElement {
  readonly textContent: string;
  contains(other: unknown): boolean;
  getBoundingClientRect(): Record<'top' | 'right' | 'bottom' | 'left', number>;
}

test('in forced-colours mode the buttons differ, and axe reports no violation', async () => {
  await withReview({ ...PHONE, forcedColors: 'active' }, async (page) => {
    const approve = await getStyles(page, '.choice button:not(.second)', 'background-color', 'color');
    const deny = await getStyles(page, '.choice button.second', 'background-color', 'color');
    expect(approve).not.toEqual(deny);
    expect(await axeViolations(page)).toEqual([]);
    const [done, open] = [
      await getStyles(page, '.bar i.on', 'background-color'),
      await getStyles(page, 'body', 'background-color'),
    ];
    expect(done).not.toEqual(open);
  });
});

test('without a preference for reduced motion buttons fade, with one nothing moves', async () => {
  const getDuration = (page: Page) => getStyles(page, 'button', 'transition-duration');
  await withReview({ reducedMotion: 'reduce' }, async (page) => expect(await getDuration(page)).toEqual(['0s']));
  await withReview({ reducedMotion: 'no-preference' }, async (page) =>
    expect(await getDuration(page)).not.toEqual(['0s']),
  );
});

test('the accent colour is that of links, focus, buttons, form controls and highlights', async () => {
  await withReview({}, async (page) => {
    const accent = 'rgb(15, 118, 110)';
    expect(await getStyles(page, '.choice button', 'background-color')).toEqual([accent]);
    expect(await getStyles(page, 'footer a', 'color')).toEqual([accent]);
    expect(await getStyles(page, 'button.link', 'color')).toEqual([accent]);
    expect(await getStyles(page, 'summary', 'color')).toEqual([accent]);
    expect(await getStyles(page, 'html', 'accent-color')).toEqual([accent]);
    await page.keyboard.press('Tab');
    expect(await getStyles(page, ':focus', 'outline-color')).toEqual([accent]);
  });
});

test('a right-to-left name does not change the order of the text around it', async () => {
  const { pages, desktop } = setting();
  const { page } = desktop;
  const name = 'מפעיל הדוחות (2)';
  await pages.reconfigure((settings) => ({
    ...settings,
    integrations: (settings.integrations ?? []).map((integration) =>
      integration.clientId === 'report-runner' ? { ...integration, name } : integration,
    ),
  }));
  await openReview({ pages, page });
  const sentence = page.locator('main p', { hasText: 'wants to act on your behalf' });
  expect(await sentence.textContent()).toBe(`${name} wants to act on your behalf.`);
  // The name is to the left of the sentence that begins with it.
  const [nameBox, sentenceBox] = [await sentence.locator('bdi').boundingBox(), await sentence.boundingBox()];
  expect(nameBox?.x).toBe(sentenceBox?.x);
});

test('the logo and the lines are on whole pixels', async () => {
  await withReview({ viewport: { width: 1_200, height: 768 } }, async (page) => {
    for (const selector of ['.brand img', 'main', '.mark', '.choice button']) {
      const element = page.locator(selector).first();
      if ((await element.count()) === 0) continue;
      const box = await element.boundingBox();
      expect([(box?.x ?? 0) % 1, (box?.width ?? 0) % 1], selector).toEqual([0, 0]);
    }
    const logo = await page.locator('.brand img').boundingBox();
    expect([(logo?.y ?? 0) % 1, (logo?.height ?? 0) % 1]).toEqual([0, 0]);
  });
});
