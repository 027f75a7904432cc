/** Why a token of another issuer is not accepted. For logs: the response reveals at most `DISCLOSED_FAULTS`. */
export const REJECTION_FAULTS = {
  unknown_issuer:
    'Its `iss` is not that of a trusted issuer, or is `publicUrl` although the token is not signed with a current gatehouse key.',
  issuer_not_accepted: 'The route does not list the issuer in `issuers`.',
  algorithm_not_allowed: 'Its `alg` is not in `trustedIssuers.<name>.algorithms`.',
  type_not_accepted: 'Its `typ` is not accepted: see `trustedIssuers.<name>.tokenType`.',
  header_not_accepted: 'Its header has `crit`, or a `kid` that is not a string.',
  logout_token: 'It is a logout token.',
  id_token: 'It is an ID token, which states who signed in. Send the access token.',
  unknown_key: 'The issuer has no key with its `kid` and `alg`.',
  no_usable_key:
    'The issuer publishes no key for `trustedIssuers.<name>.algorithms`: its key set is empty, or has only keys of other types.',
  invalid_signature: 'It is not signed with the key that it names.',
  expired: 'Its `exp` has passed or, for a logout token, its `iat` is more than five minutes ago.',
  not_yet_valid: 'Its `nbf` or, for a logout token, its `iat` is in the future.',
  wrong_audience:
    'None of its `aud` is in `trustedIssuers.<name>.audience`, or of a logout token in `logout.audience`.',
  claim_missing: 'The named claim is missing or not usable.',
  claim_mismatch:
    'The named claim does not have the value that `trustedIssuers.<name>.requiredClaims` requires. For an opaque token and `iss`: it is not the issuer.',
  claim_not_allowed: 'Logout tokens only: it must not have the named claim (`nonce`).',
  binding_not_supported:
    'Its `cnf` has neither `x5t#S256` nor `jkt`, or one of them is not a string: its binding cannot be checked.',
  logout_not_accepted: 'Logout tokens only: the issuer has no `logout` in the configuration.',
  inactive: 'The introspection endpoint of the issuer reports it as inactive.',
  malformed: 'Its form or its claims are not valid.',
} as const satisfies Record<string, string>;

export type RejectionFault = keyof typeof REJECTION_FAULTS;

interface TokenRejection {
  readonly fault: RejectionFault;
  /** The configured name, if it is known. */
  readonly issuer?: string;
  /** A name from the configuration or a specification, never from the token. */
  readonly claim?: string;
  /** Its signature was verified with a key of the issuer, and its registered claims are the reason. */
  readonly isAuthentic?: true;
}

/** Reasons that a response may state about an authentic token, where the rule accepts its issuer. */
export const DISCLOSED_FAULTS = ['expired', 'wrong_audience'] as const satisfies readonly RejectionFault[];

/** In place of a verified token. */
export interface RejectedToken {
  readonly rejection: TokenRejection;
}

export const reject = (fault: RejectionFault, issuer?: string, claim?: string): RejectedToken => ({
  rejection: { fault, ...(issuer !== undefined && { issuer }), ...(claim !== undefined && { claim }) },
});

/** Once the signature has been verified. */
export const rejectAuthentic = (fault: RejectionFault, issuer: string, claim?: string): RejectedToken => ({
  rejection: { ...reject(fault, issuer, claim).rejection, isAuthentic: true },
});

/** `claim_mismatch tid`. */
export const formatRejection = ({ fault, claim }: TokenRejection): string =>
  claim === undefined ? fault : `${fault} ${claim}`;
