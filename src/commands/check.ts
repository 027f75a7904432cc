import type { Settings } from '../config/schema.ts';
import { CONFIG_OPTIONS, type Command, EXIT, writeJson } from './command.ts';
import { settingsFor } from './settings.ts';

interface Findings {
  readonly problems: readonly string[];
  readonly warnings: readonly string[];
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
    const { path, mapSize } = store;
    const opened = await openEmbedded({ path, mapSize, role: 'worker', now: () => Date.now() / 1_000 });
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
const checkIntentions: Check = async ({ integrations, routes, upstreams, tokens }) => {
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
const checkReach: Check = async ({ publicUrl, listen, directories, integrations, routes }) => {
  const { covers, writeScope } = await import('../domain/scope.ts');
  const { readFile } = await import('node:fs/promises');
  const { X509Certificate } = await import('node:crypto');
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
    const name = hostname.replace(/^\[|\]$/g, '');
    const leaf = new X509Certificate(await readFile(tls.certificate));
    if (leaf.checkHost(name) === undefined && leaf.checkIP(name) === undefined)
      warnings.push(
        `listen.tls.certificate: is not for ${name}, the host of publicUrl; clients will refuse it`,
      );
    const { isReadByOthers } = await import('../tokens/keyring-file.ts');
    if (isReadByOthers(tls.key))
      warnings.push(`listen.tls.key: ${tls.key} can be read by others; run chmod 600`);
  } catch {
    // What cannot be read is told by the check of certificates.
  }
  return { problems: [], warnings };
};

const CHECKS: readonly Check[] = [
  checkCertificates,
  checkKeys,
  checkUpstreamFiles,
  checkPeople,
  checkIntentions,
  checkReach,
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
    const notes = unasked(loaded.settings);
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
      if (ok) context.stdout(`${loaded.name}: sound\n`);
      for (const note of notes) context.stdout(`note: ${note}\n`);
      if (warnings.length > 0) context.stderr(warnings.map((warning) => `warning: ${warning}\n`).join(''));
    }
    return ok ? EXIT.ok : EXIT.configuration;
  },
};

/** Nobody is asked over the network: "sound" does not speak for them. */
const unasked = ({ store }: Settings): readonly string[] =>
  store.type === 'redis'
    ? [
        'Redis was not asked: whether it can be reached and used is told by the start, and by gatehouse health',
      ]
    : [];

const listed = (lines: readonly string[]): string => lines.map((line) => `  ${line}\n`).join('');

/** The same form as problems of the configuration itself. */
const asProblem = (text: string): { readonly path: string; readonly message: string } => ({
  path: '',
  message: text,
});
