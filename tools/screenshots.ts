// npm run screenshots: the pictures of docs/images/pages and docs/images/console.
// npm run screenshots -- <folder> [state…]: every page state on a phone and a desktop, in light and dark mode, and in every language.
// Two runs write the same bytes of the pages: the clock and the codes are the same in each.
import crypto from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { BrowserContextOptions, Page } from 'playwright-core';
import { LANGUAGES } from '../src/domain/language.ts';
import { DESKTOP, openChromium, openWindow, PHONE } from '../test/support/chromium.ts';
import { CONSOLE_STATES, startBusyConsole } from '../test/support/console-states.ts';
import { STATES, startStatePages } from '../test/support/page-states.ts';
import type { PagesHarness } from '../test/support/pages-harness.ts';
import { reduceColours } from './png-palette.ts';

interface Screenshot {
  readonly state: string;
  readonly file: string;
  readonly options: BrowserContextOptions;
  readonly take?: (page: Page) => Promise<Buffer>;
}

/** The states that the documentation shows, and the beginnings of the file names. */
const DOCUMENTED = {
  code: 'code',
  'sign-in': 'sign-in',
  review: 'review',
  authorization: 'authorization',
  approved: 'approved',
  denied: 'denied',
  grants: 'grants',
  'store-unreachable': 'error',
  root: 'root',
};
const DOCUMENTED_ON_PHONE = new Set(['review']);
/** Tall enough for every page, so that nothing is scrolled. */
const HEIGHT = 1_400;
const DOCUMENTED_SHAPES = [
  { shape: 'light', width: 640, colorScheme: 'light' },
  { shape: 'dark', width: 640, colorScheme: 'dark' },
  { shape: 'phone', width: 360, colorScheme: 'light' },
] as const;
const MARGIN = 24;

/** The content without the empty space around it, with few colours. */
async function takeSmall(page: Page): Promise<Buffer> {
  const boxes = await Promise.all(
    ['header', 'main', 'footer'].map((element) => page.locator(`body > ${element}`).boundingBox()),
  );
  const [header, main, footer] = boxes;
  if (!header || !main || !footer) throw new Error(`${page.url()} lacks a header, main or footer element`);
  const x = Math.max(0, main.x - MARGIN);
  const y = Math.max(0, header.y - MARGIN);
  const width = Math.min(page.viewportSize()?.width ?? 0, main.x + main.width + MARGIN) - x;
  const clip = { x, y, width, height: footer.y + footer.height + MARGIN - y };
  return reduceColours(await page.screenshot({ clip }));
}

const listDocumented = (): Screenshot[] =>
  Object.entries(DOCUMENTED).flatMap(([state, name]) =>
    DOCUMENTED_SHAPES.filter(({ shape }) => shape !== 'phone' || DOCUMENTED_ON_PHONE.has(state)).map(
      ({ shape, width, colorScheme }) => ({
        state,
        file: `${name}-${shape}`,
        options: { viewport: { width, height: HEIGHT }, deviceScaleFactor: 1.5, colorScheme },
        take: takeSmall,
      }),
    ),
  );

const SHAPES = [
  { shape: 'phone-light', options: { ...PHONE, colorScheme: 'light' } },
  { shape: 'phone-dark', options: { ...PHONE, colorScheme: 'dark' } },
  { shape: 'desktop-light', options: { ...DESKTOP, colorScheme: 'light' } },
] as const;
const OTHER_LANGUAGES = LANGUAGES.filter((language) => language !== 'en');

/** In a window as high as the page: in a lower one, the sticky buttons would be in the middle of the picture. */
async function takeWhole(page: Page): Promise<Buffer> {
  const { width = 0, height = 0 } = page.viewportSize() ?? {};
  const box = await page.locator('body').boundingBox();
  await page.setViewportSize({ width, height: Math.max(height, Math.ceil(box?.height ?? 0)) });
  return page.screenshot();
}

const listStates = (wanted: readonly string[]): Screenshot[] =>
  Object.keys(STATES)
    .filter((state) => wanted.length === 0 || wanted.includes(state))
    .flatMap((state) =>
      SHAPES.flatMap(({ shape, options }) => [
        { state, file: `${state}.${shape}`, options },
        ...(shape === 'phone-light'
          ? OTHER_LANGUAGES.map((locale) => ({
              state,
              file: `${state}.${shape}.${locale}`,
              options: { ...options, locale },
            }))
          : []),
      ]),
    );

const DAY = 86_400;
/** Half past noon; the half second keeps rounding errors away from the minute. */
const TIME_OF_DAY = 12.5 * 3_600 + 0.5;
const FIRST_DAY = Date.UTC(2030, 4, 6) / 1_000;

/** From now on, only `startDay` changes the clock of the gateway, and user codes are not random. */
function makeRepeatable({ gateway: { clock } }: PagesHarness): { readonly startDay: () => void } {
  const now = Date.now();
  Date.now = () => now;
  let random = 0;
  const randomInt = (max: number): number => {
    random = (Math.imul(random, 1_103_515_245) + 12_345) >>> 0;
    return (random >>> 8) % max;
  };
  Object.assign(crypto, { randomInt });
  syncBuiltinESMExports();
  return {
    startDay() {
      random = 0;
      const day = Math.max(FIRST_DAY, (Math.floor(clock.now() / DAY) + 1) * DAY);
      clock.advance(day + TIME_OF_DAY - clock.now());
    },
  };
}

/** The pages of the console that the documentation shows. */
const CONSOLE_SHAPES = [
  { shape: 'light', options: { viewport: { width: 1_100, height: 860 }, colorScheme: 'light' } },
  { shape: 'dark', options: { viewport: { width: 1_100, height: 860 }, colorScheme: 'dark' } },
] as const;
const DOCUMENTED_CONSOLE: Readonly<Record<string, readonly string[]>> = {
  overview: ['light', 'dark'],
  grants: ['light', 'dark'],
  refusal: ['light', 'dark'],
};

const listConsole = (): Screenshot[] =>
  Object.entries(DOCUMENTED_CONSOLE).flatMap(([state, shapes]) =>
    CONSOLE_SHAPES.filter(({ shape }) => shapes.includes(shape)).map(({ shape, options }) => ({
      state,
      file: `${state}-${shape}`,
      options,
      take: async (page: Page) => reduceColours(await page.screenshot()),
    })),
  );

const listConsoleStates = (wanted: readonly string[]): Screenshot[] =>
  Object.keys(CONSOLE_STATES)
    .filter((state) => wanted.length === 0 || wanted.includes(`console-${state}`))
    .flatMap((state) =>
      [...SHAPES, { shape: 'desktop-dark', options: { ...DESKTOP, colorScheme: 'dark' as const } }].map(
        ({ shape, options }) => ({ state, file: `console-${state}.${shape}`, options }),
      ),
    );

const [folder, ...wanted] = process.argv.slice(2);
const images = new URL('../docs/images/', import.meta.url);
const browser = await openChromium();

async function takeAll(
  target: string,
  screenshots: readonly Screenshot[],
  reach: (state: string, page: Page) => Promise<void>,
  leave: (state: string) => Promise<void> = async () => {},
): Promise<void> {
  mkdirSync(target, { recursive: true });
  for (const { state, file, options, take = takeWhole } of screenshots) {
    const window = await openWindow(browser, options);
    await reach(state, window.page);
    writeFileSync(join(target, `${file}.png`), await take(window.page));
    await window.close();
    await leave(state);
  }
  console.log(`${screenshots.length} screenshots in ${target}`);
}

async function takePages(): Promise<void> {
  const screenshots = folder === undefined ? listDocumented() : listStates(wanted);
  if (screenshots.length === 0) return;
  const pages = await startStatePages();
  const { startDay } = makeRepeatable(pages);
  try {
    await takeAll(folder ?? fileURLToPath(new URL('pages', images)), screenshots, async (state, page) => {
      await pages.reset();
      startDay();
      await STATES[state]?.reach({ pages, page });
    });
  } finally {
    await pages.close();
  }
}

async function takeConsole(): Promise<void> {
  const screenshots = folder === undefined ? listConsole() : listConsoleStates(wanted);
  if (screenshots.length === 0) return;
  const harness = await startBusyConsole();
  try {
    await takeAll(
      folder ?? fileURLToPath(new URL('console', images)),
      screenshots,
      async (state, page) => CONSOLE_STATES[state]?.reach(harness, page),
      async (state) => CONSOLE_STATES[state]?.leave?.(harness),
    );
  } finally {
    await harness.close();
  }
}

try {
  await takeConsole();
  // Last, because it stops the clock.
  await takePages();
} finally {
  await browser.close();
}
