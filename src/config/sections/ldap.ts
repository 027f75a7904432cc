import * as z from 'zod';
import type { ReportProblem } from '../cross-check.ts';
import type { SettingPath } from '../setting-path.ts';
import {
  choice,
  durationBetween,
  group,
  LOOPBACK_HOST,
  nonEmptyList,
  nonEmptyText,
  off,
  optional,
  type PathSchema,
  text,
  textUpTo,
} from '../units.ts';

const attribute = text(/^[A-Za-z][A-Za-z0-9-]{0,63}$/, 'must be an attribute name');
const distinguishedName = textUpTo(1_024);
const filter = z
  .string()
  .max(2_048)
  .regex(/^\(.*\)$/s, 'must be a filter in parentheses, such as (objectClass=person)');
const ldapUrl = z.string().refine(
  (text) => URL.canParse(text) && /^ldaps?:\/\/[^/?#@]+\/?$/.test(text) && new URL(text).hostname !== '',
  // Abort: the checks below expect valid URLs.
  { error: 'must be ldap://host[:port] or ldaps://host[:port]', abort: true },
);

/** `directories.*.ldap`: users of an LDAP server. */
export const ldapSection = (path: PathSchema) =>
  z.strictObject({
    url: z
      .union([ldapUrl, nonEmptyList(ldapUrl).max(8)])
      .transform((url) => (typeof url === 'string' ? [url] : url))
      .describe('The server, `ldaps://host[:port]` or `ldap://host[:port]`; or several, tried in order.'),
    startTls: off.describe('With `ldap://`: use StartTLS. LDAP without TLS is allowed only to this machine.'),
    ca: optional(path).describe('CA certificates for the server, PEM.'),
    serverName: optional(nonEmptyText).describe('Name in the server certificate, if it is not the host of the URL.'),
    bindDn: distinguishedName.describe('Account that gatehouse binds as; read access is enough.'),
    password: optional(textUpTo(1_024)).describe('Its password.'),
    passwordFile: optional(path).describe('File that contains the password.'),
    base: distinguishedName.describe('Base entry of the search for users.'),
    filter: filter.default('(objectClass=person)').describe('Filter for entries of users.'),
    id: choice(['entryUUID', 'objectGUID']).describe(
      'Attribute of the id of an identity: `objectGUID` for Active Directory, otherwise `entryUUID`.',
    ),
    attributes: group({
      userName: attribute.default('uid').describe('User name for sign-in.'),
      displayName: attribute.default('displayName').describe('Name on the pages.'),
      commonName: attribute.default('cn').describe('Common name in client certificates.'),
      email: attribute.default('mail').describe('Email address in client certificates.'),
      userPrincipalName: attribute.default('userPrincipalName').describe('User principal name in client certificates.'),
      dnsName: attribute.default('dNSHostName').describe('DNS name in client certificates.'),
      uri: attribute.default('labeledURI').describe('URI, such as a SPIFFE ID, in client certificates.'),
    }),
    groups: optional(
      z.strictObject({
        base: distinguishedName.describe('Base entry of the search for groups.'),
        filter: filter.default('(objectClass=*)').describe('Filter for entries of groups.'),
        name: attribute.default('cn').describe('Name of the group in `access` of integrations.'),
        member: attribute.default('member').describe('Attribute with the members.'),
        nested: off.describe('Include members of nested groups. Active Directory only.'),
      }),
    ).describe('Groups of users, for `access` of integrations.'),
    disabled: optional(filter).describe(
      'Filter for disabled users. Default with `objectGUID`: the flag in userAccountControl.',
    ),
    timeout: durationBetween('1s', '60s', '5s').describe('Time limit for responses of the server.'),
    cacheLifetime: durationBetween('0s', '1h', '30s').meta({
      description: 'How long data of a user is cached, and so how late a change in the directory can apply.',
    }),
  });

export function checkLdap(
  { url, startTls, password }: z.output<ReturnType<typeof ldapSection>>,
  path: SettingPath,
  report: ReportProblem,
): void {
  const plainUrls = url.filter((text) => text.startsWith('ldap://'));
  const isLoopback = (text: string): boolean => LOOPBACK_HOST.test(new URL(text.replace(/^ldap:/, 'http:')).hostname);
  if (!startTls && !plainUrls.every(isLoopback))
    report([...path, 'url'], 'would send passwords in clear text; use ldaps://, or set startTls: true');
  if (startTls && plainUrls.length < url.length)
    report([...path, 'startTls'], 'has no effect with ldaps://, which always uses TLS; remove it');
  if (password === undefined) report([...path, 'password'], 'is missing; set it or passwordFile');
}
