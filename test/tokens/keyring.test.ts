import { spawnSync } from 'node:child_process';
import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { openKeyring } from '../../src/tokens/keyring.ts';
import {
  createKeyringFile,
  describeKeyring,
  findEarlyRetirements,
  type KeyringFile,
  readKeyringFile,
  rotateKeyring,
  writeKeyringFile,
} from '../../src/tokens/keyring-file.ts';

const NOW = 1_800_000_000;
let folder: string;
let file: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'gatehouse-keys-'));
  file = join(folder, 'keys.json');
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const write = (keys: KeyringFile): void => writeKeyringFile(file, keys, { replace: true });
const rotation = { alg: 'EdDSA', now: NOW + 1_000, publishBefore: 300, keep: 5_000 } as const;

describe('the key file', () => {
  test('is readable by its owner only, whatever the umask, and leaves no temporary files', () => {
    const before = process.umask(0o000);
    try {
      write(createKeyringFile('EdDSA'));
      write(rotateKeyring(readKeyringFile(file), rotation));
    } finally {
      process.umask(before);
    }
    expect(statSync(file).mode & 0o777).toBe(0o600);
    expect(readdirSync(folder)).toEqual(['keys.json']);
  });

  test.each([0o644, 0o640, 0o604, 0o660, 0o666, 0o601])('mode %o is refused, with the remedy', (mode) => {
    write(createKeyringFile('EdDSA'));
    chmodSync(file, mode);
    expect(() => readKeyringFile(file)).toThrow(/chmod 600/);
  });

  test('when only a part of the new file can be written, the old one stays and no temporary file remains', () => {
    const old = rotateKeyring(createKeyringFile('EdDSA'), rotation);
    write(old);
    const module = new URL('../../src/tokens/keyring-file.ts', import.meta.url);
    const script = `
      import { readKeyringFile, rotateKeyring, writeKeyringFile } from ${JSON.stringify(module)};
      const [, file] = process.argv;
      const rotated = rotateKeyring(readKeyringFile(file), ${JSON.stringify(rotation)});
      writeKeyringFile(file, rotated, { replace: true });`;
    // RLIMIT_FSIZE of 1 KiB: the first write is cut short, as on a full disk; the next one fails.
    const { status, stderr } = spawnSync(
      'bash',
      ['-c', 'ulimit -f 1; exec "$@"', 'bash', process.execPath, '--input-type=module', '-e', script, file],
      { encoding: 'utf8' },
    );
    expect(stderr).toContain('EFBIG');
    expect(status).toBe(1);
    expect(readKeyringFile(file)).toEqual(old);
    expect(readdirSync(folder)).toEqual(['keys.json']);
  });

  test('an existing file is not overwritten by a new one', () => {
    write(createKeyringFile('EdDSA'));
    const before = readFileSync(file, 'utf8');
    expect(() => writeKeyringFile(file, createKeyringFile('EdDSA'), { replace: false })).toThrow(/exists already/);
    expect(readFileSync(file, 'utf8')).toBe(before);
  });

  test('a missing file is reported as missing, with the command that creates one', () => {
    expect(() => readKeyringFile(file)).toThrow(/no such key file.*gatehouse keys new/);
  });

  test.each([
    ['empty', () => ''],
    ['truncated', (text: string) => text.slice(0, text.length / 2)],
    ['not JSON', () => 'keys: none'],
    ['of another version', (text: string) => text.replace('"version": 1', '"version": 2')],
    ['without signing keys', (text: string) => JSON.stringify({ ...JSON.parse(text), signing: [] })],
    ['without sealing keys', (text: string) => JSON.stringify({ ...JSON.parse(text), sealing: [] })],
    ['with an unknown field', (text: string) => JSON.stringify({ ...JSON.parse(text), extra: 1 })],
    ['with a truncated sealing secret', (text: string) => text.replace(/("secret": ")../, '$1')],
    ['with an unsupported algorithm', (text: string) => text.replace('"EdDSA"', '"HS256"')],
    ['with an invalid kid', (text: string) => text.replace(/"kid": "[^"]+"/, '"kid": "../x"')],
  ])('a file that is %s is rejected, and the message contains no key', (_, damage) => {
    const keys = createKeyringFile('EdDSA');
    write(keys);
    writeFileSync(file, damage(readFileSync(file, 'utf8')));
    let message = '';
    try {
      readKeyringFile(file);
    } catch (error) {
      ({ message } = error as Error);
    }
    expect(message).toContain(file);
    for (const secret of [keys.signing[0]?.jwk.d, keys.sealing[0]?.secret])
      expect(message).not.toContain(secret?.slice(2, 20) ?? 'never');
  });

  test('two keys with the same kid are rejected', () => {
    const keys = createKeyringFile('EdDSA');
    const [sealing] = keys.sealing;
    if (sealing === undefined) throw new Error('no sealing key');
    write({ ...keys, sealing: [sealing, sealing] });
    expect(() => readKeyringFile(file)).toThrow(/same kid/);
  });

  test('key information contains no secret keys', async () => {
    const keys = rotateKeyring(createKeyringFile('ES256'), rotation);
    const ring = await openKeyring(keys);
    const text = JSON.stringify([
      describeKeyring(keys, NOW),
      ring.signingKeys.map(({ publicJwk }) => publicJwk),
      [...ring.fingerprints],
    ]);
    for (const { jwk } of keys.signing) {
      expect(text).toContain(jwk.x);
      expect(text).not.toContain(jwk.d);
    }
    for (const { secret } of keys.sealing) expect(text).not.toContain(secret);
  });
});

describe('rotation', () => {
  const first = createKeyringFile('EdDSA');
  const second = rotateKeyring(first, rotation);
  const listKids = (keys: KeyringFile) => ({
    signing: keys.signing.map(({ kid }) => kid),
    sealing: keys.sealing.map(({ kid }) => kid),
  });
  const activeFrom = rotation.now + rotation.publishBefore;
  const retireAt = activeFrom + rotation.keep;

  test('the new keys are published at once and sign tokens only after publishBefore', async () => {
    const ring = await openKeyring(second);
    const [oldKey = '', newKey = ''] = listKids(second).signing;
    expect(ring.signingKeys.map(({ publicJwk }) => publicJwk['kid'])).toEqual([oldKey, newKey]);
    expect(ring.current(activeFrom - 1)).toEqual({ signing: oldKey, sealing: listKids(second).sealing[0] });
    expect(ring.current(activeFrom)).toEqual({ signing: newKey, sealing: listKids(second).sealing[1] });
  });

  test('old and new overlap: both verify from 5 s before the change, to allow for clocks that are ahead, until the old one retires', async () => {
    const ring = await openKeyring(second);
    const [oldKey = '', newKey = ''] = listKids(second).signing;
    expect([ring.isVerificationKey(oldKey, activeFrom - 6), ring.isVerificationKey(newKey, activeFrom - 6)]).toEqual([
      true,
      false,
    ]);
    expect(ring.isVerificationKey(newKey, activeFrom - 5)).toBe(true);
    expect([ring.isVerificationKey(oldKey, activeFrom), ring.isVerificationKey(newKey, activeFrom)]).toEqual([
      true,
      true,
    ]);
    expect([ring.isVerificationKey(oldKey, retireAt - 1), ring.isVerificationKey(newKey, retireAt - 1)]).toEqual([
      true,
      true,
    ]);
    expect([ring.isVerificationKey(oldKey, retireAt), ring.isVerificationKey(newKey, retireAt)]).toEqual([false, true]);
  });

  test('a second rotation does not extend a retiring key, and a retired key is removed from the file', () => {
    const third = rotateKeyring(second, { ...rotation, now: rotation.now + 1_000 });
    expect(third.signing.map((key) => key.retireAt)).toEqual([retireAt, retireAt + 1_000, undefined]);
    const late = rotateKeyring(third, { ...rotation, now: retireAt });
    expect(listKids(late).signing).not.toContain(listKids(first).signing[0]);
    expect(listKids(late).signing).toContain(listKids(second).signing[1]);
  });

  test('the algorithm can change with a rotation, and the old key still verifies', async () => {
    const mixed = rotateKeyring(first, { ...rotation, alg: 'ES256' });
    const ring = await openKeyring(mixed);
    expect(mixed.signing.map(({ alg }) => alg)).toEqual(['EdDSA', 'ES256']);
    expect(mixed.signing.every(({ kid }) => ring.isVerificationKey(kid, activeFrom))).toBe(true);
  });

  test('a key that retires before the longest grant issued with it expires causes a warning', () => {
    const kept = rotateKeyring(first, { ...rotation, keep: 86_400 });
    expect(findEarlyRetirements(kept, 86_400)).toEqual([]);
    expect(findEarlyRetirements(kept, 86_401)).toHaveLength(2);
    const { keep: _, ...withoutEnd } = rotation;
    expect(findEarlyRetirements(rotateKeyring(first, withoutEnd), Number.MAX_SAFE_INTEGER)).toEqual([]);
  });

  test('a keyring without an active key reports it and creates nothing', async () => {
    const ahead = { ...first, signing: first.signing.map((key) => ({ ...key, activeFrom: NOW })) };
    const early = await openKeyring(ahead);
    expect(() => early.current(NOW - 1)).toThrow(/no signing key is active/);
    // The first keys of an installation are valid at once, even if the clock was ahead and is corrected later.
    expect((await openKeyring(first)).current(NOW - 86_400).signing).toBe(first.signing[0]?.kid);
    const retired = { ...first, sealing: first.sealing.map((key) => ({ ...key, retireAt: NOW + 10 })) };
    const late = await openKeyring(retired);
    expect(() => late.current(NOW + 10)).toThrow(/no sealing key is active/);
  });

  test('the listed states follow the clock', () => {
    const states = (now: number) => describeKeyring(second, now).map(({ state }) => state);
    expect(states(activeFrom - 1)).toEqual(['active', 'published', 'active', 'published']);
    expect(states(activeFrom)).toEqual(['verify only', 'active', 'verify only', 'active']);
    expect(states(retireAt)).toEqual(['retired', 'active', 'retired', 'active']);
  });
});
