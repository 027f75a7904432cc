// npm run screenshots [folder]: every page and state, on a phone and on a desk, in light and in dark, and some in German.
import { mkdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DESKTOP, openChromium, openWindow, PHONE } from '../test/support/chromium.ts';
import { STATES, stateHouse } from '../test/support/page-states.ts';

const folder = process.argv[2] ?? join(tmpdir(), 'gatehouse-screenshots');
const wanted = process.argv.slice(3);
const SHAPES = [
  { name: 'phone-light', options: { ...PHONE, colorScheme: 'light' } },
  { name: 'phone-dark', options: { ...PHONE, colorScheme: 'dark' } },
  { name: 'desktop-light', options: { ...DESKTOP, colorScheme: 'light' } },
] as const;
const GERMAN = new Set(['code', 'sign-in', 'review', 'approved', 'grants', 'revoke']);

mkdirSync(folder, { recursive: true });
const browser = await openChromium();
let taken = 0;
try {
  for (const [state, { reach }] of Object.entries(STATES)) {
    if (wanted.length > 0 && !wanted.includes(state)) continue;
    for (const { name, options } of SHAPES) {
      const house = await stateHouse();
      const { page, close } = await openWindow(browser, options);
      await reach({ house, page });
      await page.screenshot({ path: join(folder, `${state}.${name}.png`), fullPage: true });
      taken += 1;
      const other = page.getByRole('link', { name: 'Deutsch' });
      if (name === 'phone-light' && GERMAN.has(state)) {
        await other.click();
        await page.screenshot({ path: join(folder, `${state}.${name}.de.png`), fullPage: true });
        taken += 1;
      }
      await close();
      await house.close();
    }
  }
} finally {
  await browser.close();
}
console.log(`${taken} pictures in ${folder}`);
