import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import {
  type Browser,
  type BrowserContext,
  type BrowserContextOptions,
  chromium,
  type Page,
} from 'playwright-core';

/** Debian's Chromium, without a window. */
export const openChromium = (): Promise<Browser> =>
  chromium.launch({
    executablePath: '/usr/bin/chromium',
    // As root there is no sandbox; nothing of a stranger is opened here.
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'],
  });

export const PHONE = {
  viewport: { width: 360, height: 740 },
  isMobile: true,
  hasTouch: true,
  deviceScaleFactor: 2,
};
export const DESKTOP = { viewport: { width: 1_200, height: 800 } };

export interface Window {
  readonly context: BrowserContext;
  readonly page: Page;
  /** What the browser complained about: errors of scripts, of the content policy, of what was not loaded. */
  readonly complaints: string[];
  close(): Promise<void>;
}

export async function openWindow(browser: Browser, options: BrowserContextOptions = {}): Promise<Window> {
  const context = await browser.newContext({ locale: 'en-GB', ignoreHTTPSErrors: true, ...options });
  context.setDefaultTimeout(30_000);
  const page = await context.newPage();
  const complaints: string[] = [];
  page.on('console', (message) => {
    // The browser writes a line about each answer that is an error; those are meant.
    if (message.type() === 'error' && !/Failed to load resource: the server responded/.test(message.text()))
      complaints.push(message.text());
  });
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('dialog', (dialog) => {
    complaints.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  return { context, page, complaints, close: () => context.close() };
}

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

interface Finding {
  readonly id: string;
  readonly impact: string | null;
  readonly nodes: readonly { readonly html: string; readonly failureSummary?: string }[];
}

/** Everything axe has to say about the page as it stands, worst first; `best-practice` rules included. */
export async function axeFindings(page: Page): Promise<readonly string[]> {
  await page.evaluate(AXE);
  const violations = await page.evaluate(async () => {
    const { axe } = globalThis as unknown as { axe: { run(): Promise<{ violations: readonly Finding[] }> } };
    return (await axe.run()).violations;
  });
  return violations.flatMap(({ id, impact, nodes }) =>
    nodes.map((node) => `${impact ?? ''} ${id}: ${node.html.slice(0, 160)} ${node.failureSummary ?? ''}`),
  );
}

/** Nothing sticks out to the side: what is wider than the window cannot be read on a phone. */
export const overflow = (page: Page): Promise<number> =>
  page.evaluate(() => {
    const { documentElement: root } = (
      globalThis as unknown as { document: { documentElement: { scrollWidth: number; clientWidth: number } } }
    ).document;
    return root.scrollWidth - root.clientWidth;
  });
