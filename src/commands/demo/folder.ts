import { spawnSync } from 'node:child_process';
import { randomBytes, randomUUID, type X509Certificate } from 'node:crypto';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { hashPassword } from '../../identity/password-hasher.ts';
import { Fault } from '../../ports/fault.ts';
import { acquireLock, prepareFolder, resolveStoreFiles } from '../../stores/embedded/folder.ts';
import { createKeyringFile, writeKeyringFile } from '../../tokens/keyring-file.ts';
import { CommandError, EXIT } from '../command.ts';
import { generatePassword } from '../generate-password.ts';
import { createPair, LOOPBACK_HOSTS } from '../pki/certificate.ts';
import {
  createPrivateFolder,
  readIfExists,
  readPair,
  refuseSymbolicLink,
  writePair,
  writePrivateFile,
} from '../pki/private-files.ts';
import { renderDemoConfiguration } from './configuration.ts';

const DEMO_USERS = [
  { name: 'alice', email: 'alice@example.test', displayName: 'Alice Example', group: 'operators' },
  { name: 'bob', email: 'bob@example.test', displayName: 'Bob Example', group: 'readers' },
] as const satisfies readonly (CertificateHolder & {
  readonly displayName: string;
  readonly group: string;
})[];

export type DemoFolder = Awaited<ReturnType<typeof prepareDemoFolder>>;

/** Creates missing files and renews certificates that are about to expire; everything else is kept. */
export async function prepareDemoFolder(folder: string, apiPort: number, now: number) {
  createPrivateFolder(folder);
  // The demo may run inside a git repository.
  if (!existsSync(join(folder, '.gitignore'))) writePrivateFile(join(folder, '.gitignore'), '*\n');

  const configuration = join(folder, 'gatehouse.yaml');
  const passwordFile = join(folder, 'passwords.txt');
  for (const path of [configuration, passwordFile, join(folder, 'data')]) refuseSymbolicLink(path);
  const isNew = !existsSync(configuration);
  if (isNew) {
    const users = await Promise.all(
      DEMO_USERS.map(async (user) => {
        const password = generatePassword();
        return { ...user, id: `{${randomUUID()}}`, password, passwordHash: await hashPassword(password) };
      }),
    );
    writePrivateFile(passwordFile, users.map(({ name, password }) => `${name} ${password}\n`).join(''));
    if (!existsSync(join(folder, 'data')))
      writeKeyringFile(join(folder, 'data', 'keys.json'), createKeyringFile('EdDSA'), { replace: false });
    writePrivateFile(configuration, renderDemoConfiguration(users, apiPort));
  }
  // By user name; undefined where passwords.txt was removed.
  const passwords: Readonly<Record<string, string | undefined>> = Object.fromEntries(
    (readIfExists(passwordFile) ?? '').split('\n').flatMap((line) => {
      const [name = '', password = ''] = line.split(' ');
      return name === '' || password === '' ? [] : [[name, password]];
    }),
  );
  const pki = join(folder, 'pki');
  // Names of certificates that were written.
  const renewed = await ensurePki(pki, DEMO_USERS, now);
  for (const { name } of DEMO_USERS) {
    const password = passwords[name];
    if (password !== undefined && (renewed.includes(name) || !existsSync(join(pki, `${name}.p12`))))
      writePkcs12File(pki, name, password);
  }
  return { folder, configuration, passwords, renewed, isNew };
}

/** For import into browsers. Omitted where OpenSSL is not installed: the walkthrough does not need it. */
function writePkcs12File(pki: string, name: string, password: string): void {
  const options = ['-in', `${name}.pem`, '-inkey', `${name}-key.pem`, '-certfile', 'ca.pem'];
  const output = ['-name', `gatehouse demo: ${name}`, '-passout', 'env:GATEHOUSE_DEMO_P12'];
  const env = { ...process.env, GATEHOUSE_DEMO_P12: password };
  const openssl = spawnSync('openssl', ['pkcs12', '-export', ...options, ...output], {
    cwd: pki,
    env,
    timeout: 10_000,
    stdio: 'pipe',
  });
  if (openssl.status === 0) writePrivateFile(join(pki, `${name}.p12`), openssl.stdout);
}

interface CertificateHolder {
  readonly name: string;
  readonly email: string;
}

const DAY = 86_400;
const CA_DAYS = 3_650;
const LEAF_DAYS = 365;
/** The CA must outlive its certificates; `gatehouse check` warns 30 days before expiry. */
const CA_RENEWAL_MARGIN = (LEAF_DAYS + 35) * DAY;
const LEAF_RENEWAL_MARGIN = 60 * DAY;
/**
 * Creates the development CA of the demo and its certificates. Missing, inconsistent, expired and soon expiring files are
 * replaced; everything else stays, so that clients can keep trusting `ca.pem`. Returns the names of those it wrote.
 */
export async function ensurePki(
  folder: string,
  holders: readonly CertificateHolder[],
  now: number,
): Promise<readonly string[]> {
  createPrivateFolder(folder);
  const found = readPair(folder, 'ca');
  const existing =
    found?.certificate.ca && isValidBeyond(found.certificate, now, CA_RENEWAL_MARGIN) ? found : undefined;
  const outdated = [{ name: 'server', email: undefined }, ...holders].filter(({ name, email }) => {
    const leaf = existing && readPair(folder, name)?.certificate;
    const isMatch = email === undefined ? leaf?.checkHost('localhost') !== undefined : leaf?.subject === `CN=${name}`;
    return !(
      leaf &&
      isMatch &&
      isValidBeyond(leaf, now, LEAF_RENEWAL_MARGIN) &&
      leaf.verify(existing.certificate.publicKey)
    );
  });
  if (existing !== undefined && outdated.length === 0) return [];

  // Distinguishable from the CA of another demo in logs.
  const caName = `gatehouse demo CA ${randomBytes(4).toString('hex')}`;
  const authority =
    existing ??
    createPair({
      use: 'ca',
      subject: [
        ['commonName', caName],
        ['organization', 'Only for this machine'],
      ],
      now,
      days: CA_DAYS,
    });
  if (existing === undefined) writePair(folder, 'ca', authority);
  for (const { name, email } of outdated)
    writePair(
      folder,
      name,
      createPair({
        authority,
        ...(email === undefined
          ? { use: 'server', subject: [['commonName', 'localhost']], hosts: LOOPBACK_HOSTS }
          : { use: 'client', subject: [['commonName', name]], email }),
        now,
        days: LEAF_DAYS,
      }),
    );
  return [...(existing === undefined ? ['ca'] : []), ...outdated.map(({ name }) => name)];
}

const isValidBeyond = ({ validFromDate, validToDate }: X509Certificate, now: number, margin: number): boolean =>
  validFromDate.getTime() <= now * 1_000 && validToDate.getTime() > (now + margin) * 1_000;

/** Locks the folder for one demo at a time; returns the function that unlocks it. */
export function lockDemoFolder(folder: string): () => void {
  refuseSymbolicLink(folder);
  const files = resolveStoreFiles(folder);
  try {
    prepareFolder(files);
    return acquireLock(files);
  } catch (error) {
    if (!(error instanceof Fault) || error.code !== 'store_locked') throw error;
    throw new CommandError(
      `${folder} is in use by another gatehouse demo; stop it, or choose another folder with --folder`,
      EXIT.configuration,
    );
  }
}
