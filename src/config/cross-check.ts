import type { z } from 'zod';
import { excessOf, type Scope, writeScope } from '../domain/scope.ts';

/** What the cross-check looks at; the whole of the settings has more. */
interface Shape {
  readonly publicUrl: string;
  readonly listen: { readonly tls?: unknown; readonly behindTls: boolean };
  readonly tokens: {
    readonly accessLifetime: number;
    readonly grantLifetime: number;
    readonly refresh: { readonly retryWindow: number };
  };
  readonly certificates: {
    readonly issuers: readonly {
      readonly file: string;
      readonly name?: string;
      readonly directory?: string;
    }[];
    readonly directory?: string;
  };
  readonly device: { readonly codeLifetime: number; readonly interval: number };
  readonly directories: Readonly<
    Record<
      string,
      { readonly label: string; readonly derive: boolean; readonly users: readonly DirectoryUser[] }
    >
  >;
  readonly integrations: readonly {
    readonly clientId: string;
    readonly scope: Scope;
    readonly issuers?: readonly string[];
    readonly grants: readonly string[];
    readonly bindToCertificate: boolean;
    readonly accessLifetime?: number;
    readonly grantLifetime?: number;
    readonly access: readonly {
      readonly directory?: string;
      readonly identities: readonly string[];
      readonly groups: readonly string[];
      readonly scope?: Scope;
    }[];
  }[];
  readonly upstreams: Readonly<Record<string, unknown>>;
  readonly routes: readonly {
    readonly path: string;
    readonly public?: true;
    readonly requires?: unknown;
    readonly clients?: readonly string[];
    readonly upstream: string;
    readonly stripPrefix?: string;
  }[];
  readonly service: { readonly paths: readonly string[] };
}

interface DirectoryUser {
  readonly id: string;
  readonly name: string;
  readonly commonName?: string;
  readonly email?: string;
  readonly userPrincipalName?: string;
  readonly passwordHash?: string;
  readonly passwordHashFile?: string;
}

type Path = readonly (string | number)[];

export const issuerName = (issuer: { readonly file: string; readonly name?: string }): string =>
  issuer.name ?? (issuer.file.split('/').at(-1) ?? issuer.file).replace(/\.[^.]+$/, '');

/** What no single setting can know: names that must exist elsewhere, and settings that contradict each other. */
export function crossCheck(settings: Shape, context: z.RefinementCtx): void {
  const problem = (path: Path, message: string): void => {
    context.addIssue({ code: 'custom', path: [...path], message });
  };

  if (settings.listen.tls === undefined && !settings.listen.behindTls)
    problem(
      ['listen', 'tls'],
      'is missing; without it set listen.behindTls: true, and let something in front end TLS',
    );
  if (settings.listen.tls !== undefined && settings.listen.behindTls)
    problem(['listen', 'behindTls'], 'contradicts listen.tls; keep one of them');
  if (settings.tokens.refresh.retryWindow > 60)
    problem(['tokens', 'refresh', 'retryWindow'], 'is at most 60s');
  if (settings.tokens.accessLifetime < 1) problem(['tokens', 'accessLifetime'], 'is at least 1s');
  if (settings.device.codeLifetime < 10 || settings.device.codeLifetime > 86_400)
    problem(['device', 'codeLifetime'], 'is from 10s to 1d');
  if (settings.device.interval < 1 || settings.device.interval > settings.device.codeLifetime)
    problem(['device', 'interval'], 'is at least 1s and at most device.codeLifetime');

  const directories = new Set(Object.keys(settings.directories));
  const knownDirectory = (name: string | undefined, path: Path): void => {
    if (name !== undefined && !directories.has(name)) problem(path, `no such directory: "${name}"`);
  };
  checkDirectories(settings, problem);

  knownDirectory(settings.certificates.directory, ['certificates', 'directory']);
  const issuerNames = new Set<string>();
  settings.certificates.issuers.forEach((issuer, index) => {
    const path = ['certificates', 'issuers', index];
    knownDirectory(issuer.directory, [...path, 'directory']);
    if (issuer.directory === undefined && settings.certificates.directory === undefined)
      problem([...path, 'directory'], 'is missing; set it here or in certificates.directory');
    const name = issuerName(issuer);
    if (issuerNames.has(name))
      problem([...path, 'name'], `"${name}" names two issuers; give them names of their own`);
    issuerNames.add(name);
  });

  const labels = new Set(Object.values(settings.directories).map(({ label }) => label));
  const clients = new Set<string>();
  settings.integrations.forEach((integration, index) => {
    const path = ['integrations', index];
    if (clients.has(integration.clientId))
      problem([...path, 'clientId'], `"${integration.clientId}" is taken already`);
    clients.add(integration.clientId);
    for (const name of integration.issuers ?? [])
      if (!issuerNames.has(name)) problem([...path, 'issuers'], `no such issuer: "${name}"`);
    if ((integration.accessLifetime ?? 1) < 1) problem([...path, 'accessLifetime'], 'is at least 1s');
    integration.access.forEach((entry, at) => {
      const entryPath = [...path, 'access', at];
      knownDirectory(entry.directory, [...entryPath, 'directory']);
      if (entry.directory === undefined && entry.identities.length === 0 && entry.groups.length === 0)
        problem(entryPath, 'names nobody; give groups, identities or directory');
      for (const identity of entry.identities)
        if (!labels.has(identity.slice(0, identity.indexOf(':'))))
          problem([...entryPath, 'identities'], `no directory has the label of "${identity}"`);
      const excess = entry.scope && excessOf(entry.scope, integration.scope);
      if (excess)
        problem([...entryPath, 'scope'], `goes beyond the integration's scope by ${writeScope(excess)}`);
    });
  });

  settings.routes.forEach((route, index) => {
    const path = ['routes', index];
    if ((route.public === undefined) === (route.requires === undefined))
      problem(path, 'says either public: true, or requires: <scope> or any-token');
    if (route.public && route.clients) problem([...path, 'clients'], 'has no meaning on a public route');
    if (!(route.upstream in settings.upstreams))
      problem([...path, 'upstream'], `no such upstream: "${route.upstream}"`);
    for (const client of route.clients ?? [])
      if (!clients.has(client)) problem([...path, 'clients'], `no such integration: "${client}"`);
    for (const service of settings.service.paths)
      if (`${route.path.toLowerCase()}/`.startsWith(`${service.toLowerCase()}/`))
        problem([...path, 'path'], `lies below ${service}, which is the token service's own`);
    if (route.stripPrefix !== undefined && !`${route.path}/`.startsWith(`${route.stripPrefix}/`))
      problem([...path, 'stripPrefix'], `is not a prefix of ${route.path}`);
  });
}

function checkDirectories(settings: Shape, problem: (path: Path, message: string) => void): void {
  const labels = new Set<string>();
  for (const [name, directory] of Object.entries(settings.directories)) {
    const path = ['directories', name];
    if (labels.has(directory.label))
      problem([...path, 'label'], `"${directory.label}" is the label of another directory`);
    labels.add(directory.label);
    if (directory.derive && directory.users.length > 0)
      problem([...path, 'users'], 'cannot stand beside derive: true');
    const seen = new Map<string, Set<string>>();
    directory.users.forEach((user, index) => {
      if (user.passwordHash !== undefined && user.passwordHashFile !== undefined)
        problem(
          [...path, 'users', index, 'passwordHashFile'],
          'stands beside passwordHash; keep one of them',
        );
      for (const field of ['id', 'name', 'commonName', 'email', 'userPrincipalName'] as const) {
        const value = user[field];
        if (value === undefined) continue;
        const taken = seen.get(field) ?? new Set<string>();
        seen.set(field, taken);
        const folded = field === 'commonName' ? value : value.toLowerCase();
        if (taken.has(folded))
          problem([...path, 'users', index, field], `"${value}" belongs to another user too`);
        taken.add(folded);
      }
    });
  }
}
