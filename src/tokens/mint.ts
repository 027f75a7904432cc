import type { TokenMint } from '../ports/token-mint.ts';
import { accessTokenReader, signAccessToken } from './access-token.ts';
import type { Keyring } from './keyring.ts';
import { openRefreshToken, sealRefreshToken } from './refresh-token.ts';

export interface MintOptions {
  readonly keyring: Keyring;
  /** Issuer and audience of access tokens. */
  readonly publicUrl: string;
  /** How many verified access tokens are remembered. */
  readonly remembered: number;
}

export function createMint({ keyring, publicUrl, remembered }: MintOptions): TokenMint {
  const reader = accessTokenReader(keyring, publicUrl, remembered);
  return {
    keys: (now) => keyring.current(now),
    async pair(grant, now) {
      // A generation's own keys make its tokens again; once one of them has left the ring, today's do.
      const signing = keyring.signing(grant.keys.signing) ?? keyring.signing(keyring.current(now).signing);
      const sealing = keyring.sealing(grant.keys.sealing) ?? keyring.sealing(keyring.current(now).sealing);
      if (signing === undefined || sealing === undefined)
        throw new Error('the current keys are in the keyring');
      return {
        accessToken: signAccessToken(signing, publicUrl, grant),
        refreshToken: sealRefreshToken(sealing, grant.id, grant.generation),
      };
    },
    openRefresh: (token, now) => openRefreshToken(keyring, token, now),
    readAccess: (token, now) => reader.read(token, now),
  };
}
