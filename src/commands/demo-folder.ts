import { spawnSync } from 'node:child_process';
import { randomInt, randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { hashPassword } from '../identity/passwords.ts';
import { newKeyring, writeKeyringFile } from '../tokens/keyring-file.ts';
import { demoConfiguration } from './demo-configuration.ts';
import { makeFolder, readIfThere, writeOwn } from './demo-files.ts';
import { type DemoPerson, ensurePki, type Renewed } from './demo-pki.ts';

export const PEOPLE = [
  { name: 'alice', email: 'alice@example.test', displayName: 'Alice Example', group: 'operators' },
  { name: 'bob', email: 'bob@example.test', displayName: 'Bob Example', group: 'readers' },
] as const satisfies readonly (DemoPerson & { readonly displayName: string; readonly group: string })[];

export interface DemoFolder {
  readonly folder: string;
  readonly configuration: string;
  /** By name, as printed in the story; undefined where somebody took the demo's note of it away. */
  readonly passwords: Readonly<Record<string, string | undefined>>;
  /** Certificates that were made or renewed just now. */
  readonly renewed: Renewed;
  readonly fresh: boolean;
}

/** Makes what is missing in the demo's folder and leaves what is there, but for certificates near their end. */
export async function prepareDemoFolder(
  folder: string,
  ports: { readonly api: number },
  now: number,
): Promise<DemoFolder> {
  makeFolder(folder);
  // Somebody may run the demo inside a repository of their own: nothing in here is to be committed.
  if (!existsSync(join(folder, '.gitignore'))) writeOwn(join(folder, '.gitignore'), '*\n');

  const configuration = join(folder, 'gatehouse.yaml');
  const notes = join(folder, 'passwords.txt');
  const fresh = !existsSync(configuration);
  if (fresh) {
    const users = await Promise.all(
      PEOPLE.map(async (person) => {
        const password = newPassword();
        return { ...person, id: `{${randomUUID()}}`, password, passwordHash: await hashPassword(password) };
      }),
    );
    writeOwn(notes, users.map(({ name, password }) => `${name} ${password}\n`).join(''));
    if (!existsSync(join(folder, 'data')))
      writeKeyringFile(join(folder, 'data', 'keys.json'), newKeyring('EdDSA'), { replace: false });
    writeOwn(configuration, demoConfiguration({ users, apiPort: ports.api }));
  }
  const passwords = Object.fromEntries(
    (readIfThere(notes) ?? '').split('\n').flatMap((line) => {
      const [name = '', password = ''] = line.split(' ');
      return name === '' || password === '' ? [] : [[name, password]];
    }),
  );
  const pki = join(folder, 'pki');
  const renewed = await ensurePki(pki, PEOPLE, now);
  for (const { name } of PEOPLE) {
    const password = passwords[name];
    if (password !== undefined && (renewed.includes(name) || !existsSync(join(pki, `${name}.p12`))))
      writeBrowserFile(pki, name, password);
  }
  return { folder, configuration, passwords, renewed, fresh };
}

const LETTERS = 'bcdfghjkmnpqrstvwxz';

/** Twelve letters without look-alikes: about 50 bits, and easy to type from a terminal into a browser. */
function newPassword(): string {
  const letters = Array.from({ length: 12 }, () => LETTERS[randomInt(LETTERS.length)]).join('');
  return (letters.match(/.{4}/g) ?? []).join('-');
}

/** Certificate and key in the form browsers import. Left out where OpenSSL is not installed: the story needs none. */
function writeBrowserFile(pki: string, name: string, password: string): void {
  const made = spawnSync(
    'openssl',
    [
      'pkcs12',
      '-export',
      '-in',
      `${name}.pem`,
      '-inkey',
      `${name}-key.pem`,
      '-certfile',
      'ca.pem',
      '-name',
      `gatehouse demo: ${name}`,
      '-passout',
      'env:GATEHOUSE_DEMO_P12',
    ],
    { cwd: pki, env: { ...process.env, GATEHOUSE_DEMO_P12: password }, timeout: 10_000, stdio: 'pipe' },
  );
  if (made.status === 0) writeOwn(join(pki, `${name}.p12`), made.stdout);
}
