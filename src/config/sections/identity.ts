import * as z from 'zod';
import { findUriProblem, isTrustDomain } from '../../domain/certificate-uri.ts';
import { findDnsNameProblem } from '../../domain/dns-name.ts';
import { isIdentityLabel } from '../../domain/user.ts';
import { NAME_SOURCES, type NameSource } from '../../ports/directory.ts';
import { crossCheck, formatKnownNames, type ParsedSections, type ReportProblem } from '../cross-check.ts';
import type { SettingPath } from '../setting-path.ts';
import {
  choice,
  durationBetween,
  group,
  isPlainHttpUrl,
  LOOPBACK_HOST,
  list,
  nonEmptyList,
  nonEmptyText,
  off,
  on,
  optional,
  type PathSchema,
  peers,
  shortText,
  size,
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
const ldapSection = (path: PathSchema) =>
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

function checkLdap(
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

/** `certificates`: which client certificates are trusted, and which name in them is the identity. */
export function certificatesSection(path: PathSchema) {
  const nameSource = z.enum(NAME_SOURCES);

  const ocsp = z.strictObject({
    url: z
      .string()
      .max(2_048)
      .refine(isPlainHttpUrl, 'must be an http or https URL without a user name or fragment')
      .meta({
        description: 'URL of the responder. The URL in certificates is not used. Redirects are not followed.',
        examples: ['http://ocsp.example.test'],
      }),
    softFail: off.describe(
      'Accept certificates while the responder provides no status. If false, they get 503. Revoked and unknown certificates are refused in either case.',
    ),
    refresh: durationBetween('10s', '7d', '1h').describe(
      'After this time, the status of a certificate in use is requested again.',
    ),
    timeout: durationBetween('1s', '60s', '5s').describe('Time limit for responses of the responder.'),
    ca: optional(path).describe('CA certificates of the responder, PEM.'),
  });

  const issuer = z.union([
    path.transform((file): Issuer => ({ file })),
    z.strictObject({
      name: optional(nonEmptyText).describe(
        'Short name for `integrations[].issuers` and logs. Default: the file name without its extension.',
      ),
      file: path.describe('Issuer certificate, PEM.'),
      directory: optional(z.string()).describe('Directory for names in certificates of this issuer.'),
      identityFrom: optional(nameSource).describe('Which name in certificates of this issuer is the identity.'),
      trustDomain: optional(text(isTrustDomain, 'must be a trust domain such as example.org, without spiffe://')).meta({
        description:
          'With `identityFrom: uri`: the SPIFFE trust domain of this issuer. Its certificates must have a SPIFFE ID of this trust domain. Without it, SPIFFE IDs of this issuer are refused.',
        examples: ['example.org'],
      }),
      dnsDomain: z
        .string()
        .transform((name) => name.toLowerCase())
        .refine((name) => findDnsNameProblem(name) === undefined, 'must be a domain such as example.org')
        .exactOptional()
        .meta({
          description:
            'With `identityFrom: dnsName`: the identity is the only DNS name in this domain. Others are ignored. Without it, the certificate must have exactly one DNS name.',
          examples: ['svc.cluster.local'],
        }),
      ocsp: optional(ocsp).describe('OCSP responder (RFC 6960) that is asked about each certificate of this issuer.'),
    }),
  ]);

  const crlUrl = z.strictObject({
    url: z
      .string()
      .max(2_048)
      .refine(isPlainHttpUrl, 'must be an http or https URL without a user name or fragment')
      .meta({
        description: 'URL of a revocation list; http is safe, because lists are signed. Redirects are not followed.',
        examples: ['http://pki.example.test/staff-ca.crl'],
      }),
    refresh: durationBetween('10s', '7d', '1h').describe(
      'How often it is fetched. Lists with a short validity are fetched earlier.',
    ),
    issuer: optional(nonEmptyText).describe(
      "Name of the issuer of the list; lists from other issuers are then refused. Until a list for the issuer's key is fetched, its certificates get 503; without this setting, the certificates of all issuers do.",
    ),
    timeout: durationBetween('1s', '10m', '30s').describe('Time limit for fetching it.'),
    maxSize: size
      .refine((bytes) => bytes >= 1_024 && bytes <= 67_108_864, 'must be from 1KiB to 64MiB')
      .prefault('16MiB')
      .describe(
        'Maximum size of the response. Fetching and parsing it takes up to five times this memory in each process.',
      ),
    ca: optional(path).describe('CA certificates of the server, PEM.'),
  });

  return z.strictObject({
    issuers: z
      .array(issuer)
      .prefault([])
      .describe(
        'Approved direct issuers of client certificates (pinned by key). List an intermediate CA itself, not its root.',
      ),
    crls: z
      .array(z.union([path, crlUrl]))
      .prefault([])
      .describe(
        'Certificate revocation lists, PEM (several in one file) or DER: files, and URLs from which they are fetched. If an issuer has a list, it must be current. A reload is rejected if a file is missing, empty or truncated, or holds an older list than before.',
      ),
    requireCrl: off.describe(
      'Reject certificates of issuers without a revocation list. An OCSP responder without `softFail` is enough.',
    ),
    identityFrom: nameSource
      .default('commonName')
      .describe(
        'Which name in the certificate is the identity: the common name of the subject, or the email address, user principal name, DNS name or URI in the subjectAltName.',
      ),
    directory: optional(z.string()).describe('Directory in which this name is looked up.'),
    requireClientAuth: on.describe('The certificate must have the clientAuth extended key usage.'),
    asciiNames: on.describe('Reject names with non-ASCII characters (look-alikes).'),
    forwardedFrom: peers
      .prefault([])
      .describe(
        'Front proxies (address or CIDR) that terminate TLS and forward the client certificate in `certificates.forwardedHeader`. Each must overwrite or remove that header on every request.',
      ),
    forwardedHeader: optional(
      z.enum([
        'client-cert',
        'x-forwarded-client-cert',
        'ssl-client-cert',
        'x-ssl-client-cert',
        'x-forwarded-tls-client-cert',
      ]),
    ).describe(
      'Header in which the peers in `certificates.forwardedFrom` forward it; required with them. Requests with another spelling of the name, or with the header twice, are rejected.',
    ),
  });
}

export interface Issuer {
  readonly file: string;
  readonly name?: string;
  readonly directory?: string;
  readonly identityFrom?: NameSource;
  readonly trustDomain?: string;
  readonly dnsDomain?: string;
  readonly ocsp?: OcspSettings;
}

export interface OcspSettings {
  readonly url: string;
  readonly softFail: boolean;
  /** Seconds. */
  readonly refresh: number;
  readonly timeout: number;
  readonly ca?: string;
}

export const getIssuerName = ({ file, name }: Pick<Issuer, 'file' | 'name'>): string =>
  name ?? (file.split('/').at(-1) ?? file).replace(/\.[^.]+$/, '');

/** `directories.*`: users and workloads. */
export function directorySection(path: PathSchema) {
  const user = z.strictObject({
    id: optional(textUpTo(256)).meta({
      description:
        'Permanent id of the user: any text, never reused for another user. A braced GUID or a hex string is used in identities unchanged; from any other text, a GUID is derived. If omitted, the GUID is derived from `name`, so a renamed user is a new identity.',
      examples: ['{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}'],
    }),
    name: shortText.describe('User name for sign-in.'),
    displayName: optional(shortText).describe('Name on the pages. Default: `name`.'),
    commonName: optional(shortText).describe('Common name in client certificates of this user.'),
    email: z.string().min(3).max(256).exactOptional().describe('Email address in client certificates of this user.'),
    userPrincipalName: z
      .string()
      .min(3)
      .max(256)
      .exactOptional()
      .describe('User principal name in client certificates of this user.'),
    dnsName: optional(
      text((name) => findDnsNameProblem(name) === undefined, 'must be a host name without a wildcard'),
    ).describe('DNS name in client certificates of this workload.'),
    uri: optional(
      text((uri) => findUriProblem(uri) === undefined, 'must be a URI, such as a SPIFFE ID with a path'),
    ).meta({
      description: 'URI in client certificates of this workload, such as a SPIFFE ID. Compared exactly.',
      examples: ['spiffe://example.org/billing'],
    }),
    groups: list(nonEmptyText).describe('Groups, for `access` of integrations.'),
    disabled: off.describe('The user cannot sign in, and existing grants cannot be refreshed.'),
    passwordHash: optional(
      text(
        /^\$argon2id\$v=19\$m=\d+,t=\d+,p=\d+\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+$/,
        'must be the output of `gatehouse hash-password`',
      ),
    ).describe('Output of `gatehouse hash-password`. Without it, the user cannot sign in with a password.'),
    passwordHashFile: optional(path).describe('File that contains the password hash.'),
  });

  return z.strictObject({
    label: text(isIdentityLabel, 'must be letters, digits, dot, dash or underscore').describe(
      'Part of an identity before the colon.',
    ),
    users: list(user).describe('Users, listed in this file.'),
    derive: off.describe(
      'Instead of a list: the id is a digest of the name in the certificate. For workloads whose CA acts as the directory.',
    ),
    ldap: optional(ldapSection(path)).describe('Instead of a list: users of an LDAP server such as Active Directory.'),
  });
}

/** Checks that a directory exists. */
export const createDirectoryCheck =
  (directories: ParsedSections['directories'], report: ReportProblem) =>
  (name: string | undefined, path: SettingPath): void => {
    if (name !== undefined && !Object.hasOwn(directories, name))
      report(path, `no such directory: "${name}"${formatKnownNames(Object.keys(directories))}`);
  };

function checkDirectory(
  { derive, users, ldap }: NonNullable<ParsedSections['directories'][string]>,
  path: SettingPath,
  report: ReportProblem,
): void {
  if (derive && users.length > 0) report([...path, 'users'], 'cannot be combined with derive: true');
  if (ldap !== undefined && (derive || users.length > 0))
    report([...path, 'ldap'], 'cannot be combined with users or derive: true');
  for (const field of ['id', 'name', 'commonName', 'email', 'userPrincipalName', 'dnsName', 'uri'] as const) {
    const seen = new Set<string>();
    users.forEach((entry, index) => {
      const value = entry[field];
      if (value === undefined) return;
      const folded = field === 'commonName' || field === 'uri' ? value : value.toLowerCase();
      if (seen.has(folded)) report([...path, 'users', index, field], `"${value}" also belongs to another user`);
      seen.add(folded);
    });
  }
  if (ldap) checkLdap(ldap, [...path, 'ldap'], report);
}

export const identityRules = [
  crossCheck(['certificates'], ({ certificates }, report) => {
    const { issuers, crls, directory, identityFrom, forwardedFrom, forwardedHeader } = certificates;
    if (forwardedFrom.hasEntries && forwardedHeader === undefined)
      report(
        ['certificates', 'forwardedHeader'],
        'is missing; set it to the header in which the peers in certificates.forwardedFrom forward the client certificate',
      );
    crls.forEach((entry, index) => {
      if (typeof entry === 'string' || entry.issuer === undefined) return;
      const known = issuers.map(getIssuerName);
      if (!known.includes(entry.issuer))
        report(
          ['certificates', 'crls', index, 'issuer'],
          `no such issuer: "${entry.issuer}"${formatKnownNames(known)}`,
        );
    });
    const names = new Set<string>();
    issuers.forEach((entry, index) => {
      if (entry.directory === undefined && directory === undefined)
        report(['certificates', 'issuers', index, 'directory'], 'is missing; set it here or in certificates.directory');
      const source = entry.identityFrom ?? identityFrom;
      if (entry.trustDomain !== undefined && source !== 'uri')
        report(['certificates', 'issuers', index, 'trustDomain'], 'needs identityFrom: uri');
      if (entry.dnsDomain !== undefined && source !== 'dnsName')
        report(['certificates', 'issuers', index, 'dnsDomain'], 'needs identityFrom: dnsName');
      const name = getIssuerName(entry);
      if (names.has(name))
        report(
          ['certificates', 'issuers', index, 'name'],
          `"${name}" is already the name of another issuer; choose another name`,
        );
      names.add(name);
    });
  }),
  crossCheck(['directories'], ({ directories }, report) => {
    const labels = new Set<string>();
    for (const [name, directory] of Object.entries(directories)) {
      if (!directory) continue;
      if (labels.has(directory.label))
        report(['directories', name, 'label'], `"${directory.label}" is already the label of another directory`);
      labels.add(directory.label);
      checkDirectory(directory, ['directories', name], report);
    }
  }),
  crossCheck(['certificates', 'directories'], ({ certificates, directories }, report) => {
    const checkReference = createDirectoryCheck(directories, report);
    checkReference(certificates.directory, ['certificates', 'directory']);
    certificates.issuers.forEach((issuer, index) =>
      checkReference(issuer.directory, ['certificates', 'issuers', index, 'directory']),
    );
  }),
];
