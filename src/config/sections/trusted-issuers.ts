import * as z from 'zod';
import { isIdentityLabel } from '../../domain/user.ts';
import { crossCheck, formatKnownNames } from '../cross-check.ts';
import {
  audience,
  durationBetween,
  group,
  httpsOrLoopback,
  issuerUrl,
  nonEmptyList,
  off,
  optional,
  type PathSchema,
  record,
  scope,
  text,
  textUpTo,
} from '../units.ts';

/** RFC 7518 §3.1, RFC 8037: signatures that are verified with a public key. */
const ALGORITHMS = [
  'RS256',
  'RS384',
  'RS512',
  'PS256',
  'PS384',
  'PS512',
  'ES256',
  'ES384',
  'ES512',
  'EdDSA',
  'Ed25519',
] as const;

/** A claim by its name, or by a JSON pointer. */
export const claim = textUpTo(128).refine(
  (text) => text !== '/',
  'must be the name of a claim, or a JSON pointer such as /realm_access/roles',
);

/** `trustedIssuers.<name>`: whose access tokens are accepted beside those of gatehouse. */
export const trustedIssuerSection = (path: PathSchema) =>
  z.strictObject({
    issuer: issuerUrl.describe('The `iss` claim of its tokens, exactly.'),
    audience: audience.describe('Accepted values of the `aud` claim. A token for another API is refused.'),
    jwksUri: optional(httpsOrLoopback).describe(
      'Where its keys are. If omitted, they are found by discovery (OpenID Connect, RFC 8414).',
    ),
    jwksFile: optional(path).describe('A file with its keys, instead of fetching them.'),
    algorithms: nonEmptyList(z.enum(ALGORITHMS))
      .prefault(['RS256', 'PS256', 'ES256', 'EdDSA'])
      .describe('Accepted signature algorithms.'),
    tokenType: z
      .enum(['at+jwt', 'JWT', 'any'])
      .default('any')
      .describe('Accepted `typ` of the token header: `at+jwt` (RFC 9068), `JWT` (also without `typ`), or both.'),
    clockTolerance: durationBetween('0s', '60s', '0s').describe('By how much its clock may differ.'),
    requiredClaims: record(textUpTo(128), z.union([z.string(), z.literal(true)])).describe(
      'Claims that a token must have: with this value, or with any value (`true`).',
    ),
    label: optional(text(isIdentityLabel, 'must be letters, digits, dots, dashes and underscores')).describe(
      'The part of identities before the colon. If omitted, the name of the issuer here.',
    ),
    claims: group({
      identity: claim.default('sub').describe('Claim with the stable id of the caller.'),
      name: claim.default('preferred_username').describe('Claim with the user name.'),
      email: claim
        .default('email')
        .describe('Claim with the email address. Ignored unless `email_verified` is true; see `trustEmail`.'),
      groups: claim.default('groups').describe('Claim with a list of groups.'),
      clientId: nonEmptyList(claim)
        .prefault(['azp', 'client_id', 'appid'])
        .describe('Claims with the client id; the first that the token has.'),
      scope: z
        .array(claim)
        .prefault(['scope', 'scp', 'roles'])
        .describe('Claims with scopes or roles, as a list or as words separated by spaces.'),
    }).describe('What its claims mean: names of claims, or JSON pointers such as `/realm_access/roles`.'),
    trustEmail: off.describe(
      'Use its email addresses even if its tokens have no `email_verified`, or `claims.email` names another claim. Only for issuers whose users cannot choose their address.',
    ),
    scopes: record(textUpTo(256), scope).describe(
      'Maps its scopes and roles to gatehouse scopes. Others grant nothing.',
    ),
    scope: optional(scope).describe('The scope that every token from this issuer has, for issuers without scopes.'),
    logout: optional(
      z.strictObject({
        audience: audience.describe(
          'Accepted values of the `aud` claim: the ids of the clients at the issuer that notify gatehouse.',
        ),
        tokenLifetime: durationBetween('1m', '30d', '1d').describe(
          'The longest lifetime of its access tokens. A logout is remembered for this long, and a token is not accepted for longer.',
        ),
      }),
    ).describe(
      'Accept its logout tokens (oauth2/backchannel_logout, OpenID Connect Back-Channel Logout). If omitted, they are refused.',
    ),
    introspection: optional(
      z.strictObject({
        url: httpsOrLoopback.describe('Its introspection endpoint (RFC 7662). Tokens are sent there only.'),
        clientId: textUpTo(512).describe('Client id of gatehouse at the issuer.'),
        clientSecret: optional(textUpTo(1_024)).describe('Client secret, sent with HTTP Basic authentication.'),
        clientSecretFile: optional(path).describe('File that contains the secret.'),
        tokenPrefix: optional(
          text(/^[A-Za-z0-9._~+/-]{1,64}$/, 'must be 1 to 64 characters of a bearer token'),
        ).describe(
          'Prefix of its opaque tokens. Required if several issuers have `introspection`. If omitted, every token that is neither a JWT nor issued by gatehouse is treated as one of its tokens.',
        ),
        cacheLifetime: durationBetween('1s', '5m', '30s').describe(
          'How long a result is used: a token that the issuer revokes is accepted for this long.',
        ),
        maxStaleness: durationBetween('0s', '5m', '30s').describe(
          'How much longer an active result is used while the introspection endpoint fails; afterwards 503. Revocations at gatehouse apply immediately.',
        ),
      }),
    ).describe('Accept its opaque tokens by asking its introspection endpoint. If omitted, only JWTs are accepted.'),
    refreshInterval: durationBetween('10s', '1d', '10m').describe('How often its keys are fetched.'),
    cooldown: durationBetween('1s', '1h', '30s').describe(
      'How often unknown keys can cause a fetch: three times in a row, then once in this time.',
    ),
    maxStaleness: durationBetween('0s', '7d', '1h').describe(
      'How old the last keys may be while they cannot be fetched; afterwards 503. `gatehouse check` warns if it is shorter than `refreshInterval`.',
    ),
    timeout: durationBetween('1s', '60s', '5s').describe('Time limit for fetching the keys and for an introspection.'),
    ca: optional(path).describe('CA certificates of the issuer, PEM.'),
    certificate: optional(path).describe(
      'Client certificate for fetching, PEM. Sent to the host of `jwksUri` or, without it, of `issuer`.',
    ),
    key: optional(path).describe('Private key of that certificate, PEM.'),
    bearerTokenFile: optional(path).meta({
      description:
        'A file with a bearer token for fetching, read before each request: for a Kubernetes API server, the token of the pod. Sent to the host of `jwksUri` or, without it, of `issuer`.',
      readAt: 'use',
    }),
  });

export const trustedIssuerRules = [
  crossCheck(['trustedIssuers', 'directories', 'publicUrl'], ({ trustedIssuers, directories, publicUrl }, report) => {
    const labels = new Map(Object.entries(directories).map(([name, entry]) => [entry?.label, `directories.${name}`]));
    const issuers = new Map<string, string>();
    for (const [name, entry] of Object.entries(trustedIssuers)) {
      if (entry === undefined) continue;
      const path = ['trustedIssuers', name];
      if (name === 'own') report(path, 'is the name of gatehouse’s own tokens; choose another');
      if (entry.issuer === publicUrl)
        report([...path, 'issuer'], 'is publicUrl; gatehouse’s own tokens are accepted without being listed here');
      const label = entry.label ?? name;
      const other = labels.get(label);
      // Otherwise one source could assert the identities of another.
      if (other !== undefined) report([...path, 'label'], `"${label}" is already the label of ${other}`);
      labels.set(label, `trustedIssuers.${name}`);
      const same = issuers.get(entry.issuer);
      if (same !== undefined) report([...path, 'issuer'], `is already the issuer of trustedIssuers.${same}`);
      issuers.set(entry.issuer, name);
      if (entry.jwksUri !== undefined && entry.jwksFile !== undefined)
        report([...path, 'jwksFile'], 'cannot be combined with jwksUri');
      if ((entry.certificate === undefined) !== (entry.key === undefined))
        report([...path, 'key'], 'certificate and key belong together');
    }
  }),
  crossCheck(['trustedIssuers'], ({ trustedIssuers }, report) => {
    const introspecting = Object.entries(trustedIssuers).flatMap(([name, entry]) =>
      entry?.introspection === undefined ? [] : [{ name, ...entry.introspection }],
    );
    for (const { name, tokenPrefix, clientSecret } of introspecting) {
      const path = ['trustedIssuers', name, 'introspection'];
      if (clientSecret === undefined) report([...path, 'clientSecret'], 'or clientSecretFile is required');
      const others = introspecting.filter((other) => other.name !== name);
      if (others.length > 0 && tokenPrefix === undefined)
        report([...path, 'tokenPrefix'], 'is required where several issuers have introspection');
      // A token must have one issuer. Equal prefixes are reported once.
      const overlapping = others.find(
        (other) =>
          other.tokenPrefix !== undefined &&
          tokenPrefix?.startsWith(other.tokenPrefix) === true &&
          (other.tokenPrefix !== tokenPrefix || other.name < name),
      );
      if (overlapping !== undefined)
        report(
          [...path, 'tokenPrefix'],
          `begins with the tokenPrefix of trustedIssuers.${overlapping.name}; choose prefixes that exclude each other`,
        );
    }
  }),
  crossCheck(['routes', 'trustedIssuers'], ({ routes, trustedIssuers }, report) => {
    const names = ['own', ...Object.keys(trustedIssuers)];
    routes.forEach((route, index) => {
      if (route?.public && route.issuers)
        report(['routes', index, 'issuers'], 'has no effect on a public route; remove it');
      route?.issuers?.forEach((name, at) => {
        if (!names.includes(name))
          report(['routes', index, 'issuers', at], `no such issuer: "${name}"${formatKnownNames(names)}`);
      });
    });
  }),
];
