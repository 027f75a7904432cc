import { z } from 'zod';
import { LANGUAGES, type OwnText } from '../../domain/language.ts';
import { parseScope } from '../../domain/scope.ts';
import { durationFrom, isOrigin, LOOPBACK, type Path } from '../units.ts';

/** Words that people read: one text for all languages, or one for each. */
const ownText = (most: number) => {
  const words = z.string().trim().min(1).max(most);
  return z
    .union([
      words,
      z.strictObject({
        en: words.exactOptional().meta({ description: 'In English.' }),
        de: words.exactOptional().meta({ description: 'In German.' }),
      }),
    ])
    .transform((text): OwnText => (typeof text === 'string' ? { en: text } : (text as OwnText)))
    .refine((text) => LANGUAGES.some((language) => text[language] !== undefined), 'must say something');
};

const isLink = (text: string): boolean =>
  URL.canParse(text) &&
  /^(?:https?|mailto|tel):$/.test(new URL(text).protocol) &&
  /^[\x21-\x7e]+$/.test(text);

function isScopeItem(text: string): boolean {
  const parsed = parseScope(text);
  return parsed.ok && parsed.value.size === 1 && !/[,;\s]/.test(text);
}

/** `pages`: how the pages people meet look, and the words of the operator on them. */
export const pagesSection = (path: Path) =>
  z.strictObject({
    url: z
      .string()
      .refine(
        (text) => text === 'shared' || isOrigin(text),
        'must be an origin such as https://login.example.test, or shared',
      )
      .exactOptional()
      .meta({
        description:
          'Origin of the pages, on a host of their own: they are served there alone, and nothing else is. Recommended: scripts of the API then cannot reach them. `shared`: on `publicUrl`, as when omitted, but `gatehouse check` does not warn.',
        examples: ['https://login.example.test', 'shared'],
      }),
    name: z
      .string()
      .trim()
      .min(1)
      .max(40)
      .default('gatehouse')
      .meta({ description: 'Whose pages these are: stands on top of each.' }),
    logo: path.exactOptional().meta({
      description:
        'A picture beside the name: SVG, PNG, JPEG or WebP, at most 64 KiB. Written into the pages.',
    }),
    accent: z
      .string()
      .regex(/^#[0-9a-fA-F]{6}$/, 'must be a colour such as #1d5bb8')
      .exactOptional()
      .meta({
        description:
          'Colour of buttons and links. Made darker or lighter where it could not be read, for light and for dark screens.',
        examples: ['#1d5bb8'],
      }),
    language: z
      .enum(LANGUAGES)
      .default('en')
      .meta({ description: 'Spoken to browsers that ask for no language we have.' }),
    links: z
      .array(
        z.strictObject({
          text: ownText(60).meta({ description: 'What is read.' }),
          url: z
            .string()
            .max(2_048)
            .refine(isLink, 'must be an http, https, mailto or tel address')
            .meta({ description: 'Where it leads.' }),
        }),
      )
      .max(6)
      .default([])
      .meta({ description: 'Links at the foot of each page, such as help and imprint.' }),
    permissions: z
      .record(
        z.string().refine(isScopeItem, 'must be a resource, or resource:permission, such as reports:read'),
        ownText(160),
      )
      .prefault({})
      .meta({
        description:
          'What a permission means, in words that follow “It would be allowed to”. By `resource:permission`, or by `resource` for one asked for without permissions. Others are described by their names.',
        examples: [{ 'reports:read': { en: 'see your reports', de: 'Ihre Berichte sehen' } }],
      }),
    myGrants: z
      .boolean()
      .default(true)
      .meta({ description: 'A page on which people see what they have approved, and revoke it.' }),
  });

const isHttpsOrLoopback = (text: string): boolean => {
  if (!URL.canParse(text)) return false;
  const { protocol, hostname, username, password, hash, search } = new URL(text);
  if ([username, password, hash, search].some((part) => part.length > 0)) return false;
  return protocol === 'https:' || (protocol === 'http:' && LOOPBACK.test(hostname));
};

/** Entra ID: one address for all tenants, each of which anybody can open and fill with names. */
const OF_EVERYBODY =
  /^https:\/\/login\.microsoftonline\.com(?::443)?\/+(?:common|organizations|consumers)(?:\/|$)/i;

const CLAIM_MEANINGS = ['subject', 'userName', 'email', 'commonName', 'userPrincipalName', 'id'] as const;

/** `signIn`: further ways for people to sign in on the pages. */
export const signInSection = (path: Path) =>
  z.strictObject({
    openid: z
      .record(
        z.string().regex(/^[a-z0-9][a-z0-9-]{0,31}$/, 'must be small letters, digits and dashes'),
        z.strictObject({
          title: ownText(60).meta({ description: 'Its name on the button: “Sign in with …”.' }),
          issuer: z
            .string()
            .refine(isHttpsOrLoopback, 'must be an https address (http only for the machine itself)')
            .refine(
              (text) => !OF_EVERYBODY.test(text),
              'must name your tenant: under this address anybody’s tenant says who its people are',
            )
            .meta({ description: 'The provider’s issuer; what it offers is read from there.' }),
          clientId: z.string().min(1).max(512).meta({ description: 'Who gatehouse is to the provider.' }),
          clientSecret: z.string().min(1).max(1_024).exactOptional().meta({
            description: 'Its secret. Without one gatehouse is a public client (PKCE is always used).',
          }),
          clientSecretFile: path.exactOptional().meta({ description: 'A file that holds the secret.' }),
          sendSecret: z
            .enum(['basic', 'post'])
            .default('basic')
            .meta({ description: 'How the secret is sent: in a header, or in the form.' }),
          scope: z
            .string()
            .regex(/^openid(?: [\x21\x23-\x5b\x5d-\x7e]+)*$/, 'must begin with openid, words apart by spaces')
            .default('openid profile')
            .meta({ description: 'What is asked of the provider.' }),
          prompt: z
            .enum(['login', 'consent', 'select_account'])
            .exactOptional()
            .meta({ description: 'What the provider shall ask the person for, even when signed in there.' }),
          ca: path.exactOptional().meta({ description: 'Certificates the provider is trusted by, PEM.' }),
          directory: z.string().meta({ description: 'Directory the people are in.' }),
          claim: z
            .string()
            .min(1)
            .max(128)
            .default('sub')
            .meta({ description: 'Claim of the ID token that tells who it is.' }),
          means: z.enum(CLAIM_MEANINGS).default('subject').meta({
            description:
              'What this claim is in the directory. `subject`: for a directory with `derive: true`, the id is a digest of issuer and claim. An e-mail address counts only when the provider says that it was verified.',
          }),
          timeout: durationFrom(1, 60, 'must be from 1s to 60s')
            .prefault('5s')
            .meta({ description: 'Within this time the provider must answer.' }),
        }),
      )
      .prefault({})
      .meta({ description: 'OpenID providers, by a name of your choice.' }),
  });
