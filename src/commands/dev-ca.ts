import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { isIP } from 'node:net';
import { join, resolve } from 'node:path';
import { type Command, type CommandContext, CommandError, EXIT, UsageError, writeJson } from './command.ts';
import { createAuthority, createClient, createServer, LOOPBACK_HOSTS, type PemPair } from './pki/issue.ts';
import { quoteForShell, quoteForYaml } from './quote.ts';

/** `gatehouse check` warns during the last 30 days. */
const DAYS = 90;
const MARK = 'development only';

export const command: Command = {
  name: 'dev-ca',
  summary: 'creates a CA and certificates for trying gatehouse out; not for production',
  usage: ['gatehouse dev-ca [--host NAME]… [--client NAME]… FOLDER'],
  options: {
    host: {
      type: 'string',
      multiple: true,
      value: 'NAME',
      help: 'a DNS name or IP address of the server, in addition to localhost, 127.0.0.1 and ::1; may be repeated',
    },
    client: {
      type: 'string',
      multiple: true,
      value: 'NAME',
      help: 'creates a client certificate with this common name; an email address is also its subjectAltName; may be repeated',
    },
  },
  positionals: { min: 1, max: 1, complete: ['folder'] },
  notes: [
    `The certificates are valid for ${DAYS} days. Their subjects contain "${MARK}", so that they can be recognized in logs and browsers. Keys have mode 0600.`,
    'Nothing is overwritten. To start over, delete the folder; clients then need the new ca.pem.',
    'Anyone who has ca-key.pem can sign in as any user. Do not use this CA where that matters.',
  ],
  async run(context) {
    const folder = context.positionals[0] ?? '';
    const hosts = [...new Set([...LOOPBACK_HOSTS, ...context.options('host').map(parseHost)])];
    const clients = parseClients(context.options('client'));
    const now = Date.now() / 1_000;
    writeFiles(resolve(context.cwd, folder), createFiles(hosts, clients, now));
    printResult(context, { folder, hosts, clients, notAfter: new Date((now + DAYS * 86_400) * 1_000) });
    return EXIT.ok;
  },
};

/** As in RFC 1123; the first label may be a wildcard. */
const DNS_NAME =
  /^(?:\*\.)?(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*$/;

function parseHost(text: string): string {
  const host = text.toLowerCase();
  if (isIP(host) !== 0 && !host.includes('%')) return host;
  if (DNS_NAME.test(host) && host.length <= 253 && !/^[\d.]+$/.test(host)) return host;
  throw new UsageError(
    `gatehouse dev-ca: --host must be a DNS name or an IP address without a port, such as api.example.test, not "${text.slice(0, 64)}"`,
  );
}

/** Common names, which are file names too. */
function parseClients(names: readonly string[]): readonly string[] {
  const seen = new Set<string>();
  for (const name of names) {
    if (!/^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$/.test(name))
      throw new UsageError(
        `gatehouse dev-ca: --client must be 1 to 64 letters, digits, or . _ @ -, such as alice, not "${name.slice(0, 64)}"`,
      );
    // Some file systems ignore letter case.
    const fileName = name.toLowerCase();
    if (fileName === 'ca' || fileName === 'server' || fileName.endsWith('-key'))
      throw new UsageError(`gatehouse dev-ca: --client ${name}: this name is used for another file`);
    if (seen.has(fileName)) throw new UsageError(`gatehouse dev-ca: --client ${name} is given twice`);
    seen.add(fileName);
  }
  return names;
}

type Files = readonly (readonly [name: string, pair: PemPair])[];

function createFiles(hosts: readonly string[], clients: readonly string[], now: number): Files {
  const validity = { now, days: DAYS };
  const organization = ['organization', `gatehouse: ${MARK}`] as const;
  const ca = createAuthority([['commonName', `gatehouse CA, ${MARK}`], organization], validity);
  // Clients compare the subjectAltName, not the common name.
  const server = { subject: [['commonName', `gatehouse server, ${MARK}`] as const, organization], hosts };
  return [
    ['ca', ca],
    ['server', createServer(ca, server, validity)],
    ...clients.map((name) => {
      const client = {
        // The common name is the identity, so the mark is in the organization only.
        subject: [['commonName', name] as const, organization],
        email: /^[^@]+@[^@]+$/.test(name) ? name : undefined,
      };
      return [name, createClient(ca, client, validity)] as const;
    }),
  ];
}

function writeFiles(folder: string, files: Files): void {
  const contents = files.flatMap(
    ([name, { pem, keyPem }]) =>
      [
        [join(folder, `${name}.pem`), pem, 0o644],
        [join(folder, `${name}-key.pem`), keyPem, 0o600],
      ] as const,
  );
  const existing = contents.find(([file]) => existsSync(file));
  if (existing !== undefined)
    throw new CommandError(
      `${existing[0]} exists already, and nothing is overwritten; choose another folder, or delete this one`,
      EXIT.configuration,
    );
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    // `wx`: a file that was created in the meantime is not replaced either.
    for (const [file, content, mode] of contents) writeFileSync(file, content, { mode, flag: 'wx' });
  } catch (error) {
    const { code = 'unknown error' } = error as NodeJS.ErrnoException;
    throw new CommandError(`${folder}: the files cannot be written (${code})`, EXIT.configuration);
  }
}

interface Result {
  readonly folder: string;
  readonly hosts: readonly string[];
  readonly clients: readonly string[];
  readonly notAfter: Date;
}

function printResult(context: CommandContext, { folder, hosts, clients, notAfter }: Result): void {
  const path = (name: string): string => join(folder, name);
  const pair = (name: string) => ({ certificate: path(`${name}.pem`), key: path(`${name}-key.pem`) });
  if (context.json)
    return writeJson(context, {
      folder,
      notAfter: notAfter.toISOString(),
      ca: pair('ca'),
      server: { ...pair('server'), hosts },
      clients: clients.map((name) => ({ name, ...pair(name) })),
    });
  const rows = [
    ['ca.pem', 'the CA; ca-key.pem is its key'],
    ['server.pem', `the server: ${hosts.join(', ')}`],
    ...clients.map((name) => [`${name}.pem`, `the client ${name}`]),
  ];
  const width = Math.max(...rows.map(([name = '']) => name.length));
  const [client] = clients;
  const host = hosts[LOOPBACK_HOSTS.length] ?? 'localhost';
  const url = `https://${isIP(host) === 6 ? `[${host}]` : host.replace(/^\*\./, 'www.')}:8443`;
  const curl = [
    `curl --cacert ${quoteForShell(path('ca.pem'))}`,
    ...(client === undefined
      ? []
      : [`--cert ${quoteForShell(path(`${client}.pem`))} --key ${quoteForShell(path(`${client}-key.pem`))}`]),
  ];
  context.stdout(
    [
      `Created in ${folder}, for ${MARK}, valid until ${notAfter.toISOString().slice(0, 10)}:`,
      ...rows.map(([name = '', text]) => `  ${name.padEnd(width)}  ${text}`),
      'The key of each is in NAME-key.pem.',
      '',
      'In gatehouse.yaml, where paths are relative to that file:',
      '',
      `  publicUrl: ${url}`,
      '  listen:',
      '    tls:',
      `      certificate: ${quoteForYaml(path('server.pem'))}`,
      `      key: ${quoteForYaml(path('server-key.pem'))}`,
      '  certificates:',
      `    issuers: [${quoteForYaml(path('ca.pem'))}]`,
      '',
      'A request, once gatehouse serves it:',
      '',
      ...curl.map((line, index) => `${index === 0 ? '  ' : '    '}${line} \\`),
      `    ${url}/`,
      '',
    ].join('\n'),
  );
}
