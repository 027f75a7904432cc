/** Protects values for one purpose each: they do not open for another purpose. */
export interface Sealer {
  /** Authenticates, without encrypting. */
  seal(purpose: string, text: string): string;
  open(purpose: string, sealed: string): string | undefined;
  /** Authenticates and encrypts, for values in URLs. */
  encrypt(purpose: string, text: string): string;
  decrypt(purpose: string, encrypted: string): string | undefined;
  /** A keyed digest, to look up a secret that is too short to be stored as a plain digest. */
  digest(purpose: string, text: string): string;
  /** The digests under every key that may have been current when the value was stored, newest first. */
  digests(purpose: string, text: string): readonly string[];
}
