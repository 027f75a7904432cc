import { X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { METHODS as KNOWN_METHODS } from 'node:http';
import { isIP } from 'node:net';
import type { Settings } from '../../config/schema.ts';
import { type AccessRule, isAtLeastAsStrict } from '../../domain/access-rule.ts';
import { getTrustDomain, isSpiffeUri } from '../../domain/certificate-uri.ts';
import {
  getPossiblyIgnoredDifferences,
  normalizePattern,
  patternCovers,
  UNKNOWN_COMPARISON,
} from '../../domain/path-comparison.ts';
import { formatRouteLimit } from '../../domain/route-limit.ts';
import { compileRules } from '../../domain/rule-matcher.ts';
import { covers, formatScope, unionScopes } from '../../domain/scope.ts';
import { isServedMethod } from '../../http/request-head.ts';
import { findClosestName } from '../../lib/closest-name.ts';
import { buildRules } from '../../server/build-from-settings.ts';
import { getPagesOrigin } from '../../server/service-paths.ts';
import type { Check } from '../check.ts';
import { checkKeyFileMode } from './files.ts';

const checkLikelyMistakes: Check = (settings) => {
  const { hosts, integrations, routes, upstreams, tokens, trustedIssuers } = settings;
  const usedUpstreams = new Set(routes.map(({ upstream }) => upstream));
  return {
    warnings: [
      ...integrations.flatMap(({ access, exchange, grants, clientSecretHashes, jwks, jwksFile, jwksUri }, index) =>
        access.length === 0 && exchange.length === 0 && !grants.includes('client')
          ? [
              clientSecretHashes.length > 0 || jwks !== undefined || (jwksFile ?? jwksUri) !== undefined
                ? `integrations[${index}].grants: does not include client, although the integration has a secret or a key, so it cannot be used`
                : `integrations[${index}].access: is empty, so this integration cannot be used`,
            ]
          : [],
      ),
      ...routes.flatMap(({ path, reportOnly }, index) =>
        reportOnly ? [`routes[${index}].reportOnly: requests to ${path} are never rejected, only logged`] : [],
      ),
      ...(hosts.others === 'refuse' && hosts.allowed.includes('*')
        ? ['hosts.others: refuse has no effect with "*" in hosts.allowed']
        : []),
      ...(routes.length === 0 ? ['routes: is empty, so every request is denied'] : []),
      ...Object.keys(upstreams).flatMap((name) =>
        usedUpstreams.has(name) ? [] : [`upstreams.${name}: no route forwards to it`],
      ),
      ...(tokens.accessLifetime > tokens.grantLifetime
        ? ['tokens.accessLifetime: is longer than tokens.grantLifetime, which ends every token sooner']
        : []),
      ...Object.entries(trustedIssuers).flatMap(([name, { maxStaleness, refreshInterval, jwksFile }]) =>
        jwksFile === undefined && maxStaleness < refreshInterval
          ? [
              `trustedIssuers.${name}.maxStaleness: is shorter than refreshInterval, so its tokens get 503 as soon as one fetch of its keys fails`,
            ]
          : [],
      ),
    ],
  };
};

/** Some way to obtain a token must lead to the routes that require one. */
const checkTokenSources: Check = (settings) => {
  const { certificates, device, integrations, routes, signIn } = settings;
  const needsOwnTokens = routes.some(
    ({ public: isPublic, issuers }) => isPublic !== true && (issuers === undefined || issuers.includes('own')),
  );
  if (!needsOwnTokens || integrations.length === 0) return {};
  const directories = Object.values(settings.directories);
  const hasCertificates = certificates.issuers.length > 0;
  const hasSignIn =
    hasCertificates ||
    Object.keys(signIn.openid).length > 0 ||
    directories.some(
      ({ users, ldap }) =>
        ldap !== undefined ||
        users.some(
          ({ disabled, passwordHash, passwordHashFile }) =>
            !disabled && (passwordHash ?? passwordHashFile) !== undefined,
        ),
    );
  const hasUsers = directories.some(hasEnabledUsers);
  const isUsable = integrations.some((integration) => {
    const { grants, exchange } = integration;
    const canUse = (grant: GrantType): boolean =>
      grants.includes(grant) && hasUsers && selectsUsers(integration, grant, settings);
    return (
      grants.includes('client') ||
      (grants.includes('exchange') && exchange.length > 0) ||
      (hasCertificates && canUse('certificate')) ||
      (hasSignIn && device.enabled && canUse('device')) ||
      (hasSignIn && canUse('code'))
    );
  });
  if (isUsable) return {};
  if (hasSignIn && directories.length > 0 && !hasUsers)
    return {
      warnings: [
        'directories: every user is disabled, and there is no other way to obtain a token: no client secret and no token exchange',
      ],
    };
  return {
    warnings: [
      hasSignIn
        ? 'integrations: none of them can obtain a token: certificate needs certificates.issuers, device needs device.enabled, both need access for an enabled user with this grant type, and exchange needs entries in exchange'
        : 'certificates.issuers: is empty, and there is no other way to obtain a token: no enabled user has a password, and there is no LDAP directory, OpenID provider, client secret or token exchange',
    ],
  };
};

type Directory = Settings['directories'][string];
type ConfiguredIntegration = Settings['integrations'][number];
type GrantType = ConfiguredIntegration['grants'][number];

const hasEnabledUsers = ({ users, derive, ldap }: Directory): boolean =>
  derive || ldap !== undefined || users.some(({ disabled }) => !disabled);

/** Is there an entry of `access` for this grant type that an enabled user can match? */
function selectsUsers({ access }: ConfiguredIntegration, grant: GrantType, { directories, signIn }: Settings): boolean {
  const hasExternalGroups =
    Object.values(directories).some(({ ldap }) => ldap !== undefined) ||
    Object.values(signIn.openid).some(({ groups }) => groups !== undefined);
  const enabledGroups = new Set(
    Object.values(directories).flatMap(({ users }) =>
      users.flatMap(({ disabled, groups }) => (disabled ? [] : groups)),
    ),
  );
  return access.some(({ grants, directory, groups, identities }) => {
    const isForGrant = grants === undefined || grants.some((type) => type === grant);
    const named = directory === undefined ? undefined : directories[directory];
    return (
      isForGrant &&
      (identities.length > 0 ||
        (named !== undefined && hasEnabledUsers(named)) ||
        groups.some((group) => hasExternalGroups || enabledGroups.has(group)))
    );
  });
}

/** SPIFFE IDs of issuers without a trust domain are refused, so their users can never sign in. */
const checkSpiffeUsers: Check = ({ certificates, directories }) => ({
  warnings: certificates.issuers.flatMap(({ identityFrom, trustDomain, directory }, index) => {
    if ((identityFrom ?? certificates.identityFrom) !== 'uri' || trustDomain !== undefined) return [];
    const { users = [] } = directories[directory ?? certificates.directory ?? ''] ?? {};
    const ids = users.flatMap(({ uri }) => (uri !== undefined && isSpiffeUri(uri) ? [uri] : []));
    const [first] = ids;
    if (first === undefined) return [];
    const more = ids.length === 1 ? '' : ` (and ${ids.length - 1} more)`;
    return [
      `certificates.issuers[${index}].trustDomain: is not set, so SPIFFE IDs of this issuer are refused, and ${first}${more} can never sign in with it; set trustDomain: ${getTrustDomain(first)} here if this CA issues for that domain`,
    ];
  }),
});

/** Which limits routes have, and what they count. */
const checkRouteLimits: Check = (settings) => {
  const { limits, listen, store, trustedProxies } = settings;
  const rules = buildRules(settings).filter(({ limits: ruleLimits }) => ruleLimits !== undefined);
  if (rules.length === 0) return {};
  const byLimits = Map.groupBy(rules, ({ limits: ruleLimits = [] }) => ruleLimits.map(formatRouteLimit).join(', and '));
  const hasSeveralProcesses = store.type === 'redis' || listen.workers !== 1;
  const countsAddresses = rules.some(({ limits: ruleLimits }) => ruleLimits?.some(({ per }) => per === 'address'));
  return {
    notes: [...byLimits].map(([text, limited]) => {
      const names = limited.slice(0, MAX_LISTED_ROUTES).map(({ name }) => name);
      const more = limited.length - names.length;
      return `at most ${text}: ${names.join(', ')}${more > 0 ? ` and ${more} more` : ''}`;
    }),
    warnings: [
      ...(hasSeveralProcesses && !limits.shared
        ? ['limits.shared: is false, so each worker and each replica applies the limits separately']
        : []),
      ...(countsAddresses && listen.behindTls && !trustedProxies.hasEntries && listen.proxyProtocol.entries.length === 0
        ? ['trustedProxies: is empty, so limits per address count all clients behind the front proxy as one']
        : []),
    ],
  };
};

const MAX_LISTED_ROUTES = 5;

/** Mistyped methods. They are no problem, because HTTP/2 requests can have any method. */
const checkMethods: Check = ({ routes }) => ({
  warnings: routes.flatMap(({ methods, cors }, index) => [
    ...listMethodWarnings(`routes[${index}].methods`, methods),
    ...listMethodWarnings(`routes[${index}].cors.methods`, cors?.methods),
  ]),
});

/** Methods that change something. */
const UNSAFE_METHODS = ['POST', 'PUT', 'PATCH', 'DELETE'] as const;

/** A route for some methods leaves the others to later routes, which may require less. */
const checkUnlistedMethods: Check = (settings) => {
  const rules = buildRules(settings);
  return { notes: rules.flatMap((rule) => listUnlistedMethods(rule, rules)) };
};

function listUnlistedMethods(rule: AccessRule, rules: readonly AccessRule[]): string[] {
  const { methods } = rule;
  if (methods === undefined) return [];
  const unlisted = UNSAFE_METHODS.filter((method) => !methods.has(method));
  const byRule = Map.groupBy(unlisted, (method) =>
    rules.find((other) => matchesPathsOf(other, rule) && other.methods?.has(method) !== false),
  );
  return [...byRule].flatMap(([other, names]) =>
    other === undefined || !isLessStrict(other, rule)
      ? []
      : [
          `${rule.name}: is for ${[...methods].join(', ')} only; requests to its paths with ${names.join(', ')} match ${other.name}, which is less strict. If that is not intended, add a route for these methods before it`,
        ],
  );
}

/**
 * Not if both require something that the other does not. WebSocket handshakes are GET requests, and limits are often meant for some
 * methods only: neither is compared.
 */
function isLessStrict(other: AccessRule, rule: AccessRule): boolean {
  const [one, two] = [
    { ...other, websocket: false, limits: [] },
    { ...rule, websocket: false, limits: [] },
  ];
  return isAtLeastAsStrict(two, one) && !isAtLeastAsStrict(one, two);
}

const matchesPathsOf = (wide: AccessRule, narrow: AccessRule): boolean =>
  (wide.host === undefined || wide.host === narrow.host) && patternCovers(wide.pattern, narrow.pattern);

const listMethodWarnings = (setting: string, methods: readonly string[] = []): string[] =>
  methods.flatMap((method) => {
    if (!isServedMethod(method)) return [`${setting}: requests with the method ${method} are always rejected (405)`];
    if (KNOWN_METHODS.includes(method)) return [];
    const closest = findClosestName(method, KNOWN_METHODS.filter(isServedMethod));
    const hint = closest === undefined ? '' : `; did you mean ${closest}?`;
    return [`${setting}: ${method} is not a known HTTP method, and HTTP/1.1 requests with it are rejected${hint}`];
  });

/** Valid settings that no request can ever satisfy. */
const checkReachability: Check = (settings) => {
  const { directories, integrations, routes, listen, trustedIssuers } = settings;
  const grantableScopes = new Map(
    Object.entries(trustedIssuers).map(([name, { scope, scopes }]) => [
      name,
      unionScopes([...Object.values(scopes), ...(scope === undefined ? [] : [scope])]),
    ]),
  );
  const groups = new Set(Object.values(directories).flatMap(({ users }) => users.flatMap((user) => user.groups)));
  const hasExternalGroups = Object.values(directories).some(({ ldap }) => ldap !== undefined);
  return {
    warnings: [
      ...routes.flatMap(({ path, requires, issuers }, index) =>
        requires === undefined ||
        requires === 'any-token' ||
        integrations.some(({ scope }) => covers(scope, requires)) ||
        issuers?.some((name) => covers(grantableScopes.get(name) ?? new Map(), requires)) === true
          ? []
          : [
              `routes[${index}].requires: no integration or trusted issuer has the scope ${formatScope(requires)}, so every request to ${path} is rejected`,
            ],
      ),
      ...routes.flatMap(({ path, audience, upstream, public: isPublic, issuers }, index) => {
        const accepted = audience ?? settings.upstreams[upstream]?.audience ?? [settings.publicUrl];
        const isOwnOnly = issuers === undefined || issuers.every((name) => name === 'own');
        return isPublic === true ||
          !isOwnOnly ||
          integrations.length === 0 ||
          integrations.some(({ audience: own = [settings.publicUrl] }) => own.some((name) => accepted.includes(name)))
          ? []
          : [
              `routes[${index}].audience: no integration issues tokens for ${accepted.join(' or ')}, so every request to ${path} is rejected`,
            ];
      }),
      ...integrations.flatMap(({ access }, index) =>
        access.flatMap((entry, at) =>
          entry.groups
            .filter((group) => !hasExternalGroups && !groups.has(group))
            .map((group) => `integrations[${index}].access[${at}].groups: no user is in "${group}"`),
        ),
      ),
      ...(listen.tls === undefined ? [] : checkServerTls(settings, listen.tls)),
    ],
  };
};

function checkServerTls(
  { publicUrl, pages }: Settings,
  tls: NonNullable<Settings['listen']['tls']>,
): readonly string[] {
  const { protocol, hostname } = new URL(publicUrl);
  const { host: pagesHost } = getPagesOrigin({ publicUrl, pages });
  const warnings =
    protocol === 'http:'
      ? ['publicUrl: is http, but the listener uses TLS: clients that connect to it need https']
      : [];
  try {
    const leaf = new X509Certificate(readFileSync(tls.certificate));
    for (const [setting, host] of [
      ['publicUrl', hostname],
      ['pages.url', pagesHost],
    ] as const) {
      const name = host?.replace(/^\[|\]$/g, '');
      if (name === undefined) continue;
      // RFC 9525 §2: clients ignore the subject. `checkIP` throws for a name.
      const isValid =
        (isIP(name) === 0 ? leaf.checkHost(name, { subject: 'never' }) : leaf.checkIP(name)) !== undefined;
      if (isValid) continue;
      const entry = `${isIP(name) === 0 ? 'DNS' : 'IP'}:${name}`;
      const isInSubject = (leaf.subject ?? '').toLowerCase().split('\n').includes(`cn=${name}`);
      warnings.push(
        isInSubject
          ? `listen.tls.certificate: has ${name}, the host of ${setting}, only as the common name of its subject, which clients ignore; request a certificate with the subjectAltName ${entry}`
          : `listen.tls.certificate: is not valid for ${name}, the host of ${setting}, and clients will reject it; request a certificate with the subjectAltName ${entry}`,
      );
    }
    warnings.push(...checkKeyFileMode('listen.tls.key', tls.key));
  } catch {
    // Reported by `checkCertificates`.
  }
  return warnings;
}

/**
 * Routes on which a browser can open an HTML document of the API on the origin of the pages. A navigation has no bearer
 * token, so only routes that let requests pass without one can serve a document.
 */
const checkPagesOrigin: Check = ({ publicUrl, pages, device, integrations, routes }) => {
  const usesPages = device.enabled && integrations.some(({ grants }) => grants.includes('device'));
  if (pages.url !== undefined || !usesPages) return {};
  const { hostname } = new URL(publicUrl);
  const sharedRoutes = routes.flatMap(({ public: isPublic, reportOnly, methods, host, path }, index) => {
    const isNavigable = methods === undefined || methods.includes('GET') || methods.includes('POST');
    const isShared = host === undefined || host.toLowerCase() === hostname;
    return (isPublic === true || reportOnly) && isNavigable && isShared ? [`routes[${index}] (${path})`] : [];
  });
  if (sharedRoutes.length === 0) return {};
  return {
    warnings: [
      `pages.url: is not set, so the pages share their origin with ${sharedRoutes.join(', ')}; a script in an HTML response from there could act on the pages; give the pages a separate host, or set shared if the API serves no HTML`,
    ],
  };
};

/** Requests that are rejected because their path is another spelling of the path of a stricter route. */
const checkPathVariants: Check = (settings) => {
  const { conflicts } = compileRules(buildRules(settings));
  const warnings = conflicts.flatMap(({ rule, stricter }) => {
    const ignoredDifferences = getPossiblyIgnoredDifferences(rule.paths ?? UNKNOWN_COMPARISON);
    const wide = normalizePattern(stricter.pattern, ignoredDifferences);
    const narrow = normalizePattern(rule.pattern, ignoredDifferences);
    return patternCovers(wide, narrow)
      ? [
          `${rule.name}: differs from ${stricter.name} only in letter case or by a trailing slash and is less strict, so its requests are rejected; set upstreams.${rule.upstream}.paths if the API distinguishes such paths`,
        ]
      : [];
  });
  const undeclared = conflicts.filter(({ rule }) =>
    Object.values(rule.paths ?? UNKNOWN_COMPARISON).includes('unknown'),
  );
  const byUpstream = Map.groupBy(undeclared, ({ rule }) => rule.upstream);
  const notes = [...byUpstream].map(([name, [first, ...more]]) => {
    const morePairs =
      more.length === 0 ? '' : ` (and ${more.length} more such ${more.length === 1 ? 'pair' : 'pairs'})`;
    return `upstreams.${name}.paths: requests are rejected if their path differs from ${first?.stricter.name} only in letter case or by a trailing slash, because the less strict ${first?.rule.name} would forward them${morePairs}. If the API treats such paths as different, set letterCase and trailingSlash there to distinct; if it treats them as the same, to same`;
  });
  return { warnings, notes };
};

export const SETTINGS_CHECKS: readonly Check[] = [
  checkLikelyMistakes,
  checkTokenSources,
  checkSpiffeUsers,
  checkMethods,
  checkUnlistedMethods,
  checkReachability,
  checkPagesOrigin,
  checkPathVariants,
  checkRouteLimits,
];
