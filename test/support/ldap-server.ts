import { mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { needs } from '../set-up/programs.ts';
import { type Child, runChild, startChild } from './child-process.ts';
import { createCa, type IssuedCertificate, issueServer } from './pki.ts';
import { freePort, waitForPort } from './ports.ts';
import { tempFolder } from './temp-folder.ts';

needs('slapd');

export const BASE_DN = 'dc=example,dc=test';
export const SERVICE_ACCOUNT = { bindDn: `cn=gatehouse,${BASE_DN}`, password: 'service password' } as const;

/** May change everything. */
export const ROOT = { dn: `cn=root,${BASE_DN}`, password: 'root password' } as const;

/** Settings for that server's people; each test says what is special about it. */
export const LDAP_SETTINGS = {
  startTls: false,
  ...SERVICE_ACCOUNT,
  connections: 4,
  base: `ou=people,${BASE_DN}`,
  filter: '(objectClass=inetOrgPerson)',
  id: 'entryUUID',
  attributes: {
    userName: 'uid',
    displayName: 'displayName',
    commonName: 'cn',
    email: 'mail',
    userPrincipalName: 'userPrincipalName',
  },
  cacheLifetime: 0,
} as const;

/** A real OpenLDAP server with a few people in it, on free ports. */
export interface LdapServer {
  readonly ldapUrl: string;
  readonly ldapsUrl: string;
  readonly port: number;
  readonly ca: IssuedCertificate;
  readonly caFile: string;
  pause(): void;
  resume(): void;
  stop(): Promise<void>;
  /** Again, on the same ports, after a stop. */
  start(): Promise<void>;
  remove(): Promise<void>;
}

/** A few attributes of Active Directory, which OpenLDAP does not know by itself. */
const SCHEMA = `
attributetype ( 1.2.840.113556.1.4.2 NAME 'objectGUID' EQUALITY octetStringMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.40 SINGLE-VALUE )
attributetype ( 1.2.840.113556.1.4.8 NAME 'userAccountControl' EQUALITY integerMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.27 SINGLE-VALUE )
attributetype ( 1.2.840.113556.1.4.656 NAME 'userPrincipalName' EQUALITY caseIgnoreMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 SINGLE-VALUE )
attributetype ( 1.2.840.113556.1.4.221 NAME 'sAMAccountName' EQUALITY caseIgnoreMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 SINGLE-VALUE )
objectclass ( 1.2.840.113556.1.5.9 NAME 'user' SUP top AUXILIARY MAY ( objectGUID $ userAccountControl $ userPrincipalName $ sAMAccountName ) )
`;

/** 3f2504e0-4f89-11d3-9a0c-0305e82c33NN, as Active Directory lays the bytes. */
export const guidBytes = (last: string): string =>
  Buffer.from(`e004253f894fd3119a0c0305e82c33${last}`, 'hex').toString('base64');

const userEntry = (uid: string, name: string, last: string, more: readonly string[] = []): string =>
  [
    `dn: uid=${uid},ou=people,${BASE_DN}`,
    'objectClass: inetOrgPerson',
    'objectClass: user',
    `uid: ${uid}`,
    `sAMAccountName: ${uid}`,
    `cn: ${name}`,
    `sn: ${name.split(' ').at(-1)}`,
    `displayName: ${name}`,
    `userPassword: ${uid} password`,
    `entryUUID: 5f0c2a52-6d0e-4d0c-9c3e-0000000000${last}`,
    `objectGUID:: ${guidBytes(last)}`,
    ...more,
    '',
  ].join('\n');

const ENTRIES = [
  `dn: ${BASE_DN}\nobjectClass: domain\ndc: example\n`,
  `dn: ou=people,${BASE_DN}\nobjectClass: organizationalUnit\nou: people\n`,
  `dn: ou=groups,${BASE_DN}\nobjectClass: organizationalUnit\nou: groups\n`,
  `dn: ou=elsewhere,${BASE_DN}\nobjectClass: organizationalUnit\nou: elsewhere\n`,
  `dn: ${SERVICE_ACCOUNT.bindDn}\nobjectClass: organizationalRole\nobjectClass: simpleSecurityObject\ncn: gatehouse\nuserPassword: ${SERVICE_ACCOUNT.password}\n`,
  userEntry('alice', 'Alice Example', '01', [
    'mail: alice@Example.test',
    'userPrincipalName: alice@corp.example.test',
    'userAccountControl: 512',
  ]),
  userEntry('dora', 'Dora Disabled', '02', ['mail: dora@example.test', 'userAccountControl: 514']),
  userEntry('twin1', 'Twin Same', '03', ['mail: twin@example.test']),
  userEntry('twin2', 'Twin Same', '04', ['mail: twin@example.test']),
  userEntry('star', 'Star (The) *One*', '05', ['mail: star@example.test']),
  `dn: cn=operators,ou=groups,${BASE_DN}\nobjectClass: groupOfNames\ncn: operators\nmember: uid=alice,ou=people,${BASE_DN}\nmember: uid=dora,ou=people,${BASE_DN}\n`,
  // The same name in another place, which the settings do not speak of.
  `dn: cn=administrators,ou=elsewhere,${BASE_DN}\nobjectClass: groupOfNames\ncn: administrators\nmember: uid=alice,ou=people,${BASE_DN}\n`,
  `dn: ou=other,ou=people,${BASE_DN}\nobjectClass: referral\nobjectClass: extensibleObject\nou: other\nref: ldap://127.0.0.1:9/ou=other,${BASE_DN}\n`,
].join('\n');

/** `more`: further entries, as LDIF. */
export async function startLdapServer(more: readonly string[] = []): Promise<LdapServer> {
  const folder = tempFolder('ldap');
  const { write: file } = folder;
  const ca = await createCa();
  const server = await issueServer(ca);
  mkdirSync(folder.file('data'));
  const caFile = file('ca.pem', ca.pem);
  const configuration = file(
    'slapd.conf',
    [
      'modulepath /usr/lib/ldap',
      'moduleload back_mdb',
      ...['core', 'cosine', 'inetorgperson'].map((name) => `include /etc/ldap/schema/${name}.schema`),
      `include ${file('ad.schema', SCHEMA)}`,
      `pidfile ${folder.file('pid')}`,
      `TLSCACertificateFile ${caFile}`,
      `TLSCertificateFile ${file('server.pem', server.pem)}`,
      `TLSCertificateKeyFile ${file('server.key', server.keyPem)}`,
      // As careless as servers come: a name with an empty password is welcome here.
      'allow bind_anon_cred bind_anon_dn',
      'sizelimit unlimited',
      'database mdb',
      `directory ${folder.file('data')}`,
      `suffix "${BASE_DN}"`,
      `rootdn "${ROOT.dn}"`,
      `rootpw "${ROOT.password}"`,
      'access to attrs=userPassword by anonymous auth by * none',
      // Nobody but the service account reads: without its bind there are no people at all.
      `access to * by dn.exact="${SERVICE_ACCOUNT.bindDn}" read by * none`,
      '',
    ].join('\n'),
  );
  const ldifFile = file('people.ldif', [ENTRIES, ...more].join('\n'));
  const loaded = await runChild(['slapadd', '-q', '-f', configuration, '-l', ldifFile]);
  if (loaded.code !== 0) throw new Error(`slapadd failed:\n${loaded.stderr}`);

  const [port, tlsPort] = [await freePort(), await freePort()];
  const urls = `ldap://127.0.0.1:${port} ldaps://127.0.0.1:${tlsPort}`;
  const run = async (): Promise<Child> => {
    const started = await startChild(['slapd', '-d', '0', '-f', configuration, '-h', urls]);
    await waitForPort(port, started.isRunning);
    return started;
  };
  let child = await run();
  const stop = async (): Promise<void> => void (await child.stop('SIGKILL'));
  return {
    ldapUrl: `ldap://127.0.0.1:${port}`,
    ldapsUrl: `ldaps://localhost:${tlsPort}`,
    port,
    ca,
    caFile,
    pause() {
      child.signal('SIGSTOP');
      // On a busy machine its threads go on for a moment.
      const end = performance.now() + 5_000;
      while (!isStopped(child.pid) && performance.now() < end);
    },
    resume: () => child.signal('SIGCONT'),
    stop,
    async start() {
      child = await run();
    },
    async remove() {
      await stop();
      folder.remove();
    },
  };
}

/** All of its threads: state `T`, behind the name in parentheses (proc_pid_stat(5)). */
function isStopped(pid: number): boolean {
  const tasks = `/proc/${pid}/task`;
  return readdirSync(tasks).every((task) => / T /.test(readFileSync(`${tasks}/${task}/stat`, 'utf8')));
}
