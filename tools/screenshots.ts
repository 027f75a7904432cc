// npm run screenshots [folder]: every page state on a phone and a desktop, in light and dark mode, and some in German.
import { mkdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DESKTOP, openChromium, openWindow, PHONE } from '../test/support/chromium.ts';
import { STATES, startStatePages } from '../test/support/page-states.ts';

const folder = process.argv[2] ?? join(tmpdir(), 'gatehouse-screenshots');
const wanted = process.argv.slice(3);
const SHAPES = [
  { shape: 'phone-light', options: { ...PHONE, colorScheme: 'light' } },
  { shape: 'phone-dark', options: { ...PHONE, colorScheme: 'dark' } },
  { shape: 'desktop-light', options: { ...DESKTOP, colorScheme: 'light' } },
] as const;
const GERMAN = new Set(['code', 'sign-in', 'review', 'approved', 'grants', 'grants-not-redeemed', 'revoke']);

mkdirSync(folder, { recursive: true });
const browser = await openChromium();
const pages = await startStatePages();
let taken = 0;
try {
  for (const [name, state] of Object.entries(STATES)) {
    if (wanted.length > 0 && !wanted.includes(name)) continue;
    for (const { shape, options } of SHAPES) {
      await pages.reset();
      const window = await openWindow(browser, options);
      const { page } = window;
      await state.reach({ pages, page });
      await page.screenshot({ path: join(folder, `${name}.${shape}.png`), fullPage: true });
      taken += 1;
      const other = page.getByRole('link', { name: 'Deutsch' });
      if (shape === 'phone-light' && GERMAN.has(name)) {
        await other.click();
        await page.screenshot({ path: join(folder, `${name}.${shape}.de.png`), fullPage: true });
        taken += 1;
      }
      await window.close();
    }
  }
} finally {
  await browser.close();
  await pages.close();
}
console.log(`${taken} screenshots in ${folder}`);
