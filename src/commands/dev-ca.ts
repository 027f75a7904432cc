import { randomBytes, X509Certificate } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { isIP } from 'node:net';
import { join, resolve } from 'node:path';
import { largest } from '../lib/extremes.ts';
import { type Command, type CommandContext, CommandError, EXIT, UsageError, writeJson } from './command.ts';
import { createCrl, createPair, LOOPBACK_HOSTS, type NamePart, type PemPair } from './pki/certificate.ts';
import { isReservedName, readIfExists, readPair, refuseSymbolicLink } from './pki/private-files.ts';
import { quoteForShell, quoteForYaml } from './quote.ts';

/** `gatehouse check` warns during the last 30 days. */
const DEFAULT_DAYS = 90;
const MAX_DAYS = 3_650;
const MARK = 'development only';
const CONFIGURATION = 'gatehouse.yaml';

export const command: Command = {
  name: 'dev-ca',
  summary: 'creates a CA and certificates for trying gatehouse out; not for production',
  usage: [
    'gatehouse dev-ca [--host NAME]… [--client NAME]… [--days N] FOLDER',
    'gatehouse dev-ca --revoke NAME… FOLDER',
  ],
  options: {
    host: {
      multiple: true,
      value: 'NAME',
      help: 'a DNS name or IP address of the server, in addition to localhost, 127.0.0.1 and ::1; may be repeated',
    },
    client: {
      multiple: true,
      value: 'NAME',
      help: 'creates a client certificate with this common name; an email address is also its subjectAltName; may be repeated',
    },
    days: {
      value: 'N',
      help: `the lifetime of the server and client certificates (default: ${DEFAULT_DAYS}); at most that of the CA`,
    },
    revoke: {
      multiple: true,
      value: 'NAME',
      help: 'adds the client certificate NAME.pem to the revocation list crl.pem; may be repeated',
    },
  },
  positionals: { min: 1, max: 1, complete: ['folder'] },
  notes: [
    'In a folder that has a CA, --client adds certificates of this CA.',
    `A new CA is valid for ${DEFAULT_DAYS} days, or --days if that is more. All subjects contain "${MARK}", so that the certificates can be recognized in logs and browsers. Keys have mode 0600.`,
    'No certificate or key is overwritten. To start over, delete the folder; clients then need the new ca.pem.',
    'Anyone who has ca-key.pem can sign in as any user. Do not use this CA where that matters.',
  ],
  async run(context) {
    const [folder = ''] = context.positionals;
    const hosts = context.options('host').map(parseHost);
    const clients = parseClients('client', context.options('client'));
    const revoked = parseClients('revoke', context.options('revoke'));
    const days = parseDays(context.option('days'));
    if (revoked.length > 0) {
      if (hosts.length > 0 || clients.length > 0 || days !== undefined)
        throw new UsageError('gatehouse dev-ca: --revoke cannot be combined with other options');
      revoke(context, folder, revoked);
    } else create(context, { folder, hosts, clients, days: days ?? DEFAULT_DAYS });
  },
};

/** As in RFC 1123; the first label may be a wildcard. */
const DNS_NAME = /^(?:\*\.)?(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*$/;

function parseHost(text: string): string {
  const host = text.toLowerCase();
  if (isIP(host) !== 0 && !host.includes('%')) return host;
  if (DNS_NAME.test(host) && host.length <= 253 && !/^[\d.]+$/.test(host)) return host;
  throw new UsageError(
    `gatehouse dev-ca: --host must be a DNS name or an IP address without a port, such as api.example.test, not "${text.slice(0, 64)}"`,
  );
}

/** Common names, which are file names too. */
function parseClients(option: 'client' | 'revoke', names: readonly string[]): readonly string[] {
  const seen = new Set<string>();
  for (const name of names) {
    if (!/^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$/.test(name))
      throw new UsageError(
        `gatehouse dev-ca: --${option} must be 1 to 64 letters, digits, or . _ @ -, such as alice, not "${name.slice(0, 64)}"`,
      );
    if (isReservedName(name))
      throw new UsageError(`gatehouse dev-ca: --${option} ${name}: this name is used for another file`);
    // Some file systems ignore letter case.
    const fileName = name.toLowerCase();
    if (seen.has(fileName)) throw new UsageError(`gatehouse dev-ca: --${option} ${name} is given twice`);
    seen.add(fileName);
  }
  return names;
}

function parseDays(text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  const days = /^\d{1,4}$/.test(text) ? Number(text) : 0;
  if (days >= 1 && days <= MAX_DAYS) return days;
  throw new UsageError(`gatehouse dev-ca: --days must be an integer from 1 to ${MAX_DAYS}, not "${text.slice(0, 32)}"`);
}

interface CreateOptions {
  readonly folder: string;
  /** In addition to `LOOPBACK_HOSTS`. */
  readonly hosts: readonly string[];
  readonly clients: readonly string[];
  readonly days: number;
}

type Files = readonly (readonly [name: string, pair: PemPair])[];

function create(context: CommandContext, options: CreateOptions): void {
  const { folder, clients, days } = options;
  const path = resolve(context.cwd, folder);
  const existing = readAuthority(path);
  // A folder with a CA usually has a server certificate: --host requests another one.
  const hasServer = existing === undefined || options.hosts.length > 0;
  if (!hasServer && clients.length === 0)
    throw createError(
      `${join(path, 'ca.pem')} exists already, and nothing is overwritten; add a client certificate with --client NAME, or choose another folder`,
      EXIT.cannotCreate,
    );
  const now = Date.now() / 1_000;
  const createSubject = (commonName: string): readonly NamePart[] => [
    ['commonName', commonName],
    ['organization', `gatehouse: ${MARK}`],
  ];
  const ca =
    existing ??
    createPair({
      use: 'ca',
      // Distinguishable from the CA of another folder in the log line of a certificate that is not accepted.
      subject: createSubject(`gatehouse CA ${randomBytes(4).toString('hex')}, ${MARK}`),
      now,
      days: Math.max(days, DEFAULT_DAYS),
    });
  const common = { authority: ca, now, days, latest: new X509Certificate(ca.pem).validToDate };
  const hosts = hasServer ? [...new Set([...LOOPBACK_HOSTS, ...options.hosts])] : [];
  // Clients compare the subjectAltName of a server, not the common name.
  const serverSubject = createSubject(`gatehouse server, ${MARK}`);
  const issued: Files = [
    ...(hasServer
      ? [['server', createPair({ ...common, use: 'server', subject: serverSubject, hosts })] as const]
      : []),
    ...clients.map((name) => {
      const email = /^[^@]+@[^@]+$/.test(name) ? name : undefined;
      // The common name is the identity, so the mark is in the organization only.
      return [name, createPair({ ...common, use: 'client', subject: createSubject(name), email })] as const;
    }),
  ];
  writeFiles(path, existing === undefined ? [['ca', ca], ...issued] : issued);
  const notAfter = new X509Certificate(issued[0]?.[1].pem ?? ca.pem).validToDate;
  printCreated(context, { folder, isNew: existing === undefined, hosts, clients, notAfter });
}

/** The CA of a folder; undefined if there is none. */
function readAuthority(folder: string): PemPair | undefined {
  const file = join(folder, 'ca.pem');
  const keyFile = join(folder, 'ca-key.pem');
  for (const path of [folder, file, keyFile]) refuseSymbolicLink(path);
  if (!existsSync(file)) return undefined;
  if (!existsSync(keyFile)) throw createError(`${file} cannot issue certificates: ca-key.pem is missing`, EXIT.noInput);
  const pair = readPair(folder, 'ca');
  if (pair === undefined) throw createError(`${file} and ca-key.pem are not a certificate and its key`);
  const { certificate, key, ...authority } = pair;
  if (!certificate.ca) throw createError(`${file} is not a CA certificate`);
  if (key.asymmetricKeyDetails?.namedCurve !== 'prime256v1')
    throw createError(`${file} has a key that \`gatehouse dev-ca\` has not created; only P-256 is supported`);
  if (certificate.validToDate.getTime() <= Date.now())
    throw createError(`${file} expired on ${toDate(certificate.validToDate)}; delete the folder to start over`);
  return authority;
}

const createError = (message: string, code: number = EXIT.data): CommandError => new CommandError(message, code);

function write(folder: string, writeFiles: () => void): void {
  try {
    writeFiles();
  } catch (error) {
    const { code = 'unknown error' } = error as NodeJS.ErrnoException;
    throw createError(`${folder}: the files cannot be written (${code})`, EXIT.cannotCreate);
  }
}

function writeFiles(folder: string, files: Files): void {
  const contents = files.flatMap(
    ([name, { pem, keyPem }]) =>
      [
        [join(folder, `${name}.pem`), pem, 0o644],
        [join(folder, `${name}-key.pem`), keyPem, 0o600],
      ] as const,
  );
  for (const [file] of contents) refuseSymbolicLink(file);
  const existing = contents.find(([file]) => existsSync(file));
  if (existing !== undefined)
    throw createError(
      `${existing[0]} exists already, and nothing is overwritten; choose another name or folder, or delete this file and its key`,
      EXIT.cannotCreate,
    );
  write(folder, () => {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    // `wx`: a file that was created in the meantime is not replaced either.
    for (const [file, content, mode] of contents) writeFileSync(file, content, { mode, flag: 'wx' });
  });
}

function revoke(context: CommandContext, folder: string, names: readonly string[]): void {
  const path = resolve(context.cwd, folder);
  const authority = readAuthority(path);
  if (authority === undefined) throw createError(`${path} has no CA (ca.pem and ca-key.pem)`, EXIT.noInput);
  const { publicKey } = new X509Certificate(authority.pem);
  const certificates = names.map((name) => readIssued(join(path, `${name}.pem`), publicKey));
  const file = join(path, 'crl.pem');
  const newFile = `${file}.new`;
  // The new file is also the lock: another --revoke must not read the list before it is replaced.
  if (existsSync(newFile))
    throw createError(`${newFile} exists: another --revoke is running; if not, delete this file`, EXIT.cannotCreate);
  write(path, () => writeFileSync(newFile, '', { mode: 0o644, flag: 'wx' }));
  try {
    writeFileSync(newFile, createCrl(authority, certificates, readIfExists(file), new Date()));
    renameSync(newFile, file);
  } catch (error) {
    rmSync(newFile, { force: true });
    throw error instanceof CommandError ? error : createError(`${file} ${(error as Error).message}`);
  }
  printRevoked(context, folder, names);
}

function readIssued(file: string, publicKey: X509Certificate['publicKey']): X509Certificate {
  if (!existsSync(file))
    throw createError(`${file} does not exist; a certificate is revoked by its file`, EXIT.noInput);
  let certificate: X509Certificate;
  try {
    certificate = new X509Certificate(readFileSync(file));
  } catch {
    throw createError(`${file} is not a certificate`);
  }
  if (certificate.verify(publicKey)) return certificate;
  throw createError(`${file} was not issued by the CA of this folder`);
}

function printRevoked(context: CommandContext, folder: string, names: readonly string[]): void {
  const file = join(folder, 'crl.pem');
  if (context.json) return writeJson(context, { folder, crl: file, revoked: names });
  context.stdout(
    [
      `Revoked: ${names.join(', ')}. The revocation list is ${file}.`,
      '',
      `In ${CONFIGURATION}, if it is not there yet:`,
      '',
      '  certificates:',
      `    crls: [${quoteForYaml(file)}]`,
      '',
      'A running gatehouse reads the list again when the file changes, and issues no more tokens for this certificate.',
      'Tokens that it issued before stay valid until they expire; `gatehouse grants revoke` ends them now.',
      '',
    ].join('\n'),
  );
}

/** `isNew`: the CA is new too. `hosts` is empty if there is no new server certificate. */
type Created = Omit<CreateOptions, 'days'> & { readonly isNew: boolean; readonly notAfter: Date };

const toDate = (date: Date): string => date.toISOString().slice(0, 10);

function printCreated(context: CommandContext, created: Created): void {
  const { folder, isNew, hosts, clients, notAfter } = created;
  const path = (name: string): string => join(folder, name);
  const pair = (name: string) => ({ certificate: path(`${name}.pem`), key: path(`${name}-key.pem`) });
  if (context.json)
    return writeJson(context, {
      folder,
      notAfter: notAfter.toISOString(),
      ca: pair('ca'),
      ...(hosts.length > 0 && { server: { ...pair('server'), hosts } }),
      clients: clients.map((name) => ({ name, ...pair(name) })),
    });
  const rows = [
    ...(isNew ? [['ca.pem', 'the CA; ca-key.pem is its key']] : []),
    ...(hosts.length > 0 ? [['server.pem', `the server: ${hosts.join(', ')}`]] : []),
    ...clients.map((name) => [`${name}.pem`, `the client ${name}`]),
  ];
  const width = largest(rows.map(([name = '']) => name.length));
  context.stdout(
    [
      `Created in ${folder}, for ${MARK}, valid until ${toDate(notAfter)}:`,
      ...rows.map(([name = '', text]) => `  ${name.padEnd(width)}  ${text}`),
      'The key of each is in NAME-key.pem.',
      '',
      ...(isNew ? listSettings(path) : []),
      ...clients.slice(0, 1).flatMap((client) => listTokenRequest(folder, client)),
    ].join('\n'),
  );
}

const listSettings = (path: (name: string) => string): readonly string[] => [
  `In ${CONFIGURATION}, where paths are relative to that file:`,
  '',
  '  listen:',
  '    tls:',
  `      certificate: ${quoteForYaml(path('server.pem'))}`,
  `      key: ${quoteForYaml(path('server-key.pem'))}`,
  '  certificates:',
  `    issuers: [${quoteForYaml(path('ca.pem'))}]`,
  '',
];

function listTokenRequest(folder: string, client: string): readonly string[] {
  const quote = (name: string): string => quoteForShell(join(folder, name));
  return [
    'A token request, once gatehouse runs, with your publicUrl and a clientId of your integrations:',
    '',
    `  curl --cacert ${quote('ca.pem')} --cert ${quote(`${client}.pem`)} --key ${quote(`${client}-key.pem`)} \\`,
    '    -d grant_type=client_credentials -d client_id=CLIENT_ID PUBLIC_URL/authsvc/oauth2/token',
    '',
  ];
}
