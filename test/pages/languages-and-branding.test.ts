import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { MESSAGES, negotiateLanguage } from '../../src/pages/views/messages/languages.ts';
import { describeScope } from '../../src/pages/views/scope-text.ts';
import {
  BACKGROUNDS,
  contrastRatio,
  createAccent,
  createStyle,
  createTheme,
  MIN_CONTRAST,
  type PagesSettings,
} from '../../src/pages/views/theme.ts';
import { BASE, type PagesHarness, startPagesHarness, toScope } from '../support/pages-harness.ts';

/** `--text` and `--soft` in style.ts. */
const TEXT_COLOURS = { light: ['#1a1f26', '#525c68'], dark: ['#e8ecf1', '#aab4c0'] } as const;

const writePageFile = (name: string, content: string | Buffer): string => {
  writeFileSync(join(pages.gateway.folder, name), content);
  return join(pages.gateway.folder, name);
};

let pages: PagesHarness;
beforeAll(async () => {
  pages = await startPagesHarness();
});
afterAll(() => pages.close());
beforeEach(() => pages.reset());

const configurePages = (branding: SettingsInput['pages'] = {}): Promise<void> =>
  pages.reconfigure((settings) => ({ ...settings, pages: branding }));

describe('languages', () => {
  test('pages are in the language of the browser until another is chosen', async () => {
    await configurePages();
    const browser = pages.browser();
    const german = { 'accept-language': 'it, de-AT;q=0.8, en;q=0.5' };
    const first = await browser.get(BASE, german);
    expect(first.text).toContain('<html lang="de"');
    expect(first.text).toContain('Gerät verbinden');
    expect(first.text).toContain(`<a href="${BASE}?language=en" lang="en" hreflang="en">English</a>`);
    expect((await browser.get(`${BASE}?language=en`, german)).text).toContain('Connect a device');
    expect((await browser.get(BASE, german)).text).toContain('Connect a device');
    const wrong = await browser.send('POST', BASE, 'user_code=x', {
      ...german,
      'content-type': 'application/x-www-form-urlencoded',
    });
    expect(wrong.text).toContain('Request not accepted');
  });

  test('the chosen language stays through sign-in, decision and sign-out', async () => {
    await configurePages();
    const pending = await pages.requestCodes();
    const alice = pages.browser();
    await alice.get(`${BASE}?language=de`);
    await alice.submit(BASE, { user_code: pending.user_code });
    const review = await alice.signIn();
    expect(review.text).toContain('Diese Anfrage genehmigen?');
    expect(review.text).toContain('Reports sehen und ändern');
    expect((await alice.submit(`${BASE}/approve`)).text).toContain('<h1>Genehmigt</h1>');
    expect((await alice.submit(`${BASE}/sign-out`)).text).toContain('Gerät verbinden');
  });

  test('an unknown language is ignored, and the configured language is the fallback', async () => {
    await configurePages({ language: 'de' });
    for (const path of [BASE, `${BASE}?language=it`, `${BASE}?language=__proto__`])
      expect((await pages.browser().get(path, { 'accept-language': 'it' })).text).toContain('<html lang="de"');
  });

  test('the weights in Accept-Language apply', () => {
    expect(negotiateLanguage('de;q=0.2, en;q=0.9')).toBe('en');
    expect(negotiateLanguage('en-GB, de')).toBe('en');
    expect(negotiateLanguage('de;q=0, *')).toBeUndefined();
    expect(negotiateLanguage('DE-ch')).toBe('de');
    expect(negotiateLanguage('it, es-MX;q=0.7, fr;q=0.6')).toBe('es');
    expect(negotiateLanguage('fr-CA,fr;q=0.9,en;q=0.8')).toBe('fr');
    expect(negotiateLanguage('de;q=x')).toBeUndefined();
    expect(negotiateLanguage(undefined)).toBeUndefined();
    fc.assert(fc.property(fc.string({ maxLength: 600 }), (text) => negotiateLanguage(text) !== null));
  });
});

describe('branding settings', () => {
  test('name, links and permission texts are shown in the language of the user', async () => {
    await configurePages({
      name: 'Example <Works>',
      links: [
        { text: { en: 'Help', de: 'Hilfe' }, url: 'https://help.example.test/?a=1&b="2"' },
        { text: { en: 'Imprint' }, url: 'mailto:office@example.test' },
      ],
      permissions: {
        'Reports:read': { en: 'look at your sales reports', de: 'Ihre Verkaufsberichte ansehen' },
      },
    });
    const pending = await pages.requestCodes('reports:read,write;files:read');
    const alice = pages.browser();
    const review = await alice.reachReview(pending.user_code);
    expect(review.text).toContain('<span>Example &lt;Works&gt;</span>');
    expect(review.text).toContain('<li>Look at your sales reports</li>');
    expect(review.text).toContain('<li>Change reports</li>');
    expect(review.text).toContain('<li>See files</li>');
    expect(review.text).toContain('href="https://help.example.test/?a=1&amp;b=&quot;2&quot;"');
    const german = (await alice.get(`${BASE}/review?language=de`)).text;
    expect(german).toContain('<li>Ihre Verkaufsberichte ansehen</li>');
    expect(german).toContain('>Hilfe</a>');
    expect(german).toContain('>Imprint</a>');
  });

  test('times are in the configured time zone and in UTC, dates in that time zone', async () => {
    await configurePages({ timeZone: 'Asia/Kolkata' });
    const pending = await pages.requestCodes();
    const alice = pages.browser();
    const { text } = await alice.reachReview(pending.user_code);
    const times = [...text.matchAll(/<time datetime="([^"]+)">(\d\d:\d\d) ([^<]+)<\/time>/g)];
    expect(times.map(([, , , zone]) => zone)).toEqual(['GMT+5:30', 'UTC', 'GMT+5:30', 'UTC']);
    for (const [, iso = '', time, zone] of times) {
      const shifted = new Date(Date.parse(iso) + (zone === 'UTC' ? 0 : 19_800_000)).toISOString();
      expect(time).toBe(shifted.slice(11, 16));
    }
    await configurePages({ timeZone: 'UTC' });
    expect((await alice.get(`${BASE}/review`)).text).toMatch(/<small><time [^>]+>\d\d:\d\d UTC<\/time><\/small>/);
    await expect(configurePages({ timeZone: 'Mars/Olympus' })).rejects.toThrow(
      /must be a time zone such as Europe\/Berlin/,
    );
  });

  test('permissions without a configured text are never omitted', () => {
    const items = ['read', 'write', 'delete', 'frobnicate'];
    fc.assert(
      fc.property(fc.subarray(items, { minLength: 1 }), fc.subarray(items), (request, output) => {
        const own = new Map(output.map((permission) => [`files:${permission}`, { en: `own words for ${permission}` }]));
        const sentences = describeScope(toScope(`files:${request.join(',')}`), MESSAGES.en, own);
        const expected = request.map((permission) => {
          if (output.includes(permission)) return `Own words for ${permission}`;
          return { read: 'see', write: 'change', delete: 'delete', frobnicate: 'frobnicate' }[permission] ?? '';
        });
        return expected.every((words) =>
          sentences.some((sentence) => sentence.toLowerCase().includes(words.toLowerCase())),
        );
      }),
    );
  });

  test('the logo is inlined, and the content policy allows no other image', async () => {
    const svg = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"><script>alert(1)</script></svg>';
    await configurePages({ logo: writePageFile('logo.svg', svg) });
    const page = await pages.browser().get(BASE);
    expect(page.text).toContain(`<img src="data:image/svg+xml;base64,${Buffer.from(svg).toString('base64')}" alt="">`);
    expect(page.headers['content-security-policy']).toContain('img-src data:;');
    expect(page.headers['content-security-policy']).toContain("default-src 'none'");
    await configurePages();
    expect((await pages.browser().get(BASE)).headers['content-security-policy']).not.toContain('img-src');
  });

  test('an unusable logo is reported with the name of its setting', () => {
    const settings: PagesSettings = {
      name: 'Example Works',
      language: 'en',
      links: [],
      permissions: {},
      myGrants: true,
    };
    const look = (logo: string) => () => createTheme({ ...settings, logo });
    const [text, large] = [writePageFile('a.png', '<html>'), writePageFile('b.png', Buffer.alloc(70_000))];
    const missing = join(pages.gateway.folder, 'none');
    expect(look(text)).toThrow(`pages.logo: ${text} is not an SVG, PNG, JPEG or WebP image`);
    expect(look(large)).toThrow(`pages.logo: ${large} is larger than 64 KiB`);
    expect(look(missing)).toThrow(`pages.logo: ${missing} does not exist`);
    const png = Buffer.from('89504e470d0a1a0a0000', 'hex');
    expect(createTheme({ ...settings, logo: writePageFile('c', png) }).logo).toMatch(/^data:image\/png;base64,/);
  });

  test('WCAG 2.2: text has a contrast of at least 4.5, icons and borders of at least 3', () => {
    const texts = {
      text: ['page', 'card', 'tint', 'warn', 'bad'],
      soft: ['page', 'card', 'tint'],
      main: ['page', 'card', 'tint'],
      'on-main': ['main', 'main-hover'],
      'on-danger': ['danger', 'danger-hover'],
    };
    const signs = {
      field: ['card'],
      focus: ['page', 'card'],
      good: ['card', 'tint'],
      'warn-line': ['card', 'warn'],
      'bad-line': ['card', 'bad'],
    };
    const [light = '', dark = ''] = createStyle().text.match(/:root\{[^}]*\}/g) ?? [];
    for (const [scheme, rule] of Object.entries({ light, dark })) {
      const colour = (name: string): string => {
        const [, hex = ''] = new RegExp(`--${name}:(#[0-9a-f]+)[;}]`).exec(rule) ?? [];
        return hex.length === 4 ? hex.replace(/[0-9a-f]/g, '$&$&') : hex;
      };
      for (const [pairs, least] of [[texts, MIN_CONTRAST] as const, [signs, 3] as const])
        for (const [front, grounds] of Object.entries(pairs))
          for (const ground of grounds)
            expect(
              contrastRatio(colour(front), colour(ground)),
              `${scheme}: ${front} on ${ground}`,
            ).toBeGreaterThanOrEqual(least);
    }
  });

  test('every accent colour is adjusted to be readable in light and dark mode', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 0xffffff }), (value) => {
        const colour = `#${value.toString(16).padStart(6, '0')}`;
        for (const scheme of ['light', 'dark'] as const) {
          const accent = createAccent(colour, BACKGROUNDS[scheme], scheme);
          for (const ground of [...BACKGROUNDS[scheme], accent.tint])
            expect(contrastRatio(accent.main, ground)).toBeGreaterThanOrEqual(MIN_CONTRAST);
          for (const text of TEXT_COLOURS[scheme])
            expect(contrastRatio(text, accent.tint)).toBeGreaterThanOrEqual(MIN_CONTRAST);
          expect(contrastRatio(accent.onMain, accent.main)).toBeGreaterThanOrEqual(MIN_CONTRAST);
          expect(contrastRatio(accent.onMain, accent.hover)).toBeGreaterThanOrEqual(MIN_CONTRAST);
        }
      }),
      { numRuns: 500 },
    );
    expect(contrastRatio('#000000', '#ffffff')).toBeCloseTo(21, 5);
    // A colour with enough contrast is kept.
    expect(createAccent('#1d5bb8', BACKGROUNDS.light, 'light').main).toBe('#1d5bb8');
  });
});
