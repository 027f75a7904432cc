import type { Settings } from '../config/schema.ts';
import { CONFIG_OPTIONS, type Command, EXIT, writeJson } from './command.ts';
import { settingsFor } from './settings.ts';

interface Findings {
  readonly problems: readonly string[];
  readonly warnings: readonly string[];
  readonly notes?: readonly string[];
}

/** Looks at something the settings name, without changing it. */
type Check = (settings: Settings, now: number) => Promise<Findings>;

const checkCertificates: Check = async (settings, now) => {
  const { certificateFilesOf } = await import('../gateway/registry.ts');
  const { CertificateFilesError, loadCertificateFiles } = await import('../tls/certificate-files.ts');
  try {
    const { warnings } = await loadCertificateFiles(certificateFilesOf(settings), now);
    return { problems: [], warnings };
  } catch (error) {
    if (error instanceof CertificateFilesError) return { problems: error.problems, warnings: [] };
    throw error;
  }
};

/** A missing key file is made at the first start, and never beside grants; one that is there must be sound. */
const checkKeys: Check = async (settings, now) => {
  const { keys } = settings;
  const { existsSync } = await import('node:fs');
  if (!existsSync(keys.file)) return { problems: await missingKeys(settings), warnings: [] };
  const { readKeyringFile } = await import('../tokens/keyring-file.ts');
  const { openKeyring } = await import('../tokens/keyring.ts');
  const { keyWarnings } = await import('../gateway/keys.ts');
  const { Fault } = await import('../ports/fault.ts');
  try {
    const file = readKeyringFile(keys.file);
    openKeyring(file).current(now);
    return { problems: [], warnings: keyWarnings(settings, file) };
  } catch (error) {
    if (error instanceof Fault) return { problems: [`keys.file: ${error.message}`], warnings: [] };
    return { problems: [`keys.file: ${keys.file} cannot be used`], warnings: [] };
  }
};

/** Would the start make them? The store is looked at as one more worker would, without its lock. */
async function missingKeys({ store, keys }: Settings): Promise<string[]> {
  if (store.type === 'redis')
    return [
      `keys.file: ${keys.file} is missing; replicas share one key file: make it by \`gatehouse keys new\``,
    ];
  const { openEmbedded } = await import('../stores/embedded.ts');
  const { Fault } = await import('../ports/fault.ts');
  try {
    const { path, mapSize, unauthenticatedRecords: unauthenticated } = store;
    const now = (): number => Date.now() / 1_000;
    const { recordMac } = await import('../tokens/record-mac.ts');
    // Whether there are records at all is known without keys.
    const authenticator = recordMac({ now, unauthenticated });
    const opened = await openEmbedded({ path, mapSize, role: 'worker', now, authenticator });
    try {
      if (await opened.isEmpty()) return [];
    } finally {
      await opened.close();
    }
    return [`keys.file: ${keys.file} is missing, but the store in ${path} holds grants made with other keys`];
  } catch (error) {
    // No store yet, as before a first start; one that cannot be opened is told by whoever opens it.
    if (error instanceof Fault) return [];
    throw error;
  }
}

/** The files of the admin listener; a missing token is made at the first start. */
const checkAdmin: Check = async ({ admin: { tokenFile, tls } }) => {
  const { existsSync } = await import('node:fs');
  const { adminTokenFault, adminTokenProblem } = await import('../gateway/admin-token.ts');
  const { isReadByOthers } = await import('../tokens/keyring-file.ts');
  const fault = adminTokenFault(tokenFile);
  return {
    problems: fault?.kind === 'refused' ? [adminTokenProblem(fault)] : [],
    warnings: [
      ...(fault?.kind === 'restricted' ? [adminTokenProblem(fault)] : []),
      ...(tls !== undefined && existsSync(tls.key) && isReadByOthers(tls.key)
        ? [`admin.tls.key: ${tls.key} can be read by others; run chmod 600`]
        : []),
    ],
  };
};

/** Certificates and keys of https upstreams. */
const checkUpstreamFiles: Check = async ({ upstreams }) => {
  const { readMaterial } = await import('../proxy/upstream-files.ts');
  const problems = Object.entries(upstreams).flatMap(([name, upstream]) => {
    try {
      readMaterial(name, upstream);
      return [];
    } catch (error) {
      return [(error as Error).message];
    }
  });
  return { problems, warnings: [] };
};

/** The files of pages, sign-in and directories. Nobody is asked over the network. */
const checkPeople: Check = async ({ pages, directories, signIn }) => {
  const { createLook } = await import('../confirm/look.ts');
  const { createPeople, textIn } = await import('../identity/people.ts');
  const problems: string[] = [];
  const tried = (use: () => unknown): void => {
    try {
      use();
    } catch (error) {
      problems.push((error as Error).message);
    }
  };
  tried(() => createLook(pages));
  tried(() => createPeople(directories));
  for (const [name, { ca }] of Object.entries(signIn.openid))
    if (ca !== undefined) tried(() => textIn(ca, `signIn.openid.${name}.ca`));
  return { problems, warnings: [] };
};

/** Things that work and that somebody would want to know. */
const checkIntentions: Check = async (settings) => {
  const { hosts, integrations, routes, upstreams, tokens } = settings;
  const used = new Set(routes.map(({ upstream }) => upstream));
  const warnings = [
    ...integrations.flatMap(({ access }, index) =>
      access.length === 0
        ? [`integrations[${index}].access: is empty, so nobody can use this integration`]
        : [],
    ),
    ...routes.flatMap(({ path, reportOnly }, index) =>
      reportOnly
        ? [`routes[${index}].reportOnly: ${path} refuses nobody; those it would refuse pass and are logged`]
        : [],
    ),
    ...(hosts.others === 'refuse' && hosts.allowed.includes('*')
      ? ['hosts.others: refuse has no effect beside "*" in hosts.allowed']
      : []),
    ...(routes.length === 0 ? ['routes: there are none, so every request is denied'] : []),
    ...Object.keys(upstreams).flatMap((name) =>
      used.has(name) ? [] : [`upstreams.${name}: no route forwards to it`],
    ),
    ...(tokens.accessLifetime > tokens.grantLifetime
      ? ['tokens.accessLifetime: is longer than tokens.grantLifetime, which ends every token sooner']
      : []),
  ];
  return { problems: [], warnings };
};

/** Names that lead nowhere: each is sound by itself, and nobody will ever pass. */
const checkReach: Check = async ({ publicUrl, pages, listen, directories, integrations, routes }) => {
  const { covers, writeScope } = await import('../domain/scope.ts');
  const { readFile } = await import('node:fs/promises');
  const { X509Certificate } = await import('node:crypto');
  const { isIP } = await import('node:net');
  const { pagesOriginOf } = await import('../gateway/pages-origin.ts');
  const { host: pagesHost } = pagesOriginOf({ publicUrl, pages });
  const groups = new Set(
    Object.values(directories).flatMap(({ users }) => users.flatMap((user) => user.groups)),
  );
  const elsewhere = Object.values(directories).some(({ ldap }) => ldap !== undefined);
  const warnings = [
    ...routes.flatMap(({ path, requires }, index) =>
      requires === undefined ||
      requires === 'any-token' ||
      integrations.some(({ scope }) => covers(scope, requires))
        ? []
        : [
            `routes[${index}].requires: no integration can give ${writeScope(requires)}, so nobody passes ${path}`,
          ],
    ),
    ...integrations.flatMap(({ access }, index) =>
      access.flatMap((entry, at) =>
        entry.groups
          .filter((group) => !elsewhere && !groups.has(group))
          .map((group) => `integrations[${index}].access[${at}].groups: nobody is in "${group}"`),
      ),
    ),
  ];
  const { tls } = listen;
  if (tls === undefined) return { problems: [], warnings };
  const { protocol, hostname } = new URL(publicUrl);
  if (protocol === 'http:') warnings.push('publicUrl: says http, but the listener speaks TLS');
  try {
    const leaf = new X509Certificate(await readFile(tls.certificate));
    const served = [
      ['publicUrl', hostname],
      ...(pagesHost === undefined ? [] : [['pages.url', pagesHost]]),
    ] as const;
    for (const [setting = '', host = ''] of served) {
      const name = host.replace(/^\[|\]$/g, '');
      // `checkIP` throws for a name.
      if ((isIP(name) === 0 ? leaf.checkHost(name) : leaf.checkIP(name)) === undefined)
        warnings.push(
          `listen.tls.certificate: is not for ${name}, the host of ${setting}; clients will refuse it`,
        );
    }
    const { isReadByOthers } = await import('../tokens/keyring-file.ts');
    if (isReadByOthers(tls.key))
      warnings.push(`listen.tls.key: ${tls.key} can be read by others; run chmod 600`);
  } catch {
    // What cannot be read is told by the check of certificates.
  }
  return { problems: [], warnings };
};

/**
 * Routes on which a browser can open an HTML document of the API on the origin of the pages. A navigation carries no
 * bearer token, so only a route that lets requests pass without one can serve a document.
 */
const checkPagesOrigin: Check = async ({ publicUrl, pages, device, integrations, routes }) => {
  const usesPages = device.enabled && integrations.some(({ grants }) => grants.includes('device'));
  if (pages.url !== undefined || !usesPages) return { problems: [], warnings: [] };
  const { hostname } = new URL(publicUrl);
  const open = routes.flatMap(({ public: isPublic, reportOnly, methods, host, path }, index) => {
    const isNavigable = methods === undefined || methods.includes('GET') || methods.includes('POST');
    const isShared = host === undefined || host.toLowerCase() === hostname;
    return (isPublic === true || reportOnly) && isNavigable && isShared ? [`routes[${index}] (${path})`] : [];
  });
  if (open.length === 0) return { problems: [], warnings: [] };
  return {
    problems: [],
    warnings: [
      `pages.url: is not set, so the pages share their origin with ${open.join(', ')}; a script in an HTML response from there could act on the pages; give the pages a host of their own, or write shared here if the API serves no HTML`,
    ],
  };
};

/** Requests that are refused because their path is another spelling of a stricter route's. */
const checkSpellings: Check = async (settings) => {
  const { compileRules } = await import('../domain/rule-matcher.ts');
  const { rulesOf } = await import('../gateway/registry.ts');
  const { notKeptApartBy, patternCovers, respelledPattern, UNKNOWN_READING } = await import(
    '../domain/path-spelling.ts'
  );
  const { conflicts } = compileRules(rulesOf(settings));
  const warnings = conflicts.flatMap(({ rule, stricter }) => {
    const blurred = notKeptApartBy(rule.paths ?? UNKNOWN_READING);
    const [wide, narrow] = [stricter, rule].map(({ pattern }) => respelledPattern(pattern, blurred));
    return wide !== undefined && narrow !== undefined && patternCovers(wide, narrow)
      ? [
          `${rule.name}: differs from ${stricter.name} only in letter case or by a trailing slash, and asks for less, so its requests are refused; set upstreams.${rule.upstream}.paths if the API tells such paths apart`,
        ]
      : [];
  });
  const isOpen = ({ rule }: (typeof conflicts)[number]): boolean => {
    const { letterCase, trailingSlash } = rule.paths ?? UNKNOWN_READING;
    return letterCase === 'unknown' || trailingSlash === 'unknown';
  };
  const byUpstream = Map.groupBy(conflicts.filter(isOpen), ({ rule }) => rule.upstream);
  const notes = [...byUpstream].map(([name, [first, ...more]]) => {
    const others = more.length === 0 ? '' : ` (and ${more.length} more such pairs)`;
    return `upstreams.${name}.paths: a path that differs from ${first?.stricter.name} only in letter case or by a trailing slash is refused, and not forwarded by ${first?.rule.name}, which asks for less${others}; set letterCase and trailingSlash there to distinct if the API tells such paths apart, to same if it does not`;
  });
  return { problems: [], warnings, notes };
};

const CHECKS: readonly Check[] = [
  checkCertificates,
  checkKeys,
  checkAdmin,
  checkUpstreamFiles,
  checkPeople,
  checkIntentions,
  checkReach,
  checkPagesOrigin,
  checkSpellings,
];

export const command: Command = {
  name: 'check',
  summary: 'validates the configuration and the files it names; tells every problem at once',
  usage: ['gatehouse check [--config FILE]'],
  options: CONFIG_OPTIONS,
  notes: [
    'Exit code 0 when gatehouse could start with it (there may be warnings), 78 with the list of problems otherwise.',
  ],
  async run(context) {
    const loaded = await settingsFor(context);
    if (typeof loaded === 'number') return loaded;
    const now = Date.now() / 1_000;
    const found = await Promise.all(CHECKS.map((check) => check(loaded.settings, now)));
    const problems = found.flatMap((findings) => findings.problems);
    const warnings = found.flatMap((findings) => findings.warnings);
    const notes = [...(await unasked(loaded.settings)), ...found.flatMap((findings) => findings.notes ?? [])];
    const ok = problems.length === 0;

    if (context.json)
      writeJson(context, {
        ok,
        configuration: loaded.name,
        problems: problems.map(asProblem),
        warnings,
        ...(notes.length > 0 && { notes }),
      });
    else {
      const count = problems.length === 1 ? '1 problem' : `${problems.length} problems`;
      if (!ok) context.stderr(`gatehouse: ${count} with files of ${loaded.name}\n${listed(problems)}`);
      if (ok)
        context.stdout([`${loaded.name}: sound`, ...notes.map((note) => `note: ${note}`), ''].join('\n'));
      if (warnings.length > 0) context.stderr(warnings.map((warning) => `warning: ${warning}\n`).join(''));
    }
    return ok ? EXIT.ok : EXIT.configuration;
  },
};

/** Nobody is asked over the network: "sound" does not speak for them. */
const unasked = async ({ store }: Settings): Promise<readonly string[]> => [
  ...(store.type === 'redis'
    ? [
        'Redis was not asked: whether it can be reached and used is told by the start, and by gatehouse health',
      ]
    : []),
  ...(store.unauthenticatedRecords === 'accept'
    ? [
        (await isNewStore(store))
          ? `store.unauthenticatedRecords: is accept, which only a store of an earlier release needs; there is no store in ${store.path} yet, so set it to refuse now`
          : 'store.unauthenticatedRecords: is accept, so records of earlier releases, which have no MAC, are accepted; set it to refuse once every replica runs this release and store_records_authenticated was logged (docs/storage.md)',
      ]
    : []),
];

async function isNewStore({ type, path }: Settings['store']): Promise<boolean> {
  if (type !== 'embedded') return false;
  const { existsSync } = await import('node:fs');
  const { filesIn } = await import('../stores/embedded-folder.ts');
  const { data, marker } = filesIn(path);
  return !existsSync(data) && !existsSync(marker);
}

const listed = (lines: readonly string[]): string => lines.map((line) => `  ${line}\n`).join('');

/** The same form as problems of the configuration itself. */
const asProblem = (text: string): { readonly path: string; readonly message: string } => ({
  path: '',
  message: text,
});
