import * as z from 'zod';
import type { ReportProblem } from '../cross-check.ts';
import type { SettingPath } from '../setting-path.ts';
import { durationBetween, LOOPBACK_HOST, nonEmptyText, type PathSchema } from '../units.ts';

const attribute = z.string().regex(/^[A-Za-z][A-Za-z0-9-]{0,63}$/, 'must be an attribute name');
const distinguishedName = z.string().min(1).max(1_024);
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
      .union([ldapUrl, z.array(ldapUrl).min(1).max(8)])
      .transform((url) => (typeof url === 'string' ? [url] : url))
      .describe('The server, `ldaps://host[:port]` or `ldap://host[:port]`; or several, tried in order.'),
    startTls: z
      .boolean()
      .default(false)
      .describe('With `ldap://`: use StartTLS. LDAP without TLS is allowed only to this machine.'),
    ca: path.exactOptional().describe('CA certificates for the server, PEM.'),
    serverName: nonEmptyText
      .exactOptional()
      .describe('Name in the server certificate, if it is not the host of the URL.'),
    bindDn: distinguishedName.describe('Account that gatehouse binds as; read access is enough.'),
    password: z.string().min(1).max(1_024).exactOptional().describe('Its password.'),
    passwordFile: path.exactOptional().describe('File that contains the password.'),
    base: distinguishedName.describe('Base entry of the search for users.'),
    filter: filter.default('(objectClass=person)').describe('Filter for entries of users.'),
    id: z
      .enum(['entryUUID', 'objectGUID'])
      .default('entryUUID')
      .describe('Attribute of the id of an identity: `objectGUID` for Active Directory, otherwise `entryUUID`.'),
    attributes: z
      .strictObject({
        userName: attribute.default('uid').describe('User name for sign-in.'),
        displayName: attribute.default('displayName').describe('Name on the pages.'),
        commonName: attribute.default('cn').describe('Common name in client certificates.'),
        email: attribute.default('mail').describe('Email address in client certificates.'),
        userPrincipalName: attribute
          .default('userPrincipalName')
          .describe('User principal name in client certificates.'),
        dnsName: attribute.default('dNSHostName').describe('DNS name in client certificates.'),
        uri: attribute.default('labeledURI').describe('URI, such as a SPIFFE ID, in client certificates.'),
      })
      .prefault({}),
    groups: z
      .strictObject({
        base: distinguishedName.describe('Base entry of the search for groups.'),
        filter: filter.default('(objectClass=*)').describe('Filter for entries of groups.'),
        name: attribute.default('cn').describe('Name of the group in `access` of integrations.'),
        member: attribute.default('member').describe('Attribute with the members.'),
        nested: z.boolean().default(false).describe('Include members of nested groups. Active Directory only.'),
      })
      .exactOptional()
      .describe('Groups of users, for `access` of integrations.'),
    disabled: filter
      .exactOptional()
      .describe('Filter for disabled users. Default with `objectGUID`: the flag in userAccountControl.'),
    timeout: durationBetween(1, 60, 'must be from 1s to 60s')
      .prefault('5s')
      .describe('Time limit for responses of the server.'),
    cacheLifetime: durationBetween(0, 3_600, 'must be from 0s to 1h').prefault('30s').meta({
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
