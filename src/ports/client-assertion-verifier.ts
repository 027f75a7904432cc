import type { Epoch } from '../domain/epoch.ts';

export type AssertionCheck =
  | { readonly ok: true; readonly tokenId: string; readonly expires: Epoch }
  /** For operators. */
  | { readonly ok: false; readonly detail: string };

/** Verifies client assertions (RFC 7523 §2.2). Whether one is used twice is checked by the caller. */
export interface ClientAssertionVerifier {
  /** The client that an assertion claims to be of, before anything is verified. */
  readClient(assertion: string): string | undefined;
  /** Throws a `Fault` if the keys of the client are not available. */
  verify(clientId: string, assertion: string, now: Epoch): Promise<AssertionCheck>;
}
