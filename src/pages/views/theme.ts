import type { Settings } from '../../config/schema.ts';
import type { LocalizedText } from '../../domain/language.ts';
import { readSettingBytes } from '../../lib/read-file.ts';
import { createStyle, type Style } from './style.ts';

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
