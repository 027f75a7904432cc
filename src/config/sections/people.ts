import { z } from 'zod';
import { isIdentityId, isIdentityLabel } from '../../domain/person.ts';
import { NAME_SOURCES } from '../../ports/directory.ts';
import { type Path, peers } from '../units.ts';
import { ldapSection } from './ldap.ts';

/** `certificates`: whose client certificates count, and which name in them is the person. */
export function certificatesSection(path: Path) {
  const nameSource = z.enum(NAME_SOURCES);

  const issuer = z.union([
    path.transform((file) => ({ file })),
    z.strictObject({
      name: z.string().min(1).exactOptional().meta({
        description:
          'Short name, for `integrations[].issuers` and logs. Default: the file name without its ending.',
      }),
      file: path.meta({ description: 'Issuer certificate, PEM.' }),
      directory: z
        .string()
        .exactOptional()
        .meta({ description: 'Directory in which names of this issuer are looked up.' }),
      identityFrom: nameSource.exactOptional().meta({ description: 'Where this issuer writes the name.' }),
    }),
  ]);

  return z.strictObject({
    issuers: z.array(issuer).prefault([]).meta({
      description:
        'Approved direct issuers of client certificates (pinned by key). Intermediates stand here themselves.',
    }),
    crls: z.array(path).prefault([]).meta({
      description:
        'Certificate revocation lists, PEM (several in one file) or DER. An issuer with a list must have a fresh one. A reload is refused if a file is missing, empty, cut short or holds an older list than before.',
    }),
    requireCrl: z
      .boolean()
      .default(false)
      .meta({ description: 'Refuse certificates of issuers for which no revocation list is loaded.' }),
    identityFrom: nameSource.default('commonName').meta({
      description:
        'Which name of the certificate is the identity: the common name of its subject, or the e-mail address or user principal name in its subjectAltName.',
    }),
    directory: z.string().exactOptional().meta({ description: 'Directory in which the name is looked up.' }),
    requireClientAuth: z
      .boolean()
      .default(true)
      .meta({ description: 'The certificate must carry the clientAuth extended key usage.' }),
    asciiNames: z
      .boolean()
      .default(true)
      .meta({ description: 'Refuse names with characters outside ASCII (look-alikes).' }),
    forwardedFrom: peers.prefault([]).meta({
      description:
        'Front proxies (address or CIDR) that terminate TLS and forward the certificate of their client in `certificates.forwardedHeader`. Each must overwrite or remove that header on every request.',
    }),
    forwardedHeader: z
      .enum([
        'client-cert',
        'x-forwarded-client-cert',
        'ssl-client-cert',
        'x-ssl-client-cert',
        'x-forwarded-tls-client-cert',
      ])
      .exactOptional()
      .meta({
        description:
          'The header in which the peers in `certificates.forwardedFrom` forward it; required with them. Only this name is trusted; a request with another spelling of it, or with two of it, is refused.',
      }),
  });
}

/** `directories.*`: people and workloads. */
export function directorySection(path: Path) {
  const user = z.strictObject({
    id: z
      .string()
      .refine(isIdentityId, 'must be a braced GUID or a hex string')
      .meta({
        description: 'A braced GUID or a hex string.',
        examples: ['{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}'],
      }),
    name: z.string().min(1).max(256).meta({ description: 'What is typed at sign-in.' }),
    displayName: z
      .string()
      .min(1)
      .max(256)
      .exactOptional()
      .meta({ description: 'What pages show. Default: the name.' }),
    commonName: z
      .string()
      .min(1)
      .max(256)
      .exactOptional()
      .meta({ description: 'The common name in the certificates of this person.' }),
    email: z
      .string()
      .min(3)
      .max(256)
      .exactOptional()
      .meta({ description: 'The e-mail address in the certificates of this person.' }),
    userPrincipalName: z
      .string()
      .min(3)
      .max(256)
      .exactOptional()
      .meta({ description: 'The user principal name in the certificates of this person.' }),
    groups: z
      .array(z.string().min(1))
      .default([])
      .meta({ description: 'Groups, for the access lists of integrations.' }),
    disabled: z
      .boolean()
      .default(false)
      .meta({ description: 'May not sign in, and no token of theirs is refreshed.' }),
    passwordHash: z
      .string()
      .regex(
        /^\$argon2id\$v=19\$m=\d+,t=\d+,p=\d+\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+$/,
        'must be made by `gatehouse hash-password`',
      )
      .exactOptional()
      .meta({
        description: 'Made by `gatehouse hash-password`. Without it the person cannot sign in by password.',
      }),
    passwordHashFile: path.exactOptional().meta({ description: 'A file that holds the password hash.' }),
  });

  return z.strictObject({
    label: z
      .string()
      .refine(isIdentityLabel, 'must be letters, digits, dot, dash or underscore')
      .meta({ description: 'The part of an identity before the colon.' }),
    users: z.array(user).default([]).meta({ description: 'The people in it.' }),
    derive: z.boolean().default(false).meta({
      description:
        'No list: the id is a digest of the certificate name. For workloads whose CA is the directory.',
    }),
    ldap: ldapSection(path)
      .exactOptional()
      .meta({ description: 'No list: people of an LDAP server, such as Active Directory.' }),
  });
}
