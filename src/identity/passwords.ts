import { type Argon2Parameters, argon2, randomBytes, timingSafeEqual } from 'node:crypto';
import { Fault } from '../ports/fault.ts';
import { turnstile } from './turnstile.ts';

/**
 * Password hashes: Argon2id (RFC 9106) in the PHC string form, `$argon2id$v=19$m=65536,t=3,p=1$salt$tag`.
 * Each computation takes 64 MiB and a core for a while, so only a few run at once and only some may wait.
 */
export interface Passwords {
  hash(password: string): Promise<string>;
  /** Throws a `Fault` when too many are waiting; never says "wrong" for our own lack of room. */
  verify(password: string, hash: string): Promise<boolean>;
}

export interface PasswordHash {
  readonly memory: number;
  readonly passes: number;
  readonly parallelism: number;
  readonly salt: Buffer;
  readonly tag: Buffer;
}

const DEFAULT = { memory: 65_536, passes: 3, parallelism: 1 } as const;
const MAX_PASSWORD_BYTES = 1_024;
const PHC = /^\$argon2id\$v=19\$m=(\d{1,7}),t=(\d{1,3}),p=(\d{1,2})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)$/;

const within = (value: number, least: number, most: number): boolean => value >= least && value <= most;

/** Undefined when it is not a hash of ours, or asks for absurd work. */
export function readPasswordHash(text: string): PasswordHash | undefined {
  const [, m, t, p, salt = '', tag = ''] = PHC.exec(text) ?? [];
  const hash: PasswordHash = {
    memory: Number(m),
    passes: Number(t),
    parallelism: Number(p),
    salt: Buffer.from(salt, 'base64'),
    tag: Buffer.from(tag, 'base64'),
  };
  const sound =
    within(hash.parallelism, 1, 8) &&
    within(hash.memory, 8 * hash.parallelism, 262_144) &&
    within(hash.passes, 1, 16) &&
    within(hash.salt.length, 8, 64) &&
    within(hash.tag.length, 16, 64);
  return sound ? hash : undefined;
}

const unpadded = (bytes: Buffer): string => bytes.toString('base64').replace(/=+$/, '');

export const writePasswordHash = ({ memory, passes, parallelism, salt, tag }: PasswordHash): string =>
  `$argon2id$v=19$m=${memory},t=${passes},p=${parallelism}$${unpadded(salt)}$${unpadded(tag)}`;

const compute = (parameters: Argon2Parameters): Promise<Buffer> =>
  new Promise((resolve, reject) => {
    argon2('argon2id', parameters, (error, tag) => (error === null ? resolve(tag) : reject(error)));
  });

/** RFC 8265 §4.2: the same password typed on two keyboards is the same password. */
const bytesOf = (password: string): Buffer => Buffer.from(password.normalize('NFC'), 'utf8');

export function createPasswords(
  limits: { readonly atOnce?: number; readonly waiting?: number } = {},
): Passwords {
  const inTurn = turnstile({
    atOnce: limits.atOnce ?? 2,
    waiting: limits.waiting ?? 32,
    full: 'too many sign-ins at once',
  });

  const tagOf = (password: Buffer, { salt, tag, ...cost }: PasswordHash): Promise<Buffer> =>
    inTurn(() => compute({ ...cost, message: password, nonce: salt, tagLength: tag.length }));

  return {
    async hash(password) {
      const message = bytesOf(password);
      if (message.length === 0 || message.length > MAX_PASSWORD_BYTES)
        throw new RangeError(`a password has between 1 and ${MAX_PASSWORD_BYTES} bytes`);
      const blank: PasswordHash = { ...DEFAULT, salt: randomBytes(16), tag: Buffer.alloc(32) };
      return writePasswordHash({ ...blank, tag: await tagOf(message, blank) });
    },
    async verify(password, text) {
      const expected = readPasswordHash(text);
      if (expected === undefined) throw new Fault('directory_unavailable', 'a password hash cannot be read');
      const message = bytesOf(password);
      const tooLong = message.length > MAX_PASSWORD_BYTES;
      const tag = await tagOf(tooLong ? Buffer.alloc(1) : message, expected);
      return timingSafeEqual(tag, expected.tag) && !tooLong;
    },
  };
}

/** A hash no password fits, of the same cost: what is compared for names nobody has. */
export const decoyHash = (like: string | undefined): string =>
  writePasswordHash({
    ...((like === undefined ? undefined : readPasswordHash(like)) ?? DEFAULT),
    salt: randomBytes(16),
    tag: randomBytes(32),
  });

/** For the command line and for tests: one hash, by itself. */
export const hashPassword = (password: string): Promise<string> => createPasswords().hash(password);
