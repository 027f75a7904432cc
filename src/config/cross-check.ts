import { parsePattern } from '../domain/access-rule.ts';
import { ignoredBy, type PathReading, patternCovers, respelledPattern } from '../domain/path-spelling.ts';
import { hostName } from '../domain/rule-matcher.ts';
import { excessOf, type Scope, writeScope } from '../domain/scope.ts';
import { foldedName, foldedNames } from '../http/folded-name.ts';
import { type LdapFacts, ldapProblems } from './sections/ldap.ts';
import { type ObservabilitySections, observabilityProblems } from './sections/observability.ts';
import { storeProblems } from './sections/store.ts';
import type { SettingPath } from './setting-path.ts';

/**
 * What the cross-check looks at; the whole of the settings has more. A section, or an entry of one, is undefined
 * when its own problems must be solved first: then nothing that depends on it is claimed.
 */
export interface SoundSettings extends ObservabilitySections {
  readonly publicUrl?: string;
  readonly listen?: {
    readonly tls?: unknown;
    readonly behindTls: boolean;
    readonly host: string;
    readonly port: number;
  };
  readonly admin?: { readonly host: string; readonly port: number };
  readonly store?: Parameters<typeof storeProblems>[0];
  readonly certificates?: {
    readonly issuers: readonly {
      readonly file: string;
      readonly name?: string;
      readonly directory?: string;
    }[];
    readonly directory?: string;
    readonly forwardedFrom?: { readonly some: boolean };
    readonly forwardedHeader?: string;
  };
  readonly device?: { readonly codeLifetime: number; readonly interval: number };
  readonly directories?: Readonly<
    Record<
      string,
      | {
          readonly label: string;
          readonly derive: boolean;
          readonly users: readonly DirectoryUser[];
          readonly ldap?: LdapFacts;
        }
      | undefined
    >
  >;
  readonly signIn?: {
    readonly openid: Readonly<Record<string, { readonly directory: string; readonly means: string }>>;
  };
  readonly introspection?: { readonly access: readonly AccessEntry[] };
  readonly integrations?: readonly (Integration | undefined)[];
  readonly upstreams?: Readonly<
    Record<string, { readonly assertion?: Assertion; readonly paths?: PathReading } | undefined>
  >;
  readonly routes?: readonly (Route | undefined)[];
  readonly service?: { readonly paths: readonly string[] };
  readonly headers?: Readonly<Record<string, string>>;
  readonly pages?: { readonly url?: string };
}

interface Assertion {
  readonly header: string;
  readonly audience?: string;
}

interface AccessEntry {
  readonly directory?: string;
  readonly identities: readonly string[];
  readonly groups: readonly string[];
  readonly scope?: Scope;
}

interface Integration {
  readonly clientId: string;
  readonly scope: Scope;
  readonly issuers?: readonly string[];
  readonly access: readonly AccessEntry[];
}

interface Route {
  readonly path: string;
  readonly host?: string;
  readonly methods?: readonly string[];
  readonly public?: true;
  readonly requires?: unknown;
  readonly clients?: readonly string[];
  readonly upstream: string;
  readonly stripPrefix?: string;
  readonly encodedSlash: boolean;
  readonly websocket: boolean;
  readonly reportOnly: boolean;
}

interface DirectoryUser {
  readonly id: string;
  readonly name: string;
  readonly commonName?: string;
  readonly email?: string;
  readonly userPrincipalName?: string;
}

type Tell = (path: SettingPath, message: string) => void;

export const issuerName = (issuer: { readonly file: string; readonly name?: string }): string =>
  issuer.name ?? (issuer.file.split('/').at(-1) ?? issuer.file).replace(/\.[^.]+$/, '');

/** What no single setting can know: names that must exist elsewhere, and settings that contradict each other. */
export function crossCheck(settings: SoundSettings, tell: Tell): void {
  checkListeners(settings, tell);
  for (const { path, message } of observabilityProblems(settings)) tell(path, message);
  for (const { setting, message } of settings.store ? storeProblems(settings.store) : [])
    tell(['store', setting], message);
  checkPollInterval(settings, tell);
  checkDirectories(settings, tell);
  checkIssuers(settings, tell);
  checkProviders(settings, tell);
  checkIntegrations(settings, tell);
  checkRoutes(settings, tell);
  checkHeaders(settings, tell);
  checkPages(settings, tell);
}

function checkListeners({ listen, admin }: SoundSettings, tell: Tell): void {
  if (!listen) return;
  if (listen.tls === undefined && !listen.behindTls)
    tell(
      ['listen', 'tls'],
      'is missing; without it set listen.behindTls: true, and let something in front end TLS',
    );
  if (listen.tls !== undefined && listen.behindTls)
    tell(['listen', 'behindTls'], 'contradicts listen.tls; keep one of them');
  const anywhere = ['0.0.0.0', '::'];
  const shared =
    admin && (admin.host === listen.host || anywhere.includes(admin.host) || anywhere.includes(listen.host));
  if (admin && shared && listen.port === admin.port && listen.port !== 0)
    tell(
      ['admin', 'port'],
      `is ${admin.port}, which is listen.port too; give the admin listener another one`,
    );
}

function checkPollInterval({ device }: SoundSettings, tell: Tell): void {
  if (device && device.interval > device.codeLifetime)
    tell(['device', 'interval'], 'is longer than device.codeLifetime; a device could never ask');
}

function checkDirectories({ directories = {} }: SoundSettings, tell: Tell): void {
  const labels = new Set<string>();
  for (const [name, directory] of Object.entries(directories)) {
    if (!directory) continue;
    const path = ['directories', name];
    if (labels.has(directory.label))
      tell([...path, 'label'], `"${directory.label}" is the label of another directory`);
    labels.add(directory.label);
    if (directory.derive && directory.users.length > 0)
      tell([...path, 'users'], 'cannot stand beside derive: true');
    if (directory.ldap !== undefined && (directory.derive || directory.users.length > 0))
      tell([...path, 'ldap'], 'cannot stand beside users or derive: true');
    for (const { setting, message } of directory.ldap ? ldapProblems(directory.ldap) : [])
      tell([...path, 'ldap', setting], message);
    const seen = new Map<string, Set<string>>();
    directory.users.forEach((user, index) => {
      for (const field of ['id', 'name', 'commonName', 'email', 'userPrincipalName'] as const) {
        const value = user[field];
        if (value === undefined) continue;
        const taken = seen.get(field) ?? new Set<string>();
        seen.set(field, taken);
        const folded = field === 'commonName' ? value : value.toLowerCase();
        if (taken.has(folded))
          tell([...path, 'users', index, field], `"${value}" belongs to another user too`);
        taken.add(folded);
      }
    });
  }
}

function directoryCheck({ directories }: SoundSettings, tell: Tell) {
  return (name: string | undefined, path: SettingPath): void => {
    if (name !== undefined && directories && !Object.hasOwn(directories, name))
      tell(path, `no such directory: "${name}"${listed(Object.keys(directories))}`);
  };
}

function checkIssuers(settings: SoundSettings, tell: Tell): void {
  const { certificates } = settings;
  if (!certificates) return;
  if (certificates.forwardedFrom?.some === true && certificates.forwardedHeader === undefined)
    tell(
      ['certificates', 'forwardedHeader'],
      'is missing; name the one header in which the peers in certificates.forwardedFrom forward the client certificate',
    );
  const knownDirectory = directoryCheck(settings, tell);
  knownDirectory(certificates.directory, ['certificates', 'directory']);
  const names = new Set<string>();
  certificates.issuers.forEach((issuer, index) => {
    const path = ['certificates', 'issuers', index];
    knownDirectory(issuer.directory, [...path, 'directory']);
    if (issuer.directory === undefined && certificates.directory === undefined)
      tell([...path, 'directory'], 'is missing; set it here or in certificates.directory');
    const name = issuerName(issuer);
    if (names.has(name)) tell([...path, 'name'], `"${name}" names two issuers; give them names of their own`);
    names.add(name);
  });
}

function checkProviders(settings: SoundSettings, tell: Tell): void {
  const knownDirectory = directoryCheck(settings, tell);
  for (const [name, provider] of Object.entries(settings.signIn?.openid ?? {})) {
    const path = ['signIn', 'openid', name];
    knownDirectory(provider.directory, [...path, 'directory']);
    const directory = settings.directories?.[provider.directory];
    if (directory === undefined) continue;
    if (directory.derive && provider.means !== 'subject')
      tell([...path, 'means'], `must be subject: "${provider.directory}" has no list to look in`);
    if (!directory.derive && provider.means === 'subject')
      tell(
        [...path, 'means'],
        `cannot be subject: people of "${provider.directory}" are listed under other names`,
      );
  }
}

/** Does an access entry name anybody, and only whom a directory may know? */
function accessCheck(settings: SoundSettings, tell: Tell) {
  const knownDirectory = directoryCheck(settings, tell);
  const directories = settings.directories && Object.values(settings.directories);
  const labels = directories?.every((directory) => directory !== undefined)
    ? new Set(directories.map(({ label }) => label))
    : undefined;
  return (entry: AccessEntry, path: SettingPath): void => {
    knownDirectory(entry.directory, [...path, 'directory']);
    if (entry.directory === undefined && entry.identities.length === 0 && entry.groups.length === 0)
      tell(path, 'names nobody; give groups, identities or directory');
    entry.identities.forEach((identity, which) => {
      if (labels && !labels.has(identity.slice(0, identity.indexOf(':'))))
        tell([...path, 'identities', which], `no directory has the label of "${identity}"`);
    });
  };
}

function checkIntegrations(settings: SoundSettings, tell: Tell): void {
  const checkEntry = accessCheck(settings, tell);
  settings.introspection?.access.forEach((entry, at) => checkEntry(entry, ['introspection', 'access', at]));
  const issuers = settings.certificates && new Set(settings.certificates.issuers.map(issuerName));
  const clients = new Set<string>();
  settings.integrations?.forEach((integration, index) => {
    if (!integration) return;
    const path = ['integrations', index];
    if (clients.has(integration.clientId))
      tell([...path, 'clientId'], `"${integration.clientId}" is taken already`);
    clients.add(integration.clientId);
    integration.issuers?.forEach((name, at) => {
      if (issuers && !issuers.has(name))
        tell([...path, 'issuers', at], `no such issuer: "${name}"${listed(issuers)}`);
    });
    integration.access.forEach((entry, at) => {
      const entryPath = [...path, 'access', at];
      checkEntry(entry, entryPath);
      const excess = entry.scope && excessOf(entry.scope, integration.scope);
      if (excess)
        tell([...entryPath, 'scope'], `goes beyond the integration's scope by ${writeScope(excess)}`);
    });
  });
}

function checkRoutes({ routes = [], upstreams, integrations, service }: SoundSettings, tell: Tell): void {
  const clients = integrations?.every((integration) => integration !== undefined)
    ? new Set(integrations.map(({ clientId }) => clientId))
    : undefined;
  routes.forEach((route, index) => {
    if (!route) return;
    const path = ['routes', index];
    if ((route.public === undefined) === (route.requires === undefined))
      tell(path, 'says either public: true, or requires: <scope> or any-token');
    if (route.public && route.clients) tell([...path, 'clients'], 'has no meaning on a public route');
    if (route.public && route.reportOnly) tell([...path, 'reportOnly'], 'has no meaning on a public route');
    if (route.websocket && route.methods?.includes('GET') === false)
      tell([...path, 'websocket'], 'needs GET among the methods: a WebSocket begins with one');
    if (upstreams && !Object.hasOwn(upstreams, route.upstream))
      tell(
        [...path, 'upstream'],
        `no such upstream: "${route.upstream}"${listed(Object.keys(upstreams)) || `; write its address in upstreams.${route.upstream}.url`}`,
      );
    route.clients?.forEach((client, at) => {
      if (clients && !clients.has(client))
        tell([...path, 'clients', at], `no such integration: "${client}"${listed(clients)}`);
    });
    for (const own of service?.paths ?? [])
      if (`${route.path.toLowerCase()}/`.startsWith(`${own.toLowerCase()}/`))
        tell([...path, 'path'], `lies below ${own}, which is the token service's own`);
    if (route.stripPrefix !== undefined && !`${route.path}/`.startsWith(`${route.stripPrefix}/`))
      tell([...path, 'stripPrefix'], `is not a prefix of ${route.path}`);
    const before = routes
      .slice(0, index)
      .findIndex((earlier) => earlier && hides(earlier, route, upstreams?.[earlier.upstream]?.paths));
    if (before >= 0)
      tell(
        [...path, 'path'],
        `is never reached: routes[${before}] matches everything this one does; put this one before it`,
      );
  });
}

/** The first match wins, so a rule behind a wider one never speaks: most likely somebody believes that it does. */
function hides(earlier: Route, later: Route, reading: PathReading | undefined): boolean {
  if (earlier.host !== undefined && earlier.host.toLowerCase() !== later.host?.toLowerCase()) return false;
  const methods = earlier.methods;
  if (methods && !later.methods?.every((method) => methods.includes(method))) return false;
  const [wide, narrow] = [parsePattern(earlier.path), parsePattern(later.path)];
  if (!wide.ok || !narrow.ok) return false;
  const ignored = reading === undefined ? 0 : ignoredBy(reading);
  return patternCovers(respelledPattern(wide.segments, ignored), respelledPattern(narrow.segments, ignored));
}

/** Headers that clients or HTTP itself write: an identity under such a name could be theirs. */
const TAKEN = foldedNames(
  (
    'host connection content-length content-type transfer-encoding te trailer upgrade expect keep-alive ' +
    'authorization proxy-authorization cookie traceparent tracestate ' +
    'x-request-id x-forwarded-for x-forwarded-proto x-forwarded-host'
  ).split(' '),
);

/** Compared as the proxy compares them: letters and digits only, without case. */
function checkHeaders({ headers = {}, upstreams, publicUrl }: SoundSettings, tell: Tell): void {
  const seen = new Set<string>();
  const check = (path: SettingPath, name: string): void => {
    if (TAKEN.has(foldedName(name)))
      tell(path, `"${name}" has a meaning of its own; choose a name only gatehouse writes`);
    if (seen.has(foldedName(name))) tell(path, `"${name}" is used twice; each needs its own`);
  };
  for (const [setting, name] of Object.entries(headers)) {
    check(['headers', setting], name);
    seen.add(foldedName(name));
  }
  for (const [name, upstream] of Object.entries(upstreams ?? {})) {
    const { header, audience } = upstream?.assertion ?? {};
    const path = ['upstreams', name, 'assertion'];
    if (header !== undefined) check([...path, 'header'], header);
    if (audience !== undefined && audience === publicUrl)
      tell([...path, 'audience'], 'is publicUrl, which is the audience of access tokens; choose another');
  }
}

/** A host of their own separates the pages from the API only where a browser separates the two. */
function checkPages({ pages, publicUrl, routes = [] }: SoundSettings, tell: Tell): void {
  // What is no URL has been reported already.
  if (pages?.url === undefined || pages.url === 'shared' || !URL.canParse(pages.url)) return;
  const own = new URL(pages.url);
  routes.forEach((route, index) => {
    if (route?.host !== undefined && hostName(route.host) === hostName(own.hostname))
      tell(['routes', index, 'host'], 'is the host of pages.url, which serves the pages alone');
  });
  if (publicUrl === undefined) return;
  const api = new URL(publicUrl);
  if (own.origin === api.origin) return;
  // With a dot at the end it is the same name (RFC 1034 §3.1).
  if (hostName(own.hostname) === hostName(api.hostname))
    tell(
      ['pages', 'url'],
      'has the host name of publicUrl; choose another one: browsers send cookies to every port of a host',
    );
  if (own.protocol === 'http:' && api.protocol === 'https:')
    tell(['pages', 'url'], 'is http, but publicUrl is https; use https for both');
}

const listed = (names: Iterable<string>): string => {
  const known = [...names];
  return known.length === 0 || known.length > 8 ? '' : `; there is ${known.join(', ')}`;
};

/** The sections this compares. */
export const COMPARED: readonly string[] = [
  'listen',
  'admin',
  'certificates',
  'device',
  'directories',
  'signIn',
  'integrations',
  'routes',
  'service',
  'headers',
  'pages',
] satisfies readonly (keyof SoundSettings)[];
