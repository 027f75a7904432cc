import { type Argon2Parameters, argon2, randomBytes, timingSafeEqual } from 'node:crypto';
import { createConcurrencyLimiter } from '../lib/concurrency-limiter.ts';
import { Fault } from '../ports/fault.ts';

interface PasswordHash {
  readonly memory: number;
  readonly passes: number;
  readonly parallelism: number;
  readonly salt: Buffer;
  readonly tag: Buffer;
}

const DEFAULT_COST = { memory: 65_536, passes: 3, parallelism: 1 } as const;
const MAX_PASSWORD_BYTES = 1_024;
const PHC_PATTERN = /^\$argon2id\$v=19\$m=(\d{1,7}),t=(\d{1,3}),p=(\d{1,2})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)$/;

const isBetween = (value: number, min: number, max: number): boolean => value >= min && value <= max;

/** Undefined for other formats and for costs out of range. */
export function parsePasswordHash(text: string): PasswordHash | undefined {
  const [, m, t, p, salt = '', tag = ''] = PHC_PATTERN.exec(text) ?? [];
  const hash: PasswordHash = {
    memory: Number(m),
    passes: Number(t),
    parallelism: Number(p),
    salt: Buffer.from(salt, 'base64'),
    tag: Buffer.from(tag, 'base64'),
  };
  const isValid =
    isBetween(hash.parallelism, 1, 8) &&
    isBetween(hash.memory, 8 * hash.parallelism, 262_144) &&
    isBetween(hash.passes, 1, 16) &&
    isBetween(hash.salt.length, 8, 64) &&
    isBetween(hash.tag.length, 16, 64);
  return isValid ? hash : undefined;
}

const toUnpaddedBase64 = (bytes: Buffer): string => bytes.toString('base64').replace(/=+$/, '');

export const formatPasswordHash = ({ memory, passes, parallelism, salt, tag }: PasswordHash): string =>
  `$argon2id$v=19$m=${memory},t=${passes},p=${parallelism}$${toUnpaddedBase64(salt)}$${toUnpaddedBase64(tag)}`;

const computeArgon2id = (parameters: Argon2Parameters): Promise<Buffer> =>
  new Promise((resolve, reject) => {
    argon2('argon2id', parameters, (error, tag) => (error === null ? resolve(tag) : reject(error)));
  });

/** RFC 8265 §4.2. */
const encodePassword = (password: string): Buffer => Buffer.from(password.normalize('NFC'), 'utf8');

export type PasswordHasher = ReturnType<typeof createPasswordHasher>;

/**
 * Argon2id (RFC 9106) hashes in PHC string format, `$argon2id$v=19$m=65536,t=3,p=1$salt$tag`. A computation takes 64 MiB
 * and much CPU time, so concurrent and queued computations are limited.
 */
export function createPasswordHasher({ maxConcurrent = 2, maxQueued = 32 } = {}) {
  const runLimited = createConcurrencyLimiter({
    maxConcurrent,
    maxQueued,
    queueFullMessage: 'too many concurrent sign-ins',
  });

  const computeTag = (password: Buffer, { salt, tag, ...cost }: PasswordHash): Promise<Buffer> =>
    runLimited(() => computeArgon2id({ ...cost, message: password, nonce: salt, tagLength: tag.length }));

  return {
    async hash(password: string): Promise<string> {
      const message = encodePassword(password);
      if (message.length === 0 || message.length > MAX_PASSWORD_BYTES)
        throw new RangeError(`a password must have 1 to ${MAX_PASSWORD_BYTES} bytes`);
      const template: PasswordHash = { ...DEFAULT_COST, salt: randomBytes(16), tag: Buffer.alloc(32) };
      return formatPasswordHash({ ...template, tag: await computeTag(message, template) });
    },
    /** Throws a `Fault` if too many computations are queued. */
    async verify(password: string, text: string): Promise<boolean> {
      const expected = parsePasswordHash(text);
      if (expected === undefined) throw new Fault('directory_unavailable', 'a configured password hash is not valid');
      const message = encodePassword(password);
      const isTooLong = message.length > MAX_PASSWORD_BYTES;
      const tag = await computeTag(isTooLong ? Buffer.alloc(1) : message, expected);
      return timingSafeEqual(tag, expected.tag) && !isTooLong;
    },
  };
}

/** A hash that no password matches, with the same cost: verified for unknown names to take the same time. */
export const createDecoyHash = (sample: string | undefined): string =>
  formatPasswordHash({
    ...((sample === undefined ? undefined : parsePasswordHash(sample)) ?? DEFAULT_COST),
    salt: randomBytes(16),
    tag: randomBytes(32),
  });

export const hashPassword = (password: string): Promise<string> => createPasswordHasher().hash(password);
