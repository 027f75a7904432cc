import { spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { hashPassword } from '../../identity/password-hasher.ts';
import { createKeyringFile, writeKeyringFile } from '../../tokens/keyring-file.ts';
import { generatePassword } from '../generate-password.ts';
import { createPrivateFolder, readIfExists, refuseSymbolicLink, writePrivateFile } from '../pki/private-files.ts';
import { renderDemoConfiguration } from './configuration.ts';
import { type CertificateHolder, ensurePki, type RenewedNames } from './pki.ts';

const DEMO_USERS = [
  { name: 'alice', email: 'alice@example.test', displayName: 'Alice Example', group: 'operators' },
  { name: 'bob', email: 'bob@example.test', displayName: 'Bob Example', group: 'readers' },
] as const satisfies readonly (CertificateHolder & {
  readonly displayName: string;
  readonly group: string;
})[];

export interface DemoFolder {
  readonly folder: string;
  readonly configuration: string;
  /** By user name; undefined where passwords.txt was removed. */
  readonly passwords: Readonly<Record<string, string | undefined>>;
  readonly renewed: RenewedNames;
  readonly isNew: boolean;
}

/** Creates missing files and renews certificates that are about to expire; everything else is kept. */
export async function prepareDemoFolder(folder: string, apiPort: number, now: number): Promise<DemoFolder> {
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
  const passwords = Object.fromEntries(
    (readIfExists(passwordFile) ?? '').split('\n').flatMap((line) => {
      const [name = '', password = ''] = line.split(' ');
      return name === '' || password === '' ? [] : [[name, password]];
    }),
  );
  const pki = join(folder, 'pki');
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
