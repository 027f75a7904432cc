import { mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { needs } from '../set-up/programs.ts';
import { type Child, runChild, startChild } from './child-process.ts';
import { createCa, type IssuedCertificate, issueServer } from './pki.ts';
import { freePort, waitForPort } from './ports.ts';
import { tempFolder } from './temp-folder.ts';

needs('slapd');

export const BASE_DN = 'dc=example,dc=test';
export const SERVICE_ACCOUNT = { bindDn: `cn=gatehouse,${BASE_DN}`, password: 'service password' } as const;

/** May read and change all entries. */
export const ROOT = { dn: `cn=root,${BASE_DN}`, password: 'root password' } as const;

/** Settings for the users of this server; tests override what they need. */
export const LDAP_SETTINGS = {
  startTls: false,
  ...SERVICE_ACCOUNT,
  base: `ou=people,${BASE_DN}`,
  filter: '(objectClass=inetOrgPerson)',
  id: 'entryUUID',
  attributes: {
    userName: 'uid',
    displayName: 'displayName',
    commonName: 'cn',
    email: 'mail',
    userPrincipalName: 'userPrincipalName',
    dnsName: 'dNSHostName',
    uri: 'labeledURI',
  },
  cacheLifetime: 0,
} as const;

/** A real OpenLDAP server with a few users, on free ports. */
export interface LdapServer {
  readonly ldapUrl: string;
  readonly ldapsUrl: string;
  readonly port: number;
  readonly ca: IssuedCertificate;
  readonly caFile: string;
  pause(): void;
  resume(): void;
  stop(): Promise<void>;
  /** Restarts it on the same ports after `stop`. */
  start(): Promise<void>;
  remove(): Promise<void>;
}

/** Active Directory attributes that OpenLDAP's schemas lack. */
const SCHEMA = `
attributetype ( 1.2.840.113556.1.4.2 NAME 'objectGUID' EQUALITY octetStringMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.40 SINGLE-VALUE )
attributetype ( 1.2.840.113556.1.4.8 NAME 'userAccountControl' EQUALITY integerMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.27 SINGLE-VALUE )
attributetype ( 1.2.840.113556.1.4.656 NAME 'userPrincipalName' EQUALITY caseIgnoreMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 SINGLE-VALUE )
attributetype ( 1.2.840.113556.1.4.619 NAME 'dNSHostName' EQUALITY caseIgnoreMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 SINGLE-VALUE )
attributetype ( 1.2.840.113556.1.4.221 NAME 'sAMAccountName' EQUALITY caseIgnoreMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 SINGLE-VALUE )
objectclass ( 1.2.840.113556.1.5.9 NAME 'user' SUP top AUXILIARY MAY ( objectGUID $ userAccountControl $ userPrincipalName $ sAMAccountName $ dNSHostName ) )
`;

/** 3f2504e0-4f89-11d3-9a0c-0305e82c33NN in Active Directory's byte order. */
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
    'dNSHostName: alice-pc.Example.test',
    'labeledURI: spiffe://example.org/alice',
    'userAccountControl: 512',
  ]),
  userEntry('dora', 'Dora Disabled', '02', ['mail: dora@example.test', 'userAccountControl: 514']),
  userEntry('twin1', 'Twin Same', '03', ['mail: twin@example.test']),
  userEntry('twin2', 'Twin Same', '04', ['mail: twin@example.test']),
  userEntry('star', 'Star (The) *One*', '05', ['mail: star@example.test']),
  `dn: cn=operators,ou=groups,${BASE_DN}\nobjectClass: groupOfNames\ncn: operators\nmember: uid=alice,ou=people,${BASE_DN}\nmember: uid=dora,ou=people,${BASE_DN}\n`,
  // A group with the same name outside the configured group base.
  `dn: cn=administrators,ou=elsewhere,${BASE_DN}\nobjectClass: groupOfNames\ncn: administrators\nmember: uid=alice,ou=people,${BASE_DN}\n`,
  `dn: ou=other,ou=people,${BASE_DN}\nobjectClass: referral\nobjectClass: extensibleObject\nou: other\nref: ldap://127.0.0.1:9/ou=other,${BASE_DN}\n`,
].join('\n');

/** `more`: additional entries, as LDIF. */
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
      // Accepts a bind with a DN and an empty password (RFC 4513 §5.1.2), as insecure servers do.
      'allow bind_anon_cred bind_anon_dn',
      'sizelimit unlimited',
      'database mdb',
      `directory ${folder.file('data')}`,
      `suffix "${BASE_DN}"`,
      `rootdn "${ROOT.dn}"`,
      `rootpw "${ROOT.password}"`,
      'access to attrs=userPassword by anonymous auth by * none',
      // Only the service account may read: without its bind, a search returns nothing.
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
      // On a busy machine, its threads run for another moment.
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

/** Whether all threads are stopped: state `T` after the name in parentheses (proc_pid_stat(5)). */
function isStopped(pid: number): boolean {
  const tasks = `/proc/${pid}/task`;
  return readdirSync(tasks).every((task) => / T /.test(readFileSync(`${tasks}/${task}/stat`, 'utf8')));
}
