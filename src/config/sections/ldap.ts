import { z } from 'zod';
import { durationFrom, LOOPBACK, type Path } from '../units.ts';

const attribute = z.string().regex(/^[A-Za-z][A-Za-z0-9-]{0,63}$/, 'must be the name of an attribute');
const distinguishedName = z.string().min(1).max(1_024);
const filter = z
  .string()
  .max(2_048)
  .regex(/^\(.*\)$/s, 'must be a filter in parentheses, such as (objectClass=person)');
const ldapUrl = z.string().refine(
  (text) => URL.canParse(text) && /^ldaps?:\/\/[^/?#@]+\/?$/.test(text) && new URL(text).hostname !== '',
  // Whoever looks at settings as a whole finds a list or nothing.
  { error: 'must be ldap://host[:port] or ldaps://host[:port]', abort: true },
);

/** `directories.<name>.ldap`: people of an LDAP server. */
export const ldapSection = (path: Path) =>
  z.strictObject({
    url: z
      .union([ldapUrl, z.array(ldapUrl).min(1).max(8)])
      .transform((url) => (typeof url === 'string' ? [url] : url))
      .meta({
        description: 'The server, `ldaps://host[:port]` or `ldap://host[:port]`; or several, asked in turn.',
      }),
    startTls: z
      .boolean()
      .default(false)
      .meta({ description: 'With `ldap://`: go on by TLS. Plain LDAP is for the machine itself only.' }),
    ca: path.exactOptional().meta({ description: 'Certificates the server is trusted by, PEM.' }),
    serverName: z
      .string()
      .min(1)
      .exactOptional()
      .meta({ description: 'The name its certificate must have, where it is not the host of the URL.' }),
    bindDn: distinguishedName.meta({ description: 'Who gatehouse is to the server: it may only read.' }),
    password: z.string().min(1).max(1_024).exactOptional().meta({ description: 'Its password.' }),
    passwordFile: path.exactOptional().meta({ description: 'A file that holds the password.' }),
    base: distinguishedName.meta({ description: 'People are looked for below this entry.' }),
    filter: filter
      .default('(objectClass=person)')
      .meta({ description: 'Only entries like this are people.' }),
    id: z.enum(['entryUUID', 'objectGUID']).default('entryUUID').meta({
      description:
        'Where the id of an identity comes from: `objectGUID` in Active Directory, else `entryUUID`.',
    }),
    attributes: z
      .strictObject({
        userName: attribute.default('uid').meta({ description: 'What is typed at sign-in.' }),
        displayName: attribute.default('displayName').meta({ description: 'What pages show.' }),
        commonName: attribute.default('cn').meta({ description: 'The common name in certificates.' }),
        email: attribute.default('mail').meta({ description: 'The e-mail address in certificates.' }),
        userPrincipalName: attribute
          .default('userPrincipalName')
          .meta({ description: 'The user principal name in certificates.' }),
      })
      .prefault({}),
    groups: z
      .strictObject({
        base: distinguishedName.meta({ description: 'Groups are looked for below this entry.' }),
        filter: filter.default('(objectClass=*)').meta({ description: 'Only entries like this are groups.' }),
        name: attribute.default('cn').meta({ description: 'The name access lists know a group by.' }),
        member: attribute.default('member').meta({ description: 'Holds the entries of its members.' }),
        nested: z
          .boolean()
          .default(false)
          .meta({ description: 'Members of member groups too. Active Directory only.' }),
      })
      .exactOptional()
      .meta({ description: 'Groups of people, for the access lists of integrations.' }),
    disabled: filter.exactOptional().meta({
      description:
        'Entries like this are switched off. Default with `objectGUID`: those whose userAccountControl says so.',
    }),
    timeout: durationFrom(1, 60, 'must be from 1s to 60s')
      .prefault('5s')
      .meta({ description: 'Within this time the server must answer.' }),
    connections: z.int().min(1).max(64).default(4).meta({
      description:
        'Most connections at once, per process; sign-ins by password use at most half of them, or the only one.',
    }),
    remember: durationFrom(0, 3_600, 'must be from 0s to 1h').prefault('30s').meta({
      description: 'How long what was read about a person is used again: as late as that a change counts.',
    }),
  });

export interface LdapFacts {
  readonly url: readonly string[];
  readonly startTls: boolean;
  readonly password?: string;
}

/** What of an LDAP directory contradicts itself. */
export function ldapProblems({
  url,
  startTls,
  password,
}: LdapFacts): readonly { setting: string; message: string }[] {
  const problems: { setting: string; message: string }[] = [];
  const plain = url.filter((one) => one.startsWith('ldap://'));
  if (!startTls && plain.some((one) => !LOOPBACK.test(new URL(one.replace(/^ldap:/, 'http:')).hostname)))
    problems.push({
      setting: 'url',
      message: 'would send passwords in the clear; write ldaps://, or set startTls: true',
    });
  if (startTls && plain.length < url.length)
    problems.push({
      setting: 'startTls',
      message: 'has no meaning for ldaps://, which is TLS from its beginning',
    });
  if (password === undefined)
    problems.push({ setting: 'password', message: 'is missing; give it, or passwordFile' });
  return problems;
}
