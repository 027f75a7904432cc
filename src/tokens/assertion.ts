import type { Bearer } from '../domain/bearer.ts';
import type { Epoch } from '../domain/epoch.ts';
import { type Scope, writeScope } from '../domain/scope.ts';
import { signCompact } from './access-token.ts';
import type { Keyring, SigningKey } from './keyring.ts';

/**
 * What an upstream can verify about a caller without trusting the network between us: a JWT of its own kind
 * (RFC 8725 §3.11), so that it is never taken for an access token, nor an access token for it.
 */
const ASSERTION_TYPE = 'gatehouse-assertion+jwt';

/** Seconds it counts, and for how many of them it is handed out again: whoever gets it has the rest to check it. */
const LIFE = 60;
const REMEMBERED = 30;

export interface AssertedCaller {
  readonly bearer: Bearer;
  readonly scope: Scope;
}

export interface Asserter {
  /** Signed once for each token and audience, and remembered for half of its life. */
  assert(caller: AssertedCaller, audience: string, now: Epoch): string;
}

interface Made {
  readonly text: string;
  readonly at: Epoch;
}

export function createAsserter(keyring: Keyring, issuer: string): Asserter {
  const made = new WeakMap<AssertedCaller, Map<string, Made>>();
  const headers = new WeakMap<SigningKey, string>();

  const headerOf = (key: SigningKey): string => {
    const known = headers.get(key);
    if (known !== undefined) return known;
    const { alg, kid } = key;
    const header = Buffer.from(JSON.stringify({ alg, typ: ASSERTION_TYPE, kid })).toString('base64url');
    headers.set(key, header);
    return header;
  };

  const sign = ({ bearer, scope }: AssertedCaller, audience: string, now: Epoch): string => {
    const key = keyring.signing(keyring.current(now).signing);
    if (key === undefined) throw new Error('the current keys are in the keyring');
    const issued = Math.floor(now);
    return signCompact(key, headerOf(key), {
      iss: issuer,
      aud: audience,
      sub: bearer.identity,
      client_id: bearer.clientId,
      scope: writeScope(scope),
      gid: bearer.grantId,
      iat: issued,
      exp: Math.min(issued + LIFE, bearer.expires),
    });
  };

  return {
    assert(caller, audience, now) {
      const ofCaller = made.get(caller) ?? new Map<string, Made>();
      const known = ofCaller.get(audience);
      // A clock that was set back makes a new one too.
      if (known !== undefined && now >= known.at && now < known.at + REMEMBERED) return known.text;
      const text = sign(caller, audience, now);
      ofCaller.set(audience, { text, at: now });
      made.set(caller, ofCaller);
      return text;
    },
  };
}
