import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { readAtMost } from '../lib/http-client.ts';
import { printable } from '../lib/printable.ts';
import { checkAdminTokenFile, formatAdminTokenProblem } from '../server/admin-endpoint.ts';
import { type AdminResponse, type AdminTarget, requestAdmin, resolveAdminUrl } from './admin-client.ts';
import {
  CONFIG_OPTIONS,
  type Command,
  type CommandContext,
  CommandError,
  EXIT,
  UsageError,
  writeJson,
} from './command.ts';
import { readOptionFile, readTlsFiles } from './files.ts';
import { printColumns } from './style.ts';
import { requireSecureUrl } from './web-url.ts';

type GrantView = Readonly<Record<string, unknown>> & { readonly id: string };

const CONNECTION_OPTIONS = {
  ...CONFIG_OPTIONS,
  url: { value: 'URL', help: 'the admin listener, instead of reading the configuration' },
  'token-file': { value: 'FILE', help: 'file with the admin token (default: admin.tokenFile); - is standard input' },
  cert: { value: 'FILE', help: 'a client certificate issued by admin.tls.clientCa, instead of the token; PEM' },
  key: { value: 'FILE', help: 'its private key, PEM' },
  cacert: { value: 'FILE', help: 'the CA of an admin listener with TLS, PEM' },
} as const satisfies Command['options'];

const FILTER_OPTIONS = {
  client: { value: 'ID', help: 'only grants of this integration' },
  identity: {
    value: 'IDENTITY',
    help: 'only grants of this identity: label:{id}, as in X-Forwarded-User and the log',
  },
  name: {
    value: 'USER',
    help: 'only grants of the user with this name, looked up in the directories and in the grants',
  },
  email: { value: 'ADDRESS', help: 'only grants of the user with this email address' },
  serial: { value: 'HEX', help: 'only grants issued for the certificate with this serial number' },
  fingerprint: { value: 'SHA256', help: 'only grants issued for this certificate' },
  subject: {
    value: 'DN',
    help: 'only grants issued for certificates with this subject, as in the audit log (RFC 4514); with --issuer, tokens with this subject',
  },
} as const satisfies Command['options'];

const CERTIFICATE_OPTIONS: readonly string[] = ['serial', 'fingerprint', 'subject'];

const SUBCOMMANDS = {
  list: {
    summary: 'lists grants: all, or those of a client, a user or a certificate',
    usage: [
      'gatehouse grants list [--client ID] [--identity IDENTITY | --name USER | --email ADDRESS] [--all]',
      'gatehouse grants list --serial HEX | --fingerprint SHA256 | --subject DN',
    ],
    options: [...Object.keys(FILTER_OPTIONS), 'all', ...Object.keys(CONNECTION_OPTIONS)],
  },
  show: {
    summary: 'shows everything that is stored about a grant',
    usage: ['gatehouse grants show GRANT'],
    options: Object.keys(CONNECTION_OPTIONS),
  },
  revoke: {
    summary: 'revokes grants, and all tokens issued with them',
    usage: [
      'gatehouse grants revoke GRANT…',
      'gatehouse grants revoke --client ID --yes',
      'gatehouse grants revoke --identity IDENTITY --yes',
      'gatehouse grants revoke --name USER | --email ADDRESS --yes',
      'gatehouse grants revoke --serial HEX | --fingerprint SHA256 | --subject DN --yes',
      'gatehouse grants revoke --issuer ISSUER --token-id JTI',
      'gatehouse grants revoke --issuer ISSUER [--subject SUBJECT] --yes',
    ],
    options: [...Object.keys(FILTER_OPTIONS), 'issuer', 'token-id', 'yes', ...Object.keys(CONNECTION_OPTIONS)],
  },
} as const satisfies NonNullable<Command['subcommands']>;

export const command: Command = {
  name: 'grants',
  summary: 'lists, shows and revokes grants of the running gatehouse',
  usage: Object.values(SUBCOMMANDS).flatMap(({ usage }) => usage),
  options: {
    ...CONNECTION_OPTIONS,
    ...FILTER_OPTIONS,
    issuer: { value: 'ISSUER', help: 'revoke: all tokens from this trusted issuer, by its name in trustedIssuers' },
    'token-id': { value: 'JTI', help: 'revoke: only the token with this jti, issued by --issuer' },
    all: { help: 'list: include expired and revoked grants that are still stored' },
    yes: { help: 'revoke: confirms that everything issued to a client or an identity, or by an issuer, is revoked' },
  },
  positionals: { min: 1, max: 101 },
  subcommands: SUBCOMMANDS,
  positionalPattern: /^-[A-Za-z0-9_-]{21}$/,
  notes: [
    'Revoking a client, an identity or an issuer revokes all tokens issued so far, on every replica; new ones work.',
    'Every action is recorded in the audit log.',
    'The address is admin.host and admin.port of the configuration. Pass the same --set options as to `gatehouse serve`, or --url.',
  ],
  async run(context) {
    const [action = '', ...ids] = context.positionals;
    await ACTIONS[action as keyof typeof SUBCOMMANDS](context, await resolveTarget(context), ids);
  },
};

type Action = (context: CommandContext, target: AdminTarget, ids: readonly string[]) => Promise<void>;

const ACTIONS: Readonly<Record<keyof typeof SUBCOMMANDS, Action>> = {
  async list(context, target, ids) {
    if (ids.length > 0)
      throw new UsageError('gatehouse grants list: takes no grant id; use an option such as --client or --name');
    if (context.option('issuer') !== undefined)
      throw new UsageError('gatehouse grants list: --issuer is for revoke; tokens from other issuers are not grants');
    const { grants, cut } = await fetchGrants(context, target);
    if (context.json) writeJson(context, { grants, ...(cut && { cut }) });
    else if (grants.length === 0) context.stdout('No grants.\n');
    else
      printColumns(context, [
        COLUMNS.map((name) => (name === 'id' ? 'grant' : name.replace('_', ' '))),
        ...grants.map((grant) => COLUMNS.map((name) => formatField(name, grant[name] ?? '-'))),
      ]);
    if (cut)
      context.stderr(
        `gatehouse: stopped after ${grants.length} grants; there may be more. Use an option such as --client or --name, or page through GET /admin/v1/grants.\n`,
      );
  },
  async show(context, target, ids) {
    const [id] = ids;
    if (id === undefined || ids.length > 1) throw new UsageError('gatehouse grants show: takes one grant id');
    const grant = await requestJson(target, 'GET', `/grants/${encodeURIComponent(id)}`);
    if (context.json) return writeJson(context, grant);
    printColumns(
      context,
      Object.entries(grant).map(([name, value]) => [printable(name), formatField(name, value)]),
    );
  },
  async revoke(context, target, ids) {
    const filter = readFilter(context);
    const names = Object.keys(filter);
    const isOfIssuer = 'issuer' in filter && names.length === 2 && ('jti' in filter || 'subject' in filter);
    if ((ids.length === 0) === (names.length === 0) || (names.length > 1 && !isOfIssuer) || names[0] === 'jti')
      throw new UsageError(
        `gatehouse grants revoke: takes grant ids, or one of ${Object.keys(FILTER_OPTIONS)
          .map((name) => `--${name}`)
          .join(', ')}, --issuer; --issuer may be combined with --token-id or --subject`,
      );
    if (names.length > 0) return revokeAll(context, target, filter);
    for (const id of ids) {
      await requestJson(target, 'POST', `/grants/${encodeURIComponent(id)}/revoke`);
      if (!context.json) context.stdout(`Revoked: ${id}\n`);
    }
    if (context.json) writeJson(context, { ended: ids });
  },
};

type Filter = Readonly<Record<string, string>>;

/** Returns the options as the admin API names them. */
const readFilter = (context: CommandContext): Filter =>
  Object.fromEntries(
    [...Object.keys(FILTER_OPTIONS), 'issuer', 'token-id'].flatMap((option) => {
      const value = context.option(option);
      return value === undefined ? [] : [[option === 'token-id' ? 'jti' : option, value]];
    }),
  );

/** Everything of a client, a user, a certificate or an issuer, or one token of an issuer. */
async function revokeAll(context: CommandContext, target: AdminTarget, filter: Filter): Promise<void> {
  const [[option, value] = ['', '']] = Object.entries(filter);
  const isCertificate = CERTIFICATE_OPTIONS.includes(option) && !('issuer' in filter);
  if (!('jti' in filter) && !context.flag('yes')) {
    const holder = isCertificate ? 'certificate' : option === 'name' || option === 'email' ? 'user' : option;
    throw new UsageError(
      `gatehouse grants revoke: this revokes all grants and tokens of this ${holder}; add --yes to confirm`,
    );
  }
  const response = await requestJson(target, 'POST', '/revoke', filter);
  if (context.json) return writeJson(context, response);
  const { ended, live_grants: live } = response;
  const [[kind, name] = [option, value]] = Object.entries(ended ?? {}) as [string, unknown][];
  if ('jti' in filter)
    return context.stdout(`Revoked: the token ${printable(filter['jti'])} of ${printable(filter['issuer'])}.\n`);
  context.stdout(
    isCertificate
      ? `Revoked: the grants issued for certificates with ${option} ${printable(value)}.\n`
      : `${kind === 'identity' && live === 0 ? 'Nothing found, but rejected from now on' : 'Revoked'}: everything issued ${kind === 'issuer' ? 'by' : 'to'} ${printable(kind)} ${printable(name)} so far.\n`,
  );
  // The subject of a trusted issuer is no user of a directory.
  if ('issuer' in filter && 'subject' in filter) return;
  const hint = isCertificate ? option : kind === 'identity' ? 'name, or use --name for a user name' : 'name';
  if (typeof live === 'number')
    context.stdout(
      live === 0
        ? `There was no live grant here; tokens from trusted issuers are not counted. If you expected a grant, check the ${hint}.\n`
        : `Live grants revoked: ${live}.\n`,
    );
  if (response['document_clients_not_included'] === true)
    context.stdout(
      'Clients that are known by the URL of their metadata document are not included: revoke each with --client URL.\n',
    );
  if (kind === 'identity')
    context.stdout(
      response['user_disabled'] === true
        ? 'The user is disabled and cannot obtain new grants.\n'
        : 'They can obtain new grants unless the user is disabled (users[].disabled) or its access is removed.\n',
    );
}

/** Programs page through the API instead. */
const MAX_GRANTS = 100_000;
/** Pages may be short, or contain only ended grants. */
const MAX_PAGES = 100_000;

/** `cut`: there may be more. */
async function fetchGrants(
  context: CommandContext,
  target: AdminTarget,
): Promise<{ readonly grants: readonly GrantView[]; readonly cut: boolean }> {
  const unexpectedResponse = (problem: string): CommandError =>
    new CommandError(`the admin listener ${target.url.origin} ${problem}; is it gatehouse?`, EXIT.unavailable);
  const query = new URLSearchParams({
    limit: '1000',
    state: context.flag('all') ? 'all' : 'live',
    ...readFilter(context),
  });
  // By id: pages may repeat a grant.
  const found = new Map<string, GrantView>();
  const cursors = new Set<string>();
  while (found.size < MAX_GRANTS && cursors.size < MAX_PAGES) {
    const { grants, next } = await requestJson(target, 'GET', `/grants?${query.toString()}`);
    if (!Array.isArray(grants) || !grants.every(isGrantView))
      throw unexpectedResponse('sent a response without grants');
    for (const grant of grants) found.set(grant.id, grant);
    if (typeof next !== 'string') return { grants: [...found.values()], cut: false };
    if (cursors.has(next)) throw unexpectedResponse('returns the same page repeatedly');
    cursors.add(next);
    query.set('after', next);
  }
  return { grants: [...found.values()], cut: true };
}

/** The other members are only printed. */
const isGrantView = (value: unknown): value is GrantView =>
  typeof value === 'object' && value !== null && typeof (value as Partial<GrantView>).id === 'string';

async function requestJson(
  target: AdminTarget,
  method: 'GET' | 'POST',
  path: string,
  body?: Readonly<Record<string, string>>,
): Promise<AdminResponse['json']> {
  const { status, json } = await requestAdmin(target, method, path, body);
  if (status === 200) return json;
  if (status === 401 && target.tokenFile !== undefined)
    throw new CommandError(explainRejectedToken(target, target.tokenFile), EXIT.signIn);
  const message = printable(json['error_description'] ?? `the admin listener responded with ${status}`);
  const code = status === 401 ? EXIT.signIn : status >= 500 ? EXIT.unavailable : EXIT.usage;
  throw new CommandError(message, code);
}

function explainRejectedToken({ url, isOwnTokenFile, isFromConfig }: AdminTarget, file: string): string {
  const fileProblem = isOwnTokenFile === true ? checkAdminTokenFile(file) : undefined;
  if (fileProblem !== undefined) return `The admin token was rejected: ${formatAdminTokenProblem(fileProblem)}`;
  const source =
    isFromConfig === true
      ? ' This address is from the configuration: if gatehouse was started with another port (--set, GATEHOUSE_ADMIN__PORT), pass --set admin.port=PORT here too.'
      : '';
  return `The token in ${file} is not the one in admin.tokenFile of the gatehouse at ${url.origin}, or gatehouse rejects that file because other users can read it (its log then has admin_token_refused).${source}`;
}

async function resolveTarget(context: CommandContext): Promise<AdminTarget> {
  const files = readTlsFiles(context, 'gatehouse grants');
  const { url, admin } = await resolveAdminUrl(context, 'gatehouse grants');
  if (files.cert !== undefined) return { url, ...files };
  requireSecureUrl('gatehouse grants', url);
  const tokenFile = context.option('token-file') ?? admin?.tokenFile;
  if (tokenFile === undefined) throw new UsageError('gatehouse grants: --url needs --token-file, or --cert and --key');
  const isStdin = tokenFile === '-';
  if (context.option('token-file') === undefined && !existsSync(tokenFile))
    throw new CommandError(
      `admin.tokenFile ${tokenFile} does not exist; gatehouse serve creates it when it starts`,
      EXIT.noInput,
    );
  return {
    url,
    ...files,
    token: parseToken(tokenFile, isStdin ? await readStdin(context) : readOptionFile(context, 'token-file', tokenFile)),
    tokenFile: isStdin ? 'standard input' : tokenFile,
    isOwnTokenFile: resolve(context.cwd, tokenFile) === admin?.tokenFile,
    isFromConfig: admin !== undefined,
  };
}

/** Editors and shells end files with a line break. */
function parseToken(file: string, bytes: Buffer | undefined): string {
  const token = bytes?.toString('utf8').trim() ?? '';
  if (/^[\x20-\x7e]+$/.test(token)) return token;
  const content = token === '' ? 'is empty' : 'has several lines, or is not text';
  throw new CommandError(`--token-file ${file} ${content}; it must contain the admin token only`, EXIT.configuration);
}

const MAX_TOKEN_BYTES = 4_096;

/** Never truncated: that would be reported as a wrong token. */
async function readStdin({ stdin }: CommandContext): Promise<Buffer> {
  const bytes = await readAtMost(stdin, MAX_TOKEN_BYTES);
  if (bytes !== undefined) return bytes;
  throw new CommandError('standard input is too long; it must contain the admin token only', EXIT.configuration);
}

const COLUMNS = ['id', 'client', 'name', 'identity', 'scope', 'by', 'state', 'last_refreshed', 'until'] as const;
const TIME_FIELDS = new Set(['issued', 'last_refreshed', 'until', 'revoked']);

function formatField(name: string, value: unknown): string {
  const date = new Date(TIME_FIELDS.has(name) ? Number(value) * 1_000 : Number.NaN);
  return Number.isNaN(date.getTime()) ? printable(value) : date.toISOString().slice(0, 16).replace('T', ' ');
}
