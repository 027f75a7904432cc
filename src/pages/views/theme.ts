import { hash } from 'node:crypto';
import type { Settings } from '../../config/schema.ts';
import type { LocalizedText } from '../../domain/language.ts';
import { readSettingBytes } from '../../lib/read-file.ts';

export type PagesSettings = Settings['pages'];

export interface Theme extends Omit<PagesSettings, 'logo' | 'accent' | 'permissions'> {
  /** A `data:` URL. */
  readonly logo?: string;
  readonly style: Style;
  /** Keys are `resource` or `resource:permission`, with the resource in lower case. */
  readonly permissions: ReadonlyMap<string, LocalizedText>;
}

/** Throws an `Error` that names the setting if the logo cannot be used. */
export function createTheme(settings: PagesSettings): Theme {
  const { logo, accent, permissions, ...rest } = settings;
  return {
    ...rest,
    ...(logo !== undefined && { logo: readLogo(logo) }),
    style: createStyle(accent),
    permissions: new Map(Object.entries(permissions).map(([key, text]) => [normalizePermissionKey(key), text])),
  };
}

/** Resources are case-insensitive, permissions are not. */
function normalizePermissionKey(key: string): string {
  const [resource = '', permission] = key.split(':');
  return permission === undefined ? resource.toLowerCase() : `${resource.toLowerCase()}:${permission}`;
}

const MAX_LOGO_BYTES = 64 * 1_024;

/** Detected by content, not by file name. */
const IMAGE_TYPES: readonly (readonly [type: string, signature: RegExp])[] = [
  ['image/png', /^\x89PNG\r\n\x1a\n/],
  ['image/jpeg', /^\xff\xd8\xff/],
  ['image/webp', /^RIFF[^]{4}WEBP/],
  ['image/svg+xml', /^(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?(?:<!--[^]*?-->\s*)*<svg[\s>]/],
];

function readLogo(file: string): string {
  const bytes = readSettingBytes('pages.logo', file, MAX_LOGO_BYTES);
  const head = bytes.toString('latin1', 0, 2_048);
  const type = IMAGE_TYPES.find(([, signature]) => signature.test(head))?.[0];
  if (type === undefined) throw new Error(`pages.logo: ${file} is not an SVG, PNG, JPEG or WebP image`);
  return `data:${type};base64,${bytes.toString('base64')}`;
}

/** The inline stylesheet of every page. */
export interface Style {
  readonly text: string;
  /** Hash source for `style-src`. */
  readonly source: string;
}

/** Backgrounds of text in the accent colour. */
export const BACKGROUNDS = {
  light: ['#ffffff', '#f3f5f7'],
  dark: ['#1a2027', '#11151a'],
} as const;

const DEFAULT_ACCENT = '#1d5bb8';

/** Colours of both schemes, and what all documents have in common. */
export const createBaseStyle = (accent: string = DEFAULT_ACCENT): string => {
  const light = createAccent(accent, BACKGROUNDS.light, 'light');
  const dark = createAccent(accent, BACKGROUNDS.dark, 'dark');
  const renderAccent = ({ main, hover, onMain, tint }: ReturnType<typeof createAccent>): string =>
    `--main:${main};--main-hover:${hover};--on-main:${onMain};--focus:${main};--tint:${tint}`;
  return `:root{color-scheme:light dark;--page:#f3f5f7;--card:#fff;--line:#d5dae0;--field:#7a8490;--text:#1a1f26;--soft:#525c68;--warn:#fff6e0;--warn-line:#b97a00;--bad:#fdecea;--bad-line:#b3261e;--good:#1b7340;--danger:#b3261e;--danger-hover:#8f1d17;--on-danger:#fff;--shadow:rgba(20,30,45,.05);${renderAccent(light)}}
@media (prefers-color-scheme:dark){:root{--page:#11151a;--card:#1a2027;--line:#333c47;--field:#8792a0;--text:#e8ecf1;--soft:#aab4c0;--warn:#2f2713;--warn-line:#e0a93a;--bad:#3a1e1c;--bad-line:#ff8a80;--good:#7ddba0;--danger:#ff8a80;--danger-hover:#ffaaa3;--on-danger:#2a0b08;--shadow:rgba(0,0,0,.25);${renderAccent(dark)}}}
${BASE_RULES}`;
};

/** Text, forms, buttons and notes, also those of the console. */
const BASE_RULES = `*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%;accent-color:var(--main)}
body{margin:0;min-height:100vh;background:var(--page);color:var(--text);font:1rem/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;overflow-wrap:anywhere}
.brand{display:flex;align-items:center;gap:.5rem;color:var(--soft);font-weight:600}
.brand svg{width:1.5rem;height:1.5rem;flex:none;color:var(--main)}
a{color:var(--main);text-underline-offset:.2em}
.hint,.soft{color:var(--soft);font-size:.9rem}
.hint{margin:.35rem 0 0}
label{display:block;font-weight:600;margin:0 0 .35rem}
input[type=text],input[type=search],input[type=password],select{display:block;width:100%;min-height:2.75rem;padding:.5rem .75rem;font:inherit;color:inherit;caret-color:var(--main);background:var(--card);border:1px solid var(--field);border-radius:.5rem}
input[aria-invalid]{border-color:var(--bad-line);border-width:2px}
button,.button{display:inline-flex;align-items:center;justify-content:center;min-height:2.75rem;padding:.5rem 1.1rem;font:inherit;font-weight:600;text-align:center;text-decoration:none;color:var(--on-main);background:var(--main);border:1px solid var(--main);border-radius:.5rem;cursor:pointer}
button:hover,.button:hover{background:var(--main-hover);border-color:var(--main-hover)}
button.second,.button.second{color:var(--text);background:var(--card);border-color:var(--field)}
button.second:hover,.button.second:hover{background:var(--tint)}
button.danger,.button.danger{background:var(--danger);border-color:var(--danger);color:var(--on-danger)}
button.danger:hover,.button.danger:hover{background:var(--danger-hover);border-color:var(--danger-hover)}
button.link{padding:.25rem 0;color:var(--main);background:none;border:0;text-decoration:underline;text-underline-offset:.2em}
button.link:hover{background:none;text-decoration-thickness:2px}
:focus-visible{outline:3px solid var(--focus);outline-offset:2px}
.note{margin:1rem 0 0;padding:.7rem .9rem;border-left:4px solid var(--warn-line);border-radius:.35rem;background:var(--warn)}
.note.bad{border-color:var(--bad-line);background:var(--bad)}
.note.good{border-color:var(--good);background:var(--tint)}
.or{display:flex;align-items:center;gap:.75rem;margin:1.25rem 0 0;color:var(--soft);font-size:.9rem}
.or::before,.or::after{content:"";flex:1;border-top:1px solid var(--line)}
@media (prefers-reduced-motion:no-preference){button,.button{transition:background-color .12s,border-color .12s}}
`;

const STYLE_RULES = `
body{display:flex;flex-direction:column;align-items:center;padding:1rem}
.brand{width:100%;max-width:30rem;padding:.25rem .25rem .75rem}
.brand img{display:block;height:2rem;max-width:10rem;object-fit:contain;flex:none}
main{width:100%;max-width:30rem;background:var(--card);border:1px solid var(--line);border-radius:1rem;padding:1.25rem;box-shadow:0 1px 2px var(--shadow),0 8px 24px var(--shadow)}
h1{margin:0 0 .5rem;font-size:clamp(1.25rem,5.6vw,1.5rem);line-height:1.25}
h2{margin:1.25rem 0 .25rem;font-size:1rem}
p{margin:0 0 1rem}
.step{display:flex;align-items:center;gap:.75rem;margin:0 0 .5rem;color:var(--soft);font-size:.9rem}
.bar{display:flex;gap:.3rem;flex:none}
.bar i{width:1.5rem;height:.3rem;border-radius:.15rem;background:var(--line)}
.bar i.on{background:var(--main)}
.label{margin:.5rem 0 0;font-weight:600}
label{margin-top:1rem}
input[type=text],input[type=password]{min-height:3rem}
input.code{font:600 1.5rem/1.2 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;letter-spacing:.12em;text-transform:uppercase;text-align:center;min-height:3.5rem}
button,.button{display:flex;width:100%;min-height:3rem;margin:1.25rem 0 0}
button.link{display:inline-flex;justify-content:start;width:auto;text-align:start;min-height:2.75rem;margin:0}
a.quiet{display:inline-block;padding:.6rem 0}
.note+p{margin-top:1rem}
.compare{margin:1rem 0 0;padding:.8rem;border:1px solid transparent;border-radius:.6rem;background:var(--tint);text-align:center}
.compare h2{margin:0;font-size:.9rem;color:var(--soft)}
.compare .value{margin:.1rem 0;font:600 1.75rem/1.3 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;letter-spacing:.08em}
.compare .hint{margin:0}
ul{margin:.25rem 0 0;padding:0 0 0 1.25rem}
li{padding:.1rem 0}
details{margin:.5rem 0 0;font-size:.9rem;color:var(--soft)}
summary{cursor:pointer;padding:.6rem 0;min-height:2.75rem;color:var(--main)}
dl{display:grid;grid-template-columns:fit-content(34%) 1fr;margin:1rem 0 0;border-top:1px solid var(--line)}
dl div{display:grid;grid-template-columns:subgrid;grid-column:1/-1;gap:0 .75rem;padding:.5rem 0;border-bottom:1px solid var(--line)}
dt{color:var(--soft);font-size:.9rem;line-height:1.667;overflow-wrap:break-word}
dd{margin:0;min-width:0}
dd small{display:block;color:var(--soft);font-size:.85rem}
time{display:inline-block}
.choice{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(8rem,100%),1fr));gap:.75rem;margin:1.25rem 0}
.choice form{display:grid}
.choice button,.choice .button{margin:0}
.who{display:flex;flex-wrap:wrap;align-items:center;justify-content:space-between;gap:0 1rem;margin:1.25rem 0 0;padding:.5rem 0 0;border-top:1px solid var(--line)}
.or+form button{margin-top:1rem}
.mark{display:block;width:3rem;height:3rem;margin:0 0 .75rem}
.mark.good{color:var(--good)}
.mark.quiet{color:var(--soft)}
.mark.warn{color:var(--warn-line)}
footer{display:flex;flex-wrap:wrap;gap:0 1.25rem;width:100%;max-width:30rem;padding:.75rem .25rem 0;font-size:.9rem}
footer a{padding:.65rem 0}
footer .languages{display:flex;flex-wrap:wrap;gap:0 1rem;margin-inline-start:auto}
footer b{padding:.65rem 0;font-weight:400;color:var(--soft)}
.item{margin:1rem 0 0;padding:1rem;border:1px solid var(--line);border-radius:.75rem}
.item h2{margin:0 0 .25rem;font-size:1.05rem}
.item dl{margin:.75rem 0 0}
.item .button{margin:.75rem 0 0}
.label+.button,.button+.button{margin-top:.75rem}
@media (forced-colors:active){.bar i{background:GrayText;forced-color-adjust:none}.bar i.on{background:Highlight}button:not(.second,.link),.button:not(.second){forced-color-adjust:none;color:HighlightText;background:Highlight;border-color:Highlight}}
@media print{footer,.choice{display:none}}
@media (min-width:40rem){main{padding:2rem}}
@media (min-width:40rem) and (min-height:40rem){body{padding-top:4rem}}
`;

export function createStyle(accent?: string): Style {
  const text = createBaseStyle(accent) + STYLE_RULES;
  return { text, source: `'sha256-${hash('sha256', text, 'base64')}'` };
}

export const MIN_CONTRAST = 4.5;

type Rgb = readonly [number, number, number];

const parseHexColour = (hex: string): Rgb => {
  const value = Number.parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
};

const formatHexColour = (colour: Rgb): string =>
  `#${colour.map((part) => Math.round(part).toString(16).padStart(2, '0')).join('')}`;

/** WCAG 2.2, "relative luminance". */
function luminance(colour: Rgb): number {
  const [r, g, b] = colour.map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

export function contrastRatio(one: string, other: string): number {
  const [a, b] = [luminance(parseHexColour(one)), luminance(parseHexColour(other))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}

const mixColours = (colour: Rgb, towards: Rgb, share: number): Rgb =>
  colour.map((part, index) => part + ((towards[index] ?? 0) - part) * share) as unknown as Rgb;

const MIX_STEPS = 50;

/** Mixes in as little of `towards` as gives enough contrast to all backgrounds. */
function ensureContrast(colour: string, backgrounds: readonly string[], towards: '#000000' | '#ffffff'): string {
  for (let step = 0; step <= MIX_STEPS; step += 1) {
    const candidate = formatHexColour(mixColours(parseHexColour(colour), parseHexColour(towards), step / MIX_STEPS));
    if (backgrounds.every((background) => contrastRatio(candidate, background) >= MIN_CONTRAST)) return candidate;
  }
  return towards;
}

const TINT_SHARE = { light: 0.08, dark: 0.1 } as const;

/**
 * The operator's accent colour, adjusted to the contrast that WCAG 2.2 requires (1.4.3), the colour of text on it, and a tint of the background for
 * what is to be noticed. `backgrounds`: those of text in this colour. The first one is that of the tinted parts as well. */
export function createAccent(colour: string, backgrounds: readonly [string, ...string[]], scheme: 'light' | 'dark') {
  const towards = scheme === 'light' ? '#000000' : '#ffffff';
  const tint = formatHexColour(mixColours(parseHexColour(backgrounds[0]), parseHexColour(colour), TINT_SHARE[scheme]));
  const main = ensureContrast(colour, [...backgrounds, tint], towards);
  // Further in the same direction, so the contrast only grows.
  const hover = formatHexColour(mixColours(parseHexColour(main), parseHexColour(towards), 0.18));
  // A colour that contrasts with white (near-black) backgrounds contrasts with white (near-black) text as well.
  return { main, hover, onMain: scheme === 'light' ? '#ffffff' : '#0b1220', tint };
}
