import type { Grant } from '../domain/grant.ts';
import type { RecordStore } from '../ports/record-store.ts';
import type { TokenMint } from '../ports/token-mint.ts';
import { accessTokenReader, signAccessToken } from './access-token.ts';
import type { Keyring } from './keyring.ts';
import { looksOpaque, opaqueTokenReader, sealAccessToken } from './opaque-token.ts';
import { openRefreshToken, sealRefreshToken } from './refresh-token.ts';

export interface MintOptions {
  readonly keyring: Keyring;
  /** Issuer and audience of access tokens. */
  readonly publicUrl: string;
  /** How many access tokens of each form are remembered. */
  readonly remembered: number;
  /** Where opaque tokens are looked up. Left out: nowhere, so that none counts. */
  readonly grants?: Pick<RecordStore<Grant>, 'read'>;
}

const NO_GRANTS: Pick<RecordStore<Grant>, 'read'> = { read: () => Promise.resolve(undefined) };

export function createMint({ keyring, publicUrl, remembered, grants = NO_GRANTS }: MintOptions): TokenMint {
  const signed = accessTokenReader(keyring, publicUrl, remembered);
  const opaque = opaqueTokenReader({ keyring, issuer: publicUrl, remembered, grants });
  return {
    keys: (now) => keyring.current(now),
    async pair(grant, now) {
      // A generation's own keys make its tokens again; once one of them has left the ring, today's do.
      const signing = keyring.signing(grant.keys.signing) ?? keyring.signing(keyring.current(now).signing);
      const sealing = keyring.sealing(grant.keys.sealing) ?? keyring.sealing(keyring.current(now).sealing);
      if (signing === undefined || sealing === undefined)
        throw new Error('the current keys are in the keyring');
      return {
        accessToken:
          grant.format === 'opaque'
            ? sealAccessToken(sealing, publicUrl, grant)
            : signAccessToken(signing, publicUrl, grant),
        refreshToken: sealRefreshToken(sealing, grant.id, grant.generation),
      };
    },
    openRefresh: (token, now) => openRefreshToken(keyring, token, now),
    // No JWT has an equals sign in it, so that no token has two readings.
    readAccess: (token, now) => (looksOpaque(token) ? opaque : signed).read(token, now),
    openAccess: (token, now) => (looksOpaque(token) ? opaque.open(token, now) : signed.read(token, now)),
  };
}
