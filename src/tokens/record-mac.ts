import { createHmac, hash, hkdfSync, timingSafeEqual } from 'node:crypto';
import type { Epoch } from '../domain/grant.ts';
import { Fault } from '../ports/fault.ts';
import type { RecordAuthenticator, RecordLocation } from '../ports/record-authenticator.ts';
import { UNAUTHENTICATED_NOTES } from '../ports/store.ts';
import type { SealingKey, SealingKeys } from './keyring.ts';

/**
 * The MAC is the last member of a record's JSON: `…,"m":"<key id>.<HMAC-SHA-256>"}`. It covers kind, id and context of the
 * record and the text before it, so one record cannot be substituted for another (docs/decisions/0027-record-macs.md).
 */
const MAC_MEMBER = ',"m":"';
const MAC_END = '"}';
/** 256 bits in base64url. */
const MAC_LENGTH = 43;
const KEY_ID = /^[A-Za-z0-9]{4,32}$/;

/** Why a record is treated as absent; reported as a possible attack. */
export type RecordRefusalReason = 'mac_wrong' | 'mac_missing';

export interface RecordMacOptions {
  readonly now: () => Epoch;
  readonly onRefused?: (place: RecordLocation, reason: RecordRefusalReason) => void;
}

export interface KeyedRecordAuthenticator extends RecordAuthenticator {
  /** Before the first call, every use throws a `Fault`. */
  setKeyring(keyring: SealingKeys): void;
}

interface RecordKey {
  readonly computeMac: (text: string) => string;
  readonly backupKey: Buffer;
  readonly retireAt: Epoch;
}

/** Separate keys for each purpose (RFC 5869 §3.2). */
const deriveKey = ({ secret }: SealingKey, purpose: string): Buffer =>
  Buffer.from(hkdfSync('sha256', secret, '', `gatehouse ${purpose} 1`, 32));

export function createRecordAuthenticator({ now, onRefused }: RecordMacOptions): KeyedRecordAuthenticator {
  let keyring: SealingKeys | undefined;
  let keys: ReadonlyMap<string, RecordKey> = new Map();

  const currentKey = (): readonly [id: string, key: RecordKey] => {
    const id = keyring?.getCurrentSealingKey(now()).kid ?? '';
    const key = keys.get(id);
    if (key === undefined) throw new Fault('keys_unavailable', 'the keys of records are not loaded yet');
    return [id, key];
  };
  const refuse = (place: RecordLocation, reason: RecordRefusalReason): 'refused' => {
    onRefused?.(place, reason);
    return 'refused';
  };

  return {
    setKeyring(newKeyring) {
      keys = new Map(
        newKeyring.sealingKeys.map((key) => [
          key.kid,
          {
            computeMac: createHmacSha256(deriveKey(key, 'store record')),
            backupKey: deriveKey(key, 'store backup'),
            retireAt: key.retireAt,
          },
        ]),
      );
      keyring = newKeyring;
    },
    seal(place, json) {
      if (hasNoMac(place)) return json;
      const [id, key] = currentKey();
      const body = json.slice(0, -1);
      return `${body}${MAC_MEMBER}${id}.${computeRecordMac(key, place, body)}${MAC_END}`;
    },
    check(place, json, hasMac, isOver) {
      if (hasNoMac(place)) return 'authentic';
      if (!hasMac) return refuse(place, 'mac_missing');
      const memberStart = json.lastIndexOf(MAC_MEMBER);
      const dot = json.length - MAC_END.length - MAC_LENGTH - 1;
      const id = json.slice(memberStart + MAC_MEMBER.length, dot);
      if (memberStart < 0 || json[dot] !== '.' || !json.endsWith(MAC_END) || !KEY_ID.test(id))
        return refuse(place, 'mac_wrong');
      const key = keys.get(id);
      if (key === undefined && (isOver || place.kind === 'notes')) return 'refused';
      if (key === undefined)
        throw new Fault(
          'keys_unavailable',
          `a record of ${place.kind} was written with the key ${id}, which this process does not have; give every replica the same key file`,
        );
      const expected = computeRecordMac(key, place, json.slice(0, memberStart));
      if (!isEqualMac(expected, json.slice(dot + 1, -MAC_END.length))) return refuse(place, 'mac_wrong');
      // Like the tokens of a retired key.
      return now() >= key.retireAt ? 'refused' : 'authentic';
    },
    createBackupMac(keyId) {
      // Retired keys still verify backups, which may be restored after a long time.
      const [id, key] = keyId === undefined ? currentKey() : ([keyId, keys.get(keyId)] as const);
      if (key === undefined) return undefined;
      const hmac = createHmac('sha256', key.backupKey);
      return {
        keyId: id,
        update: (bytes) => void hmac.update(bytes),
        digest: () => hmac.digest('base64url'),
      };
    },
  };
}

const hasNoMac = ({ kind, id }: RecordLocation): boolean => kind === 'notes' && UNAUTHENTICATED_NOTES.has(id);

/** Starts with the lengths, so that the input is unambiguous. */
const computeRecordMac = (
  { computeMac: mac }: RecordKey,
  { kind, id, context }: RecordLocation,
  body: string,
): string => mac(`${kind} ${id.length} ${context.length}\n${id}${context}${body}`);

const [EXPECTED_BUFFER, PRESENTED_BUFFER] = [Buffer.alloc(MAC_LENGTH), Buffer.alloc(MAC_LENGTH)];

/** `presented` may contain any characters; only 43 ASCII characters fill the buffer exactly. */
function isEqualMac(expected: string, presented: string): boolean {
  EXPECTED_BUFFER.write(expected, 'latin1');
  return PRESENTED_BUFFER.write(presented, 'utf8') === MAC_LENGTH && timingSafeEqual(EXPECTED_BUFFER, PRESENTED_BUFFER);
}

/**
 * HMAC-SHA-256 (RFC 2104 §2) from two one-shot hashes, base64url. For short texts about twice as fast as `createHmac`,
 * which creates an object per call (docs/decisions/0040-performance-work.md).
 */
export function createHmacSha256(key: Buffer): (text: string) => string {
  const inner = xorPad(key, 0x36);
  const outer = Buffer.concat([xorPad(key, 0x5c), Buffer.alloc(DIGEST_BYTES)]);
  return (text) => {
    // A UTF-16 code unit takes at most three bytes in UTF-8.
    if (text.length * 3 > MAX_TEXT_BYTES) return createHmac('sha256', key).update(text).digest('base64url');
    inner.copy(scratch);
    const end = BLOCK_BYTES + scratch.write(text, BLOCK_BYTES, 'utf8');
    outer.write(hash('sha256', scratch.subarray(0, end), 'latin1'), BLOCK_BYTES, 'latin1');
    return hash('sha256', outer, 'base64url');
  };
}

const BLOCK_BYTES = 64;
const DIGEST_BYTES = 32;
const MAX_TEXT_BYTES = 16_384;
/** Shared, because each use ends within one synchronous call. */
const scratch = Buffer.alloc(BLOCK_BYTES + MAX_TEXT_BYTES);

function xorPad(key: Buffer, pad: number): Buffer {
  if (key.length > BLOCK_BYTES) throw new RangeError('an HMAC key longer than a block is not supported');
  const block = Buffer.alloc(BLOCK_BYTES, pad);
  for (const [index, byte] of key.entries()) block[index] = byte ^ pad;
  return block;
}
