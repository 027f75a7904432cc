import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { adminTokenFault, adminTokenProblem } from '../gateway/admin-token.ts';
import { mustBePrivate, webAddress } from './address.ts';
import { type AdminTarget, type Answer, adminUrl, askAdmin } from './admin-call.ts';
import { mustBePair } from './certificate-files.ts';
import { plain, printColumns } from './columns.ts';
import {
  CONFIG_OPTIONS,
  type Command,
  CommandError,
  type Context,
  EXIT,
  UsageError,
  writeJson,
} from './command.ts';
import { settingsFor } from './settings.ts';

interface GrantView {
  readonly id: string;
  readonly client: string;
  readonly identity: string;
  readonly scope: string;
  readonly by: string;
  readonly state: string;
  readonly issued: number;
  readonly last_refreshed: number;
  readonly refreshes: number;
  readonly until: number;
}

export const command: Command = {
  name: 'grants',
  summary: 'lists, shows and ends grants of the running gatehouse',
  usage: [
    'gatehouse grants list [--client ID] [--identity WHO] [--name USER] [--all]',
    'gatehouse grants show GRANT',
    'gatehouse grants revoke GRANT…',
    'gatehouse grants revoke --client ID --yes',
    'gatehouse grants revoke --identity WHO --yes',
    'gatehouse grants revoke --name USER --yes',
  ],
  options: {
    ...CONFIG_OPTIONS,
    url: { type: 'string', value: 'URL', help: 'the admin listener, instead of reading the configuration' },
    'token-file': {
      type: 'string',
      value: 'FILE',
      help: 'holds the admin token (default: admin.tokenFile); - is standard input',
    },
    cert: { type: 'string', value: 'FILE', help: 'a certificate of admin.tls.clientCa instead, PEM' },
    key: { type: 'string', value: 'FILE', help: 'its private key, PEM' },
    cacert: { type: 'string', value: 'FILE', help: 'the CA of an admin listener with TLS, PEM' },
    client: { type: 'string', value: 'ID', help: 'only grants of this integration' },
    identity: {
      type: 'string',
      value: 'WHO',
      help: 'only grants of this identity: label:{id}, as X-Forwarded-User and the log have it',
    },
    name: {
      type: 'string',
      value: 'USER',
      help: 'the same by a user name, looked up in the directories of that gatehouse',
    },
    all: { type: 'boolean', help: 'list: those that have ended too, as long as they are remembered' },
    yes: { type: 'boolean', help: 'revoke: needed to end everything of a client or an identity' },
  },
  words: { least: 1, most: 101 },
  wordForm: /^-[A-Za-z0-9_-]{21}$/,
  notes: [
    'Ending everything of a client or an identity counts for every token issued until now, on every replica; new grants work.',
    'Each act stands in the audit log.',
  ],
  async run(context) {
    const [action = '', ...ids] = context.words;
    const act = Object.hasOwn(ACTIONS, action) ? ACTIONS[action] : undefined;
    if (act === undefined)
      throw new UsageError(`gatehouse grants: says list, show or revoke, not "${action.slice(0, 32)}"`);
    const target = await targetOf(context);
    return typeof target === 'number' ? target : act(context, target, ids);
  },
};

const ACTIONS: Readonly<
  Record<string, (context: Context, target: AdminTarget, ids: readonly string[]) => Promise<number>>
> = {
  async list(context, target, ids) {
    if (ids.length > 0)
      throw new UsageError('gatehouse grants list: takes no grant; use --client, --identity or --name');
    const { grants, cut } = await allGrants(context, target);
    if (context.json) writeJson(context, { grants, ...(cut && { cut }) });
    else printTable(context, grants);
    if (cut)
      context.stderr(
        `gatehouse: cut after ${grants.length} grants; there may be more. Name whose by --client, --identity or --name, or page through GET /admin/v1/grants.\n`,
      );
    return EXIT.ok;
  },

  async show(context, target, ids) {
    const [id] = ids;
    if (id === undefined || ids.length > 1) throw new UsageError('gatehouse grants show: takes one grant');
    const grant = await said(target, 'GET', `/grants/${encodeURIComponent(id)}`);
    if (context.json) writeJson(context, grant);
    else
      for (const [name, value] of Object.entries(grant))
        context.stdout(`${plain(name).padEnd(16)} ${TIMES.has(name) ? time(value) : plain(value)}\n`);
    return EXIT.ok;
  },

  async revoke(context, target, ids) {
    const holders = holderOptions(context).filter(([, value]) => value !== undefined);
    if ((ids.length === 0) === (holders.length === 0) || holders.length > 1)
      throw new UsageError(
        'gatehouse grants revoke: takes grants, or one of --client, --identity and --name',
      );
    const [holder] = holders;
    if (holder !== undefined) {
      const [name, value] = holder;
      if (!context.flag('yes'))
        throw new UsageError(
          `gatehouse grants revoke: ends every grant and token of this ${name === 'name' ? 'person' : name}; say --yes if you mean it`,
        );
      const { ended, live_grants: live } = await said(target, 'POST', '/revoke', { [name]: value ?? '' });
      if (context.json) writeJson(context, { ended, ...(live !== undefined && { live_grants: live }) });
      else {
        const [[what, whose] = [name, value]] = Object.entries(ended ?? {}) as [string, unknown][];
        context.stdout(`Ended: everything of ${plain(what)} ${plain(whose)} that was issued until now.\n`);
        if (typeof live === 'number')
          context.stdout(
            live === 0 ? 'It had no live grant: is the name right?\n' : `Live grants ended: ${live}.\n`,
          );
      }
      return EXIT.ok;
    }
    for (const id of ids) {
      await said(target, 'POST', `/grants/${encodeURIComponent(id)}/revoke`);
      if (!context.json) context.stdout(`Ended: ${id}\n`);
    }
    if (context.json) writeJson(context, { ended: ids });
    return EXIT.ok;
  },
};

/** A terminal is not the place for more; programs page through the API. */
const MOST = 100_000;
/** Pages may be short, and of what has ended: far more than there are grants to show. */
const MOST_PAGES = 100_000;

/** Page by page; `cut`: there may be more of them. */
async function allGrants(
  context: Context,
  target: AdminTarget,
): Promise<{ readonly grants: readonly GrantView[]; readonly cut: boolean }> {
  const strange = (what: string): CommandError =>
    new CommandError(`the admin listener ${target.url.origin} ${what}; is it gatehouse?`, EXIT.unavailable);
  // By id: a page may repeat a grant.
  const found = new Map<string, GrantView>();
  const seen = new Set<string>();
  let after: string | undefined;
  while (found.size < MOST && seen.size < MOST_PAGES) {
    const query = new URLSearchParams({ limit: '1000', state: context.flag('all') ? 'all' : 'live' });
    for (const [name, value] of [...holderOptions(context), ['after', after] as const])
      if (value !== undefined) query.set(name, value);
    const { grants, next } = await said(target, 'GET', `/grants?${query.toString()}`);
    if (!Array.isArray(grants) || !grants.every(isGrant)) throw strange('answered without grants');
    for (const grant of grants) found.set(grant.id, grant);
    if (typeof next !== 'string') return { grants: [...found.values()], cut: false };
    if (seen.has(next)) throw strange('names the same page again and again');
    seen.add(next);
    after = next;
  }
  return { grants: [...found.values()], cut: true };
}

/** As far as it matters here: the rest is shown as it is. */
const isGrant = (one: unknown): one is GrantView =>
  typeof one === 'object' && one !== null && typeof (one as Partial<GrantView>).id === 'string';

const holderOptions = (context: Context): [string, string | undefined][] => [
  ['client', context.option('client')],
  ['identity', context.option('identity')],
  ['name', context.option('name')],
];

async function said(
  target: AdminTarget,
  method: 'GET' | 'POST',
  path: string,
  body?: Readonly<Record<string, string>>,
): Promise<Answer['json']> {
  const { status, json } = await askAdmin(target, method, path, body);
  if (status === 200) return json;
  if (status === 401 && target.tokenFile !== undefined)
    throw new CommandError(refusedToken(target, target.tokenFile), EXIT.signIn);
  const words = plain(json['error_description'] ?? `the admin listener answered ${status}`);
  const code = status === 401 ? EXIT.signIn : status >= 500 ? EXIT.unavailable : EXIT.usage;
  throw new CommandError(words, code);
}

function refusedToken({ isOwnTokenFile }: AdminTarget, file: string): string {
  const fault = isOwnTokenFile === true ? adminTokenFault(file) : undefined;
  if (fault !== undefined) return `The admin token is refused: ${adminTokenProblem(fault)}`;
  return `The token in ${file} is not the one in admin.tokenFile of that gatehouse, or gatehouse refuses that file because other users can read it (its log then has admin_token_refused).`;
}

async function targetOf(context: Context): Promise<AdminTarget | number> {
  const read = (option: string, file: string): Buffer => {
    try {
      return readFileSync(resolve(context.cwd, file));
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      throw new CommandError(`--${option} ${file} cannot be read (${code})`, EXIT.configuration);
    }
  };
  const files = Object.fromEntries(
    ['cert', 'key', 'cacert'].flatMap((option) => {
      const file = context.option(option);
      return file === undefined ? [] : [[option, read(option, file)]];
    }),
  );
  const { cert, key, cacert } = files;
  if ((cert === undefined) !== (key === undefined))
    throw new UsageError('gatehouse grants: --cert and --key go together');
  mustBePair({ cert, key });
  const given = context.option('url');
  let [url, tokenFile] = [given, context.option('token-file')];
  let isOwnTokenFile = false;
  if (url === undefined) {
    const loaded = await settingsFor(context);
    if (typeof loaded === 'number') return loaded;
    const { admin } = loaded.settings;
    if (admin.port === 0)
      throw new UsageError(
        'gatehouse grants: admin.port is 0 (any free port); name the address with --url: the log line `ready` has it as adminPort',
      );
    url = adminUrl(admin);
    isOwnTokenFile = tokenFile === undefined || resolve(context.cwd, tokenFile) === admin.tokenFile;
    tokenFile ??= admin.tokenFile;
  }
  const address = webAddress('gatehouse grants: --url', url, { scheme: 'http' });
  // A redirect is not followed either: the token is for this address.
  if (cert === undefined) mustBePrivate('gatehouse grants', address);
  if (cert === undefined && tokenFile === undefined)
    throw new UsageError('gatehouse grants: --url needs --token-file, or --cert and --key');
  return {
    url: address,
    ...(cert === undefined
      ? {
          token: tokenIn(
            tokenFile ?? '',
            tokenFile === '-' ? await allOf(context) : read('token-file', tokenFile ?? ''),
          ),
          tokenFile: tokenFile === '-' ? 'standard input' : (tokenFile ?? ''),
          isOwnTokenFile,
        }
      : { cert, key }),
    ...(cacert !== undefined && { ca: cacert }),
  };
}

/** Editors and shells end files with a line break. */
function tokenIn(file: string, bytes: Buffer): string {
  const token = bytes.toString('utf8').trim();
  if (/^[\x20-\x7e]+$/.test(token)) return token;
  throw new CommandError(
    `--token-file ${file} holds ${token === '' ? 'nothing' : 'more than one line, or no text'}; the admin token alone is needed`,
    EXIT.configuration,
  );
}

const MOST_TOKEN = 4_096;

async function allOf({ stdin }: Context): Promise<Buffer> {
  const parts: Buffer[] = [];
  let length = 0;
  for await (const part of stdin) {
    const bytes = Buffer.from(part);
    length += bytes.length;
    // Never a part of it: that would be told as a wrong token.
    if (length > MOST_TOKEN)
      throw new CommandError(
        'standard input holds more than an admin token; the admin token alone is needed',
        EXIT.configuration,
      );
    parts.push(bytes);
  }
  return Buffer.concat(parts);
}

const TIMES = new Set(['issued', 'last_refreshed', 'until', 'revoked']);
const time = (seconds: unknown): string => {
  const date = new Date(Number(seconds) * 1_000);
  return Number.isNaN(date.getTime()) ? plain(seconds) : date.toISOString().slice(0, 16).replace('T', ' ');
};

function printTable(context: Context, grants: readonly GrantView[]): void {
  if (grants.length === 0) return context.stdout('There are none.\n');
  printColumns(context, [
    ['grant', 'client', 'identity', 'scope', 'by', 'state', 'last refreshed', 'until'],
    ...grants.map((one) =>
      [one.id, one.client, one.identity, one.scope, one.by, one.state]
        .map(plain)
        .concat(time(one.last_refreshed), time(one.until)),
    ),
  ]);
}
