import * as z from 'zod';
import { GRANT_TYPES, TOKEN_FORMATS } from '../../domain/integration.ts';
import { findRedirectUriProblem } from '../../domain/redirect-uri.ts';
import { findExcess, formatScope } from '../../domain/scope.ts';
import { parseSubjectPattern } from '../../domain/subject-pattern.ts';
import { CLIENT_LABEL, isIdentityId, isIdentityLabel } from '../../domain/user.ts';
import { crossCheck, formatKnownNames, type ParsedSections, type ReportProblem } from '../cross-check.ts';
import type { SettingPath } from '../setting-path.ts';
import {
  audience,
  choice,
  codeLifetime,
  group,
  httpsOrLoopback,
  lifetime,
  list,
  nonEmptyList,
  nonEmptyText,
  off,
  optional,
  type PathSchema,
  record,
  scope,
  shortText,
  text,
  textUpTo,
} from '../units.ts';
import { createDirectoryCheck, getIssuerName } from './identity.ts';
import { claim } from './trusted-issuers.ts';

/** `label:id`, as in tokens and logs, or with the id of a configured user as it is in the configuration. */
function isIdentity(text: string): boolean {
  const colon = text.indexOf(':');
  return colon > 0 && isIdentityLabel(text.slice(0, colon)) && colon + 1 < text.length;
}

const grantType = z.enum(GRANT_TYPES);

const DOCUMENT_HOST = /^(?:\*\.)?[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[1-9][0-9]{0,4})?$/;

const redirectUri = textUpTo(512)
  .meta({ title: 'redirect URI' })
  .superRefine((text, context) => {
    const problem = findRedirectUriProblem(text);
    if (problem !== undefined) context.addIssue({ code: 'custom', message: problem });
  });

/** Exact, or with `*`. */
const subjectPattern = z
  .string()
  .max(512)
  .meta({ title: 'subject pattern', examples: ['system:serviceaccount:shop:*'] })
  .transform((text, context) => {
    const parsed = parseSubjectPattern(text);
    if (parsed.ok) return parsed.pattern;
    context.addIssue({ code: 'custom', message: parsed.problem });
    return z.NEVER;
  });

/** RFC 7517 §5. */
const jwkSet = z.strictObject({
  keys: z
    .array(z.record(z.string(), z.union([z.string(), z.boolean(), z.array(z.string())])))
    .min(1)
    .max(16)
    .describe('The keys, as JWKs.'),
});

/** Tokens of trusted issuers that become grants. */
const exchangeEntry = () =>
  z.strictObject({
    issuer: nonEmptyText.describe('The issuer, by its name in `trustedIssuers`.'),
    subject: subjectPattern.describe(
      'Whose tokens: the claim that `trustedIssuers.<name>.claims.identity` names, `sub` by default. `*` matches one or more characters other than `:` and `/`; `**` at the end matches everything that follows.',
    ),
    claims: record(claim, z.union([z.boolean(), subjectPattern])).describe(
      'Claims that the token must have, by name or JSON pointer: a truth value, or a pattern like `subject`. In a list, one entry must match.',
    ),
    scope: optional(scope).describe('Only this part of the scope of the integration.'),
    refresh: off.describe('Return a refresh token. If several entries match, all must allow it.'),
    once: off.describe('Accept each token once, by its `jti`; tokens without one are refused.'),
  });

/** Users and workloads that may use something. */
const accessEntry = () =>
  z.strictObject({
    groups: list(nonEmptyText).describe('Members of these groups.'),
    identities: list(z.string().max(512).refine(isIdentity, 'must be label:id')).meta({
      description:
        'These identities, each as `label:id`: the id as in tokens and logs, or as in `directories.*.users[].id`.',
      examples: [['local:{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}']],
    }),
    directory: optional(z.string()).describe('All of this directory.'),
    scope: optional(scope).describe('Only this part of the scope of the integration.'),
    grants: optional(nonEmptyList(z.enum(['certificate', 'device', 'code']))).describe('Only these grant types.'),
  });

/** `integrations[]`: a registered client. */
export const integrationSection = (path: PathSchema) =>
  z.strictObject({
    clientId: textUpTo(256)
      .regex(/^[\x21-\x7e]+$/, 'must be printable ASCII without spaces')
      .describe('Compared exactly, case included.'),
    name: optional(shortText).describe('Display name. Default: the client id.'),
    scope: scope.describe('The largest scope of its tokens.'),
    grants: nonEmptyList(grantType)
      .default(['certificate', 'device', 'exchange'])
      .describe(
        'Allowed grant types: a client certificate, device authorization, a token from a trusted issuer (`exchange`), the client itself with its secret or key (`client`), and the authorization code with PKCE (`code`, needs `redirectUris`).',
      ),
    redirectUris: z
      .array(redirectUri)
      .max(32)
      .default([])
      .meta({
        description:
          'Where users return to after they have approved or denied the app, with `grants: [code]`: `https` URLs, loopback URLs (any port), or private-use schemes with a dot. Compared exactly.',
        examples: [['https://app.example.test/callback', 'http://127.0.0.1/callback', 'com.example.app:/callback']],
      }),
    partialScope: off.describe(
      'With `grants: [code]`, if a client requests more than the integration or the user allows, ask the user for the part that is allowed instead of refusing the request. For clients that request every scope in the metadata of the API, as those of the Model Context Protocol do. Always true with `clientDocuments`.',
    ),
    access: list(accessEntry()).describe(
      'Who may use it. A caller gets the scopes of all entries that match; without entries, no one can use the integration.',
    ),
    audience: optional(audience).describe(
      'The APIs that its access tokens can be for (`aud`), the default first; a client chooses with `resource` or `audience` (RFC 8707). If omitted, `publicUrl`.',
    ),
    clientDocuments: group({
      hosts: z
        .array(text(DOCUMENT_HOST, 'must be a host such as app.example.test, *.example.test or app.example.test:8443'))
        .max(64)
        .default([])
        .meta({
          description: 'Hosts, optionally with a port; `*.example.test` is every host below it. If empty, none.',
          examples: [['claude.ai', '*.example.test']],
        }),
      privateAddresses: off.describe(
        'Also read documents of hosts with private addresses, such as those of your own network.',
      ),
      ca: optional(path).describe('CA certificates for these hosts, PEM.'),
    }).describe(
      'Accept clients that are not registered and whose client id is an https URL on one of these hosts, with the settings of this integration and `grants: [code]`. Their redirect URIs are in the JSON document at this URL (client ID metadata document).',
    ),
    clientSecretHashes: z
      .array(text(/^sha256:[A-Za-z0-9_-]{43}$/, 'must be a hash that gatehouse hash-secret prints'))
      .max(2)
      .default([])
      .describe(
        'SHA-256 of its client secrets, from `gatehouse hash-secret`: one, or two while a secret is replaced. With a secret or a key, the integration must authenticate at the OAuth endpoints.',
      ),
    jwks: optional(z.union([jwkSet, z.string()])).describe(
      'Its public keys for `private_key_jwt`: a JWK Set, or its JSON text.',
    ),
    jwksFile: optional(path).describe('File that contains these keys.'),
    jwksUri: optional(httpsOrLoopback).describe('Where these keys are fetched from.'),
    jwksCa: optional(path).describe('CA certificates for `jwksUri`, PEM.'),
    exchange: list(exchangeEntry()).describe(
      'Whose tokens from trusted issuers can be exchanged for a grant (RFC 8693, RFC 7523). A token gets the scopes of all entries that match; without entries, none can be exchanged.',
    ),
    accessLifetime: optional(lifetime).describe('Lifetime of its access tokens. Default: `tokens.accessLifetime`.'),
    grantLifetime: optional(lifetime).describe(
      'How long its grants can be refreshed. Default: `tokens.grantLifetime`.',
    ),
    device: group({
      codeLifetime: optional(codeLifetime).describe('Lifetime of its device codes. Default: `device.codeLifetime`.'),
      interval: optional(lifetime).describe(
        'Minimum interval between polls of its devices. Default: `device.interval`.',
      ),
    }),
    issuers: optional(nonEmptyList(nonEmptyText)).describe('Only client certificates of these issuers, by name.'),
    tokenFormat: optional(z.enum(TOKEN_FORMATS)).describe('Format of its access tokens. Default: `tokens.format`.'),
    bindToCertificate: off.describe(
      'Tokens are valid only with the client certificate they were issued for (RFC 8705), while it is valid and not revoked. All grant types need one then, also `device` and `code`.',
    ),
    dpop: choice(['optional', 'required']).describe(
      '`required`: tokens are issued and refreshed only with a DPoP proof (RFC 9449), at oauth2/token.',
    ),
  });

/** `introspection`: who may introspect access tokens. */
export const introspectionSection = () =>
  z.strictObject({
    requires: optional(scope).describe(
      'Callers with an access token of this scope may introspect, and so may clients that can obtain one for themselves (`grants: [client]`), with their secret or key.',
    ),
    access: list(accessEntry().pick({ groups: true, identities: true, directory: true })).describe(
      'Callers with a client certificate of one of these may introspect.',
    ),
  });

interface AccessEntry {
  readonly directory?: string;
  readonly identities: readonly string[];
  readonly groups: readonly string[];
}

/** Checks that an access entry selects someone, and refers only to existing directories. */
function createAccessCheck(directories: ParsedSections['directories'], report: ReportProblem) {
  const checkReference = createDirectoryCheck(directories, report);
  const labels = new Set(Object.values(directories).map((directory) => directory?.label));
  return (entry: AccessEntry, path: SettingPath): void => {
    checkReference(entry.directory, [...path, 'directory']);
    if (entry.directory === undefined && entry.identities.length === 0 && entry.groups.length === 0)
      report(path, 'selects no one; set groups, identities or directory');
    // Without the label of an invalid directory nothing can be said about the others.
    if (labels.has(undefined)) return;
    entry.identities.forEach((identity, index) => {
      const colon = identity.indexOf(':');
      const [label, id] = [identity.slice(0, colon), identity.slice(colon + 1)];
      const directory = Object.values(directories).find((one) => one?.label === label);
      if (!labels.has(label)) report([...path, 'identities', index], `no directory has the label of "${identity}"`);
      else if (!isIdentityId(id) && directory?.users.some((user) => user.id === id) !== true)
        report(
          [...path, 'identities', index],
          `"${id}" is neither a braced GUID, nor a hex string, nor the id of a user in this directory`,
        );
    });
  };
}

export const integrationRules = [
  crossCheck(['integrations', 'trustedIssuers'], ({ integrations, trustedIssuers }, report) => {
    // Clients of trusted issuers are called <issuer>/<client> in `routes[].clients`, revocations and limits.
    integrations.forEach((integration, index) => {
      const [issuer = '', rest] = integration?.clientId.split('/', 2) ?? [];
      if (rest !== undefined && Object.hasOwn(trustedIssuers, issuer))
        report(
          ['integrations', index, 'clientId'],
          `looks like a client of the trusted issuer "${issuer}"; choose another one`,
        );
    });
  }),
  crossCheck(['introspection', 'directories'], ({ introspection, directories }, report) => {
    const checkEntry = createAccessCheck(directories, report);
    introspection.access.forEach((entry, index) => checkEntry(entry, ['introspection', 'access', index]));
  }),
  crossCheck(['integrations', 'directories'], ({ integrations, directories }, report) => {
    const checkEntry = createAccessCheck(directories, report);
    integrations.forEach((integration, index) =>
      integration?.access.forEach((entry, at) => checkEntry(entry, ['integrations', index, 'access', at])),
    );
  }),
  crossCheck(['integrations'], ({ integrations }, report) => {
    const clients = new Set<string>();
    integrations.forEach((integration, index) => {
      if (!integration) return;
      if (clients.has(integration.clientId))
        report(['integrations', index, 'clientId'], `"${integration.clientId}" is already used by another integration`);
      clients.add(integration.clientId);
      integration.access.forEach((entry, at) => {
        const excess = entry.scope && findExcess(entry.scope, integration.scope);
        if (excess)
          report(
            ['integrations', index, 'access', at, 'scope'],
            `includes ${formatScope(excess)}, which the scope of the integration does not; add it there, or remove it here`,
          );
      });
    });
  }),
  crossCheck(['integrations'], ({ integrations }, report) => {
    integrations.forEach((integration, index) => {
      if (!integration) return;
      const { grants, redirectUris, partialScope, clientDocuments } = integration;
      const { clientSecretHashes, jwks, jwksUri, jwksCa } = integration;
      const path = ['integrations', index];
      const hasKeys = jwks !== undefined || jwksUri !== undefined;
      if (jwks !== undefined && jwksUri !== undefined)
        report([...path, 'jwksUri'], 'cannot be combined with jwks or jwksFile');
      if (jwksCa !== undefined && jwksUri === undefined) report([...path, 'jwksCa'], 'has no effect without jwksUri');
      if (grants.includes('client') && clientSecretHashes.length === 0 && !hasKeys)
        report([...path, 'grants'], 'client needs clientSecretHashes, jwks, jwksFile or jwksUri');
      const hasDocuments = clientDocuments.hosts.length > 0;
      if (grants.includes('code') && redirectUris.length === 0 && !hasDocuments)
        report([...path, 'grants'], 'code needs redirectUris');
      if (!grants.includes('code') && hasDocuments)
        report([...path, 'clientDocuments', 'hosts'], 'has no effect: grants does not include code');
      if (!grants.includes('code') && partialScope)
        report([...path, 'partialScope'], 'has no effect: grants does not include code');
      if (!grants.includes('code') && redirectUris.length > 0)
        report([...path, 'redirectUris'], 'has no effect: grants does not include code');
    });
  }),
  crossCheck(['integrations', 'dpop'], ({ integrations, dpop }, report) => {
    integrations.forEach((integration, index) => {
      if (integration?.dpop === 'required' && !dpop.enabled)
        report(['integrations', index, 'dpop'], 'required needs dpop.enabled: true');
    });
  }),
  crossCheck(
    ['integrations', 'directories', 'trustedIssuers'],
    ({ integrations, directories, trustedIssuers }, report) => {
      if (!integrations.some((integration) => integration?.grants.includes('client'))) return;
      // Otherwise one source could assert the identities of another.
      const message = `is the label of clients that act for themselves (grants: [client]); choose another one`;
      for (const [name, entry] of Object.entries(directories))
        if (entry?.label === CLIENT_LABEL) report(['directories', name, 'label'], message);
      for (const [name, entry] of Object.entries(trustedIssuers))
        if ((entry?.label ?? name) === CLIENT_LABEL) report(['trustedIssuers', name, 'label'], message);
    },
  ),
  crossCheck(['integrations', 'trustedIssuers'], ({ integrations, trustedIssuers }, report) => {
    integrations.forEach((integration, index) => {
      if (!integration) return;
      const path = ['integrations', index, 'exchange'];
      if (integration.exchange.length > 0 && !integration.grants.includes('exchange'))
        report(path, 'has no effect: grants does not include exchange');
      integration.exchange.forEach((entry, at) => {
        if (!Object.hasOwn(trustedIssuers, entry.issuer))
          report(
            [...path, at, 'issuer'],
            `no such issuer: "${entry.issuer}"${formatKnownNames(Object.keys(trustedIssuers))}`,
          );
        const excess = entry.scope && findExcess(entry.scope, integration.scope);
        if (excess)
          report(
            [...path, at, 'scope'],
            `includes ${formatScope(excess)}, which the scope of the integration does not; add it there, or remove it here`,
          );
      });
    });
  }),
  crossCheck(['integrations', 'certificates'], ({ integrations, certificates }, report) => {
    const issuers = new Set(certificates.issuers.map(getIssuerName));
    integrations.forEach((integration, index) =>
      integration?.issuers?.forEach((name, at) => {
        if (!issuers.has(name))
          report(['integrations', index, 'issuers', at], `no such issuer: "${name}"${formatKnownNames(issuers)}`);
      }),
    );
  }),
];
