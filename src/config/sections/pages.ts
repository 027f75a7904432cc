import * as z from 'zod';
import { LANGUAGES, type LocalizedText } from '../../domain/language.ts';
import { normalizeHost } from '../../domain/rule-matcher.ts';
import { parseScope } from '../../domain/scope.ts';
import { crossCheck } from '../cross-check.ts';
import {
  choice,
  durationBetween,
  isOrigin,
  issuerUrl,
  on,
  optional,
  type PathSchema,
  record,
  text,
  textUpTo,
} from '../units.ts';
import { createDirectoryCheck } from './identity.ts';

/** One text for all languages, or one per language. */
const localizedText = (maxLength: number) => {
  const message = z.string().trim().min(1).max(maxLength);
  return z
    .union([message, z.partialRecord(z.enum(LANGUAGES), message)])
    .transform((text): LocalizedText => (typeof text === 'string' ? { en: text } : text))
    .refine((text) => Object.keys(text).length > 0, 'must have a text in at least one language');
};

const isLink = (text: string): boolean =>
  URL.canParse(text) && /^(?:https?|mailto|tel):$/.test(new URL(text).protocol) && /^[\x21-\x7e]+$/.test(text);

function isTimeZone(text: string): boolean {
  try {
    return new Intl.DateTimeFormat('en', { timeZone: text }).resolvedOptions().timeZone !== '';
  } catch {
    return false;
  }
}

function isScopeItem(text: string): boolean {
  const parsed = parseScope(text);
  return parsed.ok && parsed.value.size === 1 && !/[,;\s]/.test(text);
}

/** `pages`: appearance and texts of the browser pages. */
export const pagesSection = (path: PathSchema) =>
  z.strictObject({
    url: optional(
      text(
        (text) => text === 'shared' || isOrigin(text),
        'must be an origin such as https://login.example.test, or shared',
      ),
    ).meta({
      description:
        'Origin of the pages, on a separate host that serves only the pages. Recommended: scripts of the API then cannot access them. `shared`: on `publicUrl`, as when omitted, but without the warning of `gatehouse check`.',
      examples: ['https://login.example.test', 'shared'],
    }),
    name: z.string().trim().min(1).max(40).default('gatehouse').describe('Name at the top of each page.'),
    logo: optional(path).describe(
      'Logo next to the name: SVG, PNG, JPEG or WebP, at most 64 KiB. Embedded in the pages.',
    ),
    accent: optional(text(/^#[0-9a-fA-F]{6}$/, 'must be a color such as #1d5bb8')).meta({
      description:
        'Color of buttons and links. Made darker or lighter where the contrast would be too low, for light and dark mode.',
      examples: ['#1d5bb8'],
    }),
    language: z
      .enum(LANGUAGES)
      .default('en')
      .describe('Language for browsers that request none of the available ones.'),
    timeZone: z
      .string()
      .max(64)
      .refine(isTimeZone, 'must be a time zone such as Europe/Berlin, or UTC')
      .exactOptional()
      .meta({
        description:
          'Time zone of your users. Times are shown in this zone and in UTC, dates only in this zone. Default: that of the server.',
        examples: ['Europe/Berlin', 'UTC'],
      }),
    links: z
      .array(
        z.strictObject({
          text: localizedText(60).describe('Text of the link.'),
          url: z
            .string()
            .max(2_048)
            .refine(isLink, 'must be an http, https, mailto or tel address')
            .describe('Target of the link.'),
        }),
      )
      .max(6)
      .default([])
      .describe('Links at the bottom of each page, such as help and a legal notice.'),
    permissions: record(
      text(isScopeItem, 'must be a resource, or resource:permission, such as reports:read'),
      localizedText(160),
    ).meta({
      description:
        'Descriptions of permissions, as continuations of “It will be able to”. By `resource:permission`, or by `resource` for a resource without permissions. Others are shown by name.',
      examples: [{ 'reports:read': { en: 'see your reports', de: 'Ihre Berichte sehen' } }],
    }),
    myGrants: on.describe('Offer a page on which users see and revoke the grants they have approved.'),
  });

const CLAIM_ATTRIBUTES = ['subject', 'userName', 'email', 'commonName', 'userPrincipalName', 'id'] as const;

/** `signIn`: further sign-in methods on the pages. */
export const signInSection = (path: PathSchema) =>
  z.strictObject({
    openid: record(
      text(/^[a-z0-9][a-z0-9-]{0,31}$/, 'must be lower-case letters, digits and dashes'),
      z.strictObject({
        title: localizedText(60).describe('Name on the button: “Sign in with …”.'),
        issuer: issuerUrl.describe('Issuer of the provider; its metadata is read from there.'),
        clientId: textUpTo(512).describe('Client id of gatehouse at the provider.'),
        clientSecret: optional(textUpTo(1_024)).describe(
          'Client secret. Without one, gatehouse is a public client (PKCE is always used).',
        ),
        clientSecretFile: optional(path).describe('File that contains the secret.'),
        sendSecret: choice(['basic', 'post']).describe(
          'How the secret is sent: in the Authorization header, or in the form.',
        ),
        scope: text(
          /^openid(?: [\x21\x23-\x5b\x5d-\x7e]+)*$/,
          'must begin with openid, with values separated by spaces',
        )
          .default('openid profile')
          .describe('Scope requested from the provider.'),
        prompt: optional(z.enum(['login', 'consent', 'select_account'])).describe(
          'What the provider must ask the user for, even with an existing session.',
        ),
        ca: optional(path).describe('CA certificates for the provider, PEM.'),
        directory: z.string().describe('Directory of the users.'),
        claim: textUpTo(128).default('sub').describe('Claim of the ID token that identifies the user.'),
        means: z
          .enum(CLAIM_ATTRIBUTES)
          .default('subject')
          .describe(
            'Which attribute of the directory this claim is. `subject`: for a directory with `derive: true`; the id is a digest of issuer and claim. An email address is accepted only if the provider asserts that it is verified.',
          ),
        groups: optional(textUpTo(128)).describe(
          "Claim with the user's groups, a list of strings, such as `groups`. Groups that an `access` entry names are treated like groups of the directory, until the next sign-in at the provider. If omitted, only groups of the directory are used.",
        ),
        timeout: durationBetween('1s', '60s', '5s').describe('Time limit for responses of the provider.'),
      }),
    ).describe('OpenID providers, by a name that you choose.'),
  });

/** The origin of the pages if they have a host of their own. */
const getPagesUrl = ({ url }: { readonly url?: string }): URL | undefined =>
  url === undefined || url === 'shared' || !URL.canParse(url) ? undefined : new URL(url);

export const pagesRules = [
  crossCheck(['pages', 'routes'], ({ pages, routes }, report) => {
    const pagesUrl = getPagesUrl(pages);
    if (pagesUrl === undefined) return;
    routes.forEach((route, index) => {
      if (route?.host !== undefined && normalizeHost(route.host) === normalizeHost(pagesUrl.hostname))
        report(['routes', index, 'host'], 'is the host of pages.url, which serves only the pages');
    });
  }),
  crossCheck(['pages', 'publicUrl'], ({ pages, publicUrl }, report) => {
    const pagesUrl = getPagesUrl(pages);
    if (!URL.canParse(publicUrl)) return;
    const apiUrl = new URL(publicUrl);
    if (pagesUrl === undefined || pagesUrl.origin === apiUrl.origin) return;
    // A trailing dot does not make it another host (RFC 1034 §3.1).
    if (normalizeHost(pagesUrl.hostname) === normalizeHost(apiUrl.hostname))
      report(
        ['pages', 'url'],
        'has the host name of publicUrl; choose another host: browsers send cookies to every port of a host',
      );
    if (pagesUrl.protocol === 'http:' && apiUrl.protocol === 'https:')
      report(['pages', 'url'], 'is http, but publicUrl is https; use https for both');
  }),
];

export const signInRules = [
  crossCheck(['signIn', 'directories'], ({ signIn, directories }, report) => {
    const checkReference = createDirectoryCheck(directories, report);
    for (const [name, provider] of Object.entries(signIn.openid)) {
      const path = ['signIn', 'openid', name];
      checkReference(provider.directory, [...path, 'directory']);
      const directory = directories[provider.directory];
      if (directory === undefined) continue;
      if (directory.derive && provider.means !== 'subject')
        report([...path, 'means'], `must be subject: "${provider.directory}" has no list of users`);
      if (!directory.derive && provider.means === 'subject')
        report([...path, 'means'], `cannot be subject: "${provider.directory}" identifies users by other attributes`);
    }
  }),
];
