import { createHmac, hkdfSync, timingSafeEqual } from 'node:crypto';
import type { Epoch } from '../domain/epoch.ts';
import { Fault } from '../ports/fault.ts';
import type { RecordAuthenticator, RecordPlace } from '../ports/record-authenticator.ts';
import { PLAIN_NOTES } from '../ports/store.ts';
import { hmacSha256 } from './hmac.ts';
import type { Keyring, SealingKey } from './keyring.ts';

/**
 * The MAC of a record is the last member of its JSON text: `…,"m":"<key id>.<HMAC-SHA-256>"}`. It covers the kind, the id and
 * the context of the record and the text before it, so that no record passes in the place of another
 * (docs/decisions/0027).
 */
const MEMBER = ',"m":"';
const END = '"}';
/** Of base64url: 256 bits. */
const MAC_LENGTH = 43;
const KEY_ID = /^[A-Za-z0-9]{4,32}$/;

/** Why a record is treated as absent, where that is a reason for an alarm. */
export type RefusedBecause = 'mac_wrong' | 'mac_missing';

export interface RecordMacOptions {
  readonly now: () => Epoch;
  /** Are records without a MAC accepted, as earlier releases wrote them? */
  readonly unauthenticated: 'accept' | 'refuse';
  readonly onRefused?: (place: RecordPlace, because: RefusedBecause) => void;
  /** A record without a MAC was accepted. */
  readonly onAccepted?: (place: RecordPlace) => void;
}

export interface RecordMac extends RecordAuthenticator {
  /** From now on with these keys. Before the first call every use throws a `Fault`. */
  use(keyring: Keyring): void;
}

interface RecordKey {
  readonly recordMac: (text: string) => string;
  readonly backups: Buffer;
  readonly retireAt: Epoch;
}

/** HKDF separates these keys from those of tokens (RFC 5869 §3.2). */
const derived = ({ secret }: SealingKey, purpose: string): Buffer =>
  Buffer.from(hkdfSync('sha256', secret, '', `gatehouse ${purpose} 1`, 32));

export function recordMac({ now, unauthenticated, onRefused, onAccepted }: RecordMacOptions): RecordMac {
  let keyring: Keyring | undefined;
  let keys: ReadonlyMap<string, RecordKey> = new Map();

  const currentKey = (): readonly [id: string, key: RecordKey] => {
    const id = keyring?.current(now()).sealing ?? '';
    const key = keys.get(id);
    if (key === undefined) throw new Fault('keys_unavailable', 'the keys of records are not loaded yet');
    return [id, key];
  };
  const refuse = (place: RecordPlace, because: RefusedBecause): 'refused' => {
    onRefused?.(place, because);
    return 'refused';
  };

  return {
    use(ring) {
      keys = new Map(
        ring.sealingKeys.map((key) => [
          key.kid,
          {
            recordMac: hmacSha256(derived(key, 'store record')),
            backups: derived(key, 'store backup'),
            retireAt: key.retireAt,
          },
        ]),
      );
      keyring = ring;
    },
    seal(place, json) {
      if (isPlain(place)) return json;
      const [id, key] = currentKey();
      const body = json.slice(0, -1);
      return `${body}${MEMBER}${id}.${macOf(key, place, body)}${END}`;
    },
    check(place, json, hasMac, isOver) {
      if (isPlain(place)) return 'authentic';
      if (!hasMac) {
        if (unauthenticated === 'refuse') return refuse(place, 'mac_missing');
        onAccepted?.(place);
        return 'unauthenticated';
      }
      const at = json.lastIndexOf(MEMBER);
      const dot = json.length - END.length - MAC_LENGTH - 1;
      const id = json.slice(at + MEMBER.length, dot);
      if (at < 0 || json[dot] !== '.' || !json.endsWith(END) || !KEY_ID.test(id))
        return refuse(place, 'mac_wrong');
      const key = keys.get(id);
      if (key === undefined && (isOver || place.kind === 'notes')) return 'refused';
      if (key === undefined)
        throw new Fault(
          'keys_unavailable',
          `a record of ${place.kind} was written with the key ${id}, which this process does not have; give every replica the same key file`,
        );
      const expected = macOf(key, place, json.slice(0, at));
      if (!isSame(expected, json.slice(dot + 1, -END.length))) return refuse(place, 'mac_wrong');
      // Tokens of a retired key are refused, and so are its records.
      return now() >= key.retireAt ? 'refused' : 'authentic';
    },
    backupMac(keyId) {
      // Retired keys verify backups too: a backup is restored by an operator, perhaps after a long time.
      const [id, key] = keyId === undefined ? currentKey() : ([keyId, keys.get(keyId)] as const);
      if (key === undefined) return undefined;
      const hmac = createHmac('sha256', key.backups);
      return {
        keyId: id,
        update: (bytes) => void hmac.update(bytes),
        digest: () => hmac.digest('base64url'),
      };
    },
  };
}

const isPlain = ({ kind, id }: RecordPlace): boolean => kind === 'notes' && PLAIN_NOTES.has(id);

/** Lengths come first, so that no two places and bodies give the same input. */
const macOf = ({ recordMac: mac }: RecordKey, { kind, id, context }: RecordPlace, body: string): string =>
  mac(`${kind} ${id.length} ${context.length}\n${id}${context}${body}`);

const [ONE, OTHER] = [Buffer.alloc(MAC_LENGTH), Buffer.alloc(MAC_LENGTH)];

/** `given` may hold any characters: as UTF-8 it fills the buffer only if they are as many as expected. */
function isSame(expected: string, given: string): boolean {
  ONE.write(expected, 'latin1');
  return OTHER.write(given, 'utf8') === MAC_LENGTH && timingSafeEqual(ONE, OTHER);
}
