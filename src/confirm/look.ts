import { readFileSync } from 'node:fs';
import type { Language, OwnText } from '../domain/language.ts';
import { type Style, styleFor } from './style.ts';

/** How the pages look, and the operator's own words on them; the settings of `pages`. */
export interface PagesSettings {
  readonly name: string;
  readonly logo?: string;
  readonly accent?: string;
  readonly language: Language;
  readonly links: readonly { readonly text: OwnText; readonly url: string }[];
  readonly permissions: Readonly<Record<string, OwnText>>;
  readonly myGrants: boolean;
}

export interface Look extends Omit<PagesSettings, 'logo' | 'accent' | 'permissions'> {
  /** The picture itself, as a `data:` address: nothing is loaded from anywhere. */
  readonly logo?: string;
  readonly style: Style;
  /** By resource and permission, the resource in lower case. */
  readonly permissions: ReadonlyMap<string, OwnText>;
}

const PLAIN: PagesSettings = {
  name: 'gatehouse',
  language: 'en',
  links: [],
  permissions: {},
  myGrants: true,
};

/** Throws an `Error` that names the setting when the picture cannot be used. */
export function createLook(settings: PagesSettings = PLAIN): Look {
  const { logo, accent, permissions, ...rest } = settings;
  return {
    ...rest,
    ...(logo !== undefined && { logo: picture(logo) }),
    style: styleFor(accent),
    permissions: new Map(Object.entries(permissions).map(([item, words]) => [folded(item), words])),
  };
}

/** Resources compare without case, permissions exactly. */
export function folded(item: string): string {
  const [resource = '', permission] = item.split(':');
  return permission === undefined ? resource.toLowerCase() : `${resource.toLowerCase()}:${permission}`;
}

const MAX_BYTES = 64 * 1_024;

/** What it is, is told by its beginning: a name can lie. */
const KINDS: readonly (readonly [type: string, begins: RegExp])[] = [
  ['image/png', /^\x89PNG\r\n\x1a\n/],
  ['image/jpeg', /^\xff\xd8\xff/],
  ['image/webp', /^RIFF[^]{4}WEBP/],
  ['image/svg+xml', /^(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?(?:<!--[^]*?-->\s*)*<svg[\s>]/],
];

function picture(file: string): string {
  let bytes: Buffer;
  try {
    bytes = readFileSync(file);
  } catch (error) {
    throw new Error(`pages.logo cannot be read: ${(error as NodeJS.ErrnoException).code}`, { cause: error });
  }
  if (bytes.length > MAX_BYTES) throw new Error('pages.logo is larger than 64 KiB');
  const beginning = bytes.toString('latin1', 0, 2_048);
  const type = KINDS.find(([, begins]) => begins.test(beginning))?.[0];
  if (type === undefined) throw new Error('pages.logo is no SVG, PNG, JPEG or WebP picture');
  return `data:${type};base64,${bytes.toString('base64')}`;
}
