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
  statSync,
  unlinkSync,
  writeSync,
} from 'node:fs';
import { dirname } from 'node:path';
import { z } from 'zod';
import type { Epoch } from '../domain/epoch.ts';
import { Fault } from '../ports/fault.ts';

export type SigningAlgorithm = 'EdDSA' | 'ES256';

const base64url = z.string().regex(/^[A-Za-z0-9_-]+$/);
const kid = z.string().regex(/^[A-Za-z0-9]{4,32}$/);
const life = { activeFrom: z.int(), retireAt: z.int().exactOptional() };

const Signing = z.strictObject({
  kid,
  alg: z.enum(['EdDSA', 'ES256']),
  ...life,
  jwk: z.strictObject({
    kty: z.enum(['OKP', 'EC']),
    crv: z.enum(['Ed25519', 'P-256']),
    x: base64url,
    y: base64url.exactOptional(),
    d: base64url,
  }),
});
const Sealing = z.strictObject({ kid, ...life, secret: base64url.length(43) });
const File = z.strictObject({
  version: z.literal(1),
  signing: z.array(Signing).min(1),
  sealing: z.array(Sealing).min(1),
});

export type SigningEntry = z.output<typeof Signing>;
export type SealingEntry = z.output<typeof Sealing>;
/** `keys.json`: as valuable as every token it can make. Mode 0600, never in a log, never in an error. */
export type KeyringFile = z.output<typeof File>;

const problem = (path: string, words: string): Fault => new Fault('keys_unavailable', `${path}: ${words}`);

export function readKeyringFile(path: string): KeyringFile {
  if (!existsSync(path)) throw problem(path, 'no such key file; make one with `gatehouse keys new`');
  if (process.platform !== 'win32' && isReadByOthers(path))
    throw problem(
      path,
      `others can read this key file (mode ${(statSync(path).mode & 0o777).toString(8)}); run chmod 600, and rotate the keys if somebody may have read it`,
    );
  let json: unknown;
  try {
    json = JSON.parse(readFileSync(path, 'utf8'));
  } catch (cause) {
    // The parser quotes what it read, so its words stay out of ours.
    throw problem(path, `is not readable JSON (${cause instanceof SyntaxError ? 'syntax' : 'read'} error)`);
  }
  const parsed = File.safeParse(json);
  if (!parsed.success) {
    const first = parsed.error.issues[0];
    throw problem(path, `is not a key file of this version (at ${first?.path.join('.') || 'its top'})`);
  }
  const kids = [...parsed.data.signing, ...parsed.data.sealing].map((key) => key.kid);
  if (new Set(kids).size !== kids.length) throw problem(path, 'two keys have the same kid');
  return parsed.data;
}

/**
 * A kubelet hands secrets to a user without privileges as files of root that nobody can write: readable by a group the
 * user is in (`fsGroup`), or, in pods without one, by everybody in a file system of their own, in memory and mounted
 * read-only into the one container that asks for it. Such a file is not read by others.
 */
export function isReadByOthers(path: string): boolean {
  const { mode, uid, gid } = statSync(path);
  if ((mode & 0o077) === 0) return false;
  const isHanded = uid === 0 && process.geteuid?.() !== 0 && (mode & 0o033) === 0;
  if (!isHanded) return true;
  const byGroup = (mode & 0o007) === 0 && gid !== 0 && process.getgroups?.().includes(gid) === true;
  return !byGroup && !isMountedSecret(path);
}

/** The last mount in the way to it counts: a file system in memory, and one that this process cannot write, whoever it is. */
function isMountedSecret(path: string): boolean {
  const file = realpathSync(path);
  const mounts = mountsOf().filter(({ point }) => `${file}/`.startsWith(point === '/' ? point : `${point}/`));
  const [nearest] = mounts.reverse().sort((one, other) => other.point.length - one.point.length);
  return nearest !== undefined && nearest.kind === 'tmpfs' && nearest.isReadOnly;
}

/** From proc_pid_mountinfo(5): `id parent device root point options … - kind source …`. */
function mountsOf(): { readonly point: string; readonly kind: string; readonly isReadOnly: boolean }[] {
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
      const words = line.split(' ');
      const [point = '', options = ''] = words.slice(4, 6);
      return {
        point: point.replace(/\\([0-7]{3})/g, (_, octal: string) =>
          String.fromCharCode(Number.parseInt(octal, 8)),
        ),
        kind: words[words.indexOf('-') + 1] ?? '',
        isReadOnly: options.split(',').includes('ro'),
      };
    });
}

/** Writes beside and renames, so that a crash leaves the old file or the new one. */
export function writeKeyringFile(
  path: string,
  file: KeyringFile,
  { replace }: { readonly replace: boolean },
): void {
  if (!replace && existsSync(path))
    throw problem(path, 'exists already; `gatehouse keys rotate` adds new keys to it');
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
  const beside = `${path}.${randomBytes(4).toString('hex')}.new`;
  const fd = openSync(beside, 'wx', 0o600);
  try {
    fchmodSync(fd, 0o600);
    // Rotated by root, it must still belong to whom the program runs as.
    if (existsSync(path)) keepOwner(fd, path);
    writeSync(fd, `${JSON.stringify(file, null, 2)}\n`);
    fsyncSync(fd);
    renameSync(beside, path);
  } catch (error) {
    if (existsSync(beside)) unlinkSync(beside);
    throw error;
  } finally {
    closeSync(fd);
  }
  // Without this a power cut may take the new name back, while the store knows of the new keys already.
  const folder = openSync(dirname(path), 'r');
  try {
    fsyncSync(folder);
  } finally {
    closeSync(folder);
  }
}

function keepOwner(fd: number, path: string): void {
  const { uid, gid } = statSync(path);
  if (process.getuid?.() === 0) fchownSync(fd, uid, gid);
}

const randomKid = (use: 's' | 'm'): string =>
  use + randomBytes(6).toString('base64url').replace(/[-_]/g, '0');

function newSigning(alg: SigningAlgorithm, activeFrom: Epoch): SigningEntry {
  const { privateKey } =
    alg === 'EdDSA' ? generateKeyPairSync('ed25519') : generateKeyPairSync('ec', { namedCurve: 'P-256' });
  return Signing.parse({ kid: randomKid('s'), alg, activeFrom, jwk: privateKey.export({ format: 'jwk' }) });
}

const newSealing = (activeFrom: Epoch): SealingEntry => ({
  kid: randomKid('m'),
  activeFrom,
  secret: randomBytes(32).toString('base64url'),
});

/** The first keys count from the beginning of time: nobody has to learn of them first, and no clock can be wrong about it. */
export const newKeyring = (alg: SigningAlgorithm): KeyringFile => ({
  version: 1,
  signing: [newSigning(alg, 0)],
  sealing: [newSealing(0)],
});

export interface Rotation {
  readonly alg: SigningAlgorithm;
  readonly now: Epoch;
  /** Seconds from now until the new keys make tokens: every replica must have read the file by then. */
  readonly publishBefore: number;
  /** Seconds the old keys go on checking tokens: as long as the longest grant. Left out: until they are retired by hand. */
  readonly keep?: number;
}

/** Adds a new key of each kind. The old ones go on checking until the last token made with them has ended. */
export function rotateKeyring(file: KeyringFile, { alg, now, publishBefore, keep }: Rotation): KeyringFile {
  const activeFrom = Math.floor(now + publishBefore);
  const retired = <K extends { readonly retireAt?: Epoch }>(keys: readonly K[]): K[] =>
    keys
      .filter((key) => (key.retireAt ?? Number.POSITIVE_INFINITY) > now)
      .map((key) =>
        keep === undefined ? key : { ...key, retireAt: key.retireAt ?? activeFrom + Math.ceil(keep) },
      );
  return {
    version: 1,
    signing: [...retired(file.signing), newSigning(alg, activeFrom)],
    sealing: [...retired(file.sealing), newSealing(activeFrom)],
  };
}

/** Keys that retire while grants made with them may still live: their clients would be told that their tokens are not valid. */
export function retireTooSoon({ signing, sealing }: KeyringFile, longestGrant: number): string[] {
  return [signing, sealing].flatMap((keys) =>
    keys.flatMap(({ kid, activeFrom, retireAt = Number.POSITIVE_INFINITY }) => {
      const next = Math.min(...keys.map((key) => key.activeFrom).filter((time) => time > activeFrom));
      return retireAt < next + longestGrant
        ? [
            `the key ${kid} retires before the longest grant made with it has ended; see \`gatehouse keys rotate --keep\``,
          ]
        : [];
    }),
  );
}

export interface KeyDescription {
  readonly kid: string;
  readonly use: 'signing' | 'sealing';
  readonly algorithm: string;
  readonly state: 'published' | 'active' | 'checks only' | 'retired';
  readonly activeFrom: Epoch;
  readonly retireAt?: Epoch;
}

/** What may be told about the keys: everything but the keys. */
export function describeKeyring(file: KeyringFile, now: Epoch): KeyDescription[] {
  const describe = (
    keys: readonly (SigningEntry | SealingEntry)[],
    use: 'signing' | 'sealing',
  ): KeyDescription[] => {
    const makes = keys.findLast(
      (key) => key.activeFrom <= now && now < (key.retireAt ?? Number.POSITIVE_INFINITY),
    );
    return keys.map((key) => ({
      kid: key.kid,
      use,
      algorithm: 'alg' in key ? key.alg : 'HMAC-SHA-256',
      state:
        key.activeFrom > now
          ? 'published'
          : now >= (key.retireAt ?? Number.POSITIVE_INFINITY)
            ? 'retired'
            : key === makes
              ? 'active'
              : 'checks only',
      activeFrom: key.activeFrom,
      ...(key.retireAt !== undefined && { retireAt: key.retireAt }),
    }));
  };
  return [...describe(file.signing, 'signing'), ...describe(file.sealing, 'sealing')];
}
