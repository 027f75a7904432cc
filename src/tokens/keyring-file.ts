import { generateKeyPairSync, randomBytes } from 'node:crypto';
import {
  closeSync,
  existsSync,
  fchmodSync,
  fchownSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { dirname } from 'node:path';
import * as z from 'zod';
import type { Epoch } from '../domain/grant.ts';
import { smallest } from '../lib/extremes.ts';
import { Fault } from '../ports/fault.ts';

export type SigningAlgorithm = 'EdDSA' | 'ES256';

const base64url = z.string().regex(/^[A-Za-z0-9_-]+$/);
const kid = z.string().regex(/^[A-Za-z0-9]{4,32}$/);
const validity = { activeFrom: z.int(), retireAt: z.int().exactOptional() };

const SigningKeySchema = z.strictObject({
  kid,
  alg: z.enum(['EdDSA', 'ES256']),
  ...validity,
  jwk: z.strictObject({
    kty: z.enum(['OKP', 'EC']),
    crv: z.enum(['Ed25519', 'P-256']),
    x: base64url,
    y: base64url.exactOptional(),
    d: base64url,
  }),
});
const SealingKeySchema = z.strictObject({ kid, ...validity, secret: base64url.length(43) });
const KeyringFileSchema = z.strictObject({
  version: z.literal(1),
  signing: z.array(SigningKeySchema).min(1),
  sealing: z.array(SealingKeySchema).min(1),
});

export type SigningEntry = z.output<typeof SigningKeySchema>;
export type SealingEntry = z.output<typeof SealingKeySchema>;
/** `keys.json`. Mode 0600; its content never appears in logs or errors. */
export type KeyringFile = z.output<typeof KeyringFileSchema>;

const createKeyFileFault = (path: string, message: string): Fault =>
  new Fault('keys_unavailable', `${path}: ${message}`);

export function readKeyringFile(path: string): KeyringFile {
  if (!existsSync(path)) throw createKeyFileFault(path, 'no such key file; create one with `gatehouse keys new`');
  if (process.platform !== 'win32' && isReadableByOthers(path))
    throw createKeyFileFault(
      path,
      `others can read this key file (mode ${(statSync(path).mode & 0o777).toString(8)}); run chmod 600, and rotate the keys if others may have read it`,
    );
  let json: unknown;
  try {
    json = JSON.parse(readFileSync(path, 'utf8'));
  } catch (cause) {
    // The message of the parser quotes the file.
    throw createKeyFileFault(path, `is not readable JSON (${cause instanceof SyntaxError ? 'syntax' : 'read'} error)`);
  }
  const parsed = KeyringFileSchema.safeParse(json);
  if (!parsed.success) {
    const place = parsed.error.issues[0]?.path.join('.') || 'the top level';
    throw createKeyFileFault(path, `is not a key file of this version (at ${place})`);
  }
  const kids = [...parsed.data.signing, ...parsed.data.sealing].map((key) => key.kid);
  if (new Set(kids).size !== kids.length) throw createKeyFileFault(path, 'two keys have the same kid');
  return parsed.data;
}

/**
 * A kubelet mounts secrets as read-only files of root: readable by a group of the process (`fsGroup`) or, without one, by
 * all users in a tmpfs that is mounted into this container only. Such files are not readable by others.
 */
export function isReadableByOthers(path: string): boolean {
  const { mode, uid, gid } = statSync(path);
  if ((mode & 0o077) === 0) return false;
  const isRootSecret = uid === 0 && process.geteuid?.() !== 0 && (mode & 0o033) === 0;
  if (!isRootSecret) return true;
  const isReadableByOwnGroup = (mode & 0o007) === 0 && gid !== 0 && process.getgroups?.().includes(gid) === true;
  return !isReadableByOwnGroup && !isMountedSecret(path);
}

/** Is the innermost mount of the path a read-only tmpfs? */
function isMountedSecret(path: string): boolean {
  const file = realpathSync(path);
  const mounts = readMounts().filter(({ mountPoint }) =>
    `${file}/`.startsWith(mountPoint === '/' ? mountPoint : `${mountPoint}/`),
  );
  const [nearest] = mounts.reverse().sort((one, other) => other.mountPoint.length - one.mountPoint.length);
  return nearest !== undefined && nearest.fsType === 'tmpfs' && nearest.isReadOnly;
}

/** proc_pid_mountinfo(5): `id parent device root point options … - type source …`. */
function readMounts() {
  let text: string;
  try {
    text = readFileSync('/proc/self/mountinfo', 'utf8');
  } catch {
    return [];
  }
  return text
    .trim()
    .split('\n')
    .map((line) => {
      const fields = line.split(' ');
      const [point = '', options = ''] = fields.slice(4, 6);
      return {
        mountPoint: point.replace(/\\([0-7]{3})/g, (_, octal: string) =>
          String.fromCharCode(Number.parseInt(octal, 8)),
        ),
        fsType: fields[fields.indexOf('-') + 1] ?? '',
        isReadOnly: options.split(',').includes('ro'),
      };
    });
}

/** Atomic: a crash leaves the old file or the new one. */
export function writeKeyringFile(path: string, file: KeyringFile, { replace }: { readonly replace: boolean }): void {
  if (!replace && existsSync(path))
    throw createKeyFileFault(path, 'exists already; `gatehouse keys rotate` adds new keys to it');
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
  const temporaryPath = `${path}.${randomBytes(4).toString('hex')}.new`;
  const fd = openSync(temporaryPath, 'wx', 0o600);
  try {
    fchmodSync(fd, 0o600);
    // After a rotation by root, the user of the service must still own it.
    if (existsSync(path)) copyOwner(fd, path);
    // Not `writeSync`, which may write only a part, as on a full disk.
    writeFileSync(fd, `${JSON.stringify(file, null, 2)}\n`);
    fsyncSync(fd);
    renameSync(temporaryPath, path);
  } catch (error) {
    rmSync(temporaryPath, { force: true });
    throw error;
  } finally {
    closeSync(fd);
  }
  // Otherwise a power failure could undo the rename after the store has recorded the new keys.
  const directory = openSync(dirname(path), 'r');
  try {
    fsyncSync(directory);
  } finally {
    closeSync(directory);
  }
}

function copyOwner(fd: number, path: string): void {
  const { uid, gid } = statSync(path);
  if (process.getuid?.() === 0) fchownSync(fd, uid, gid);
}

const randomKid = (use: 's' | 'm'): string => use + randomBytes(6).toString('base64url').replace(/[-_]/g, '0');

function createSigningEntry(alg: SigningAlgorithm, activeFrom: Epoch): SigningEntry {
  const { privateKey } =
    alg === 'EdDSA' ? generateKeyPairSync('ed25519') : generateKeyPairSync('ec', { namedCurve: 'P-256' });
  return SigningKeySchema.parse({
    kid: randomKid('s'),
    alg,
    activeFrom,
    jwk: privateKey.export({ format: 'jwk' }),
  });
}

const createSealingEntry = (activeFrom: Epoch): SealingEntry => ({
  kid: randomKid('m'),
  activeFrom,
  secret: randomBytes(32).toString('base64url'),
});

/** The first keys are active from time 0: no replica has to learn them first, and no clock can be behind. */
export const createKeyringFile = (alg: SigningAlgorithm): KeyringFile => ({
  version: 1,
  signing: [createSigningEntry(alg, 0)],
  sealing: [createSealingEntry(0)],
});

interface RotationOptions {
  readonly alg: SigningAlgorithm;
  readonly now: Epoch;
  /** Seconds until the new keys are used; every replica must have read the file by then. */
  readonly publishBefore: number;
  /** Seconds for which the old keys still verify: as long as the longest grant. Omitted: without limit. */
  readonly keep?: number;
}

/** Adds a new key of each kind. The old ones verify until they retire. */
export function rotateKeyring(file: KeyringFile, { alg, now, publishBefore, keep }: RotationOptions): KeyringFile {
  const activeFrom = Math.floor(now + publishBefore);
  const retireOldKeys = <K extends { readonly retireAt?: Epoch }>(keys: readonly K[]): K[] =>
    keys
      .filter((key) => (key.retireAt ?? Number.POSITIVE_INFINITY) > now)
      .map((key) => (keep === undefined ? key : { ...key, retireAt: key.retireAt ?? activeFrom + Math.ceil(keep) }));
  return {
    version: 1,
    signing: [...retireOldKeys(file.signing), createSigningEntry(alg, activeFrom)],
    sealing: [...retireOldKeys(file.sealing), createSealingEntry(activeFrom)],
  };
}

/** Keys that retire while their grants may still be valid. */
export function findEarlyRetirements({ signing, sealing }: KeyringFile, longestGrant: number): string[] {
  return [signing, sealing].flatMap((keys) =>
    keys.flatMap(({ kid, activeFrom, retireAt = Number.POSITIVE_INFINITY }) => {
      const next = smallest(keys.map((key) => key.activeFrom).filter((time) => time > activeFrom));
      return retireAt < next + longestGrant
        ? [`the key ${kid} retires before its longest grant expires; see \`gatehouse keys rotate --keep\``]
        : [];
    }),
  );
}

export type KeyDescription = ReturnType<typeof describeKeys>[number];

/** Everything but the keys themselves. */
export const describeKeyring = (file: KeyringFile, now: Epoch) =>
  (['signing', 'sealing'] as const).flatMap((use) => describeKeys(file[use], use, now));

type KeyEntry = SigningEntry | SealingEntry;

function describeKeys(keys: readonly KeyEntry[], use: 'signing' | 'sealing', now: Epoch) {
  const isRetired = ({ retireAt = Number.POSITIVE_INFINITY }: KeyEntry): boolean => now >= retireAt;
  const active = keys.findLast((key) => key.activeFrom <= now && !isRetired(key));
  const getState = (key: KeyEntry) => {
    if (key.activeFrom > now) return 'published';
    if (isRetired(key)) return 'retired';
    return key === active ? 'active' : 'verify only';
  };
  return keys.map((key) => ({
    kid: key.kid,
    use,
    algorithm: 'alg' in key ? key.alg : 'HMAC-SHA-256',
    state: getState(key),
    activeFrom: key.activeFrom,
    ...(key.retireAt !== undefined && { retireAt: key.retireAt }),
  }));
}
