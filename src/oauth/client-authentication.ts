import { type Outcome, ok, refused, refuseMalformed } from '../domain/refusal.ts';
import {
  type AuthenticatedClient,
  authenticateClient,
  type ClientCredential,
} from '../grants/client-authentication.ts';
import type { Parameters } from '../http/parameters.ts';
import { getQuery } from '../http/query.ts';
import { getHeaderValues } from '../http/raw-headers.ts';
import type { RequestContext } from '../http/request-context.ts';
import type { ProofCheck } from '../tokens/proof-verifier.ts';
import { CLIENT_ASSERTION_TYPE, CLIENT_AUTH_PARAMETERS } from './schemas.ts';
import type { OAuthService } from './service.ts';

const BASIC = /^basic(?:\s|$)/i;

export const hasBasicCredentials = ({ request }: RequestContext): boolean =>
  getHeaderValues(request.rawHeaders, 'authorization').some((value) => BASIC.test(value));

/** Does the request try to authenticate its client, other than with a certificate? */
export const hasClientCredential = (context: RequestContext, parameters: Parameters): boolean =>
  hasBasicCredentials(context) || CLIENT_AUTH_PARAMETERS.some((name) => parameters.get(name) !== undefined);

/** RFC 6749 §2.3.1: credentials in a URL end up in logs. */
const QUERY_SECRETS: ReadonlySet<string> = new Set([
  'client_secret',
  'client_assertion',
  'assertion',
  'subject_token',
  'actor_token',
  'refresh_token',
  'device_code',
  'code',
  'code_verifier',
]);

export const hasSecretInQuery = ({ request }: RequestContext): boolean => {
  const query = getQuery(request);
  return query !== '' && new URLSearchParams(query).keys().some((name) => QUERY_SECRETS.has(name));
};

/** The client of a request and the one credential that it presents. */
function readClientCredential(context: RequestContext, parameters: Parameters): Outcome<ClientCredential> {
  const clientId = parameters.get('client_id');
  const secret = parameters.get('client_secret');
  const assertion = parameters.get('client_assertion');
  const assertionType = parameters.get('client_assertion_type');
  const isBasic = hasBasicCredentials(context);
  // RFC 6749 §2.3: no more than one method in each request.
  const methods = [isBasic, secret !== undefined, assertion !== undefined || assertionType !== undefined];
  if (methods.filter(Boolean).length > 1)
    return refuseMalformed('Use one method of client authentication, not several.');
  if (isBasic) return readBasic(context, clientId);
  if (assertion !== undefined || assertionType !== undefined) {
    if (assertion === undefined) return refuseMalformed('client_assertion is required with client_assertion_type.');
    if (assertionType !== CLIENT_ASSERTION_TYPE)
      return refuseMalformed(`client_assertion_type must be ${CLIENT_ASSERTION_TYPE}.`);
    return ok({ method: 'private_key_jwt', clientId, assertion });
  }
  if (clientId === undefined) return refused({ reason: 'client_id_missing' });
  return ok(secret === undefined ? { method: 'none', clientId } : { method: 'client_secret_post', clientId, secret });
}

/** RFC 6749 §2.3.1: both parts are form-encoded before they are joined. */
function readBasic({ request }: RequestContext, clientId: string | undefined): Outcome<ClientCredential> {
  const [header = '', ...others] = getHeaderValues(request.rawHeaders, 'authorization');
  if (others.length > 0) return refuseMalformed('The Authorization header occurs twice.');
  const [, encoded = ''] = /^basic +([A-Za-z0-9+/]+={0,2})$/i.exec(header) ?? [];
  const text = Buffer.from(encoded, 'base64').toString('utf8');
  const colon = text.indexOf(':');
  if (colon <= 0) return refuseMalformed('The Authorization header is malformed.');
  let id: string;
  let secret: string;
  try {
    [id = '', secret = ''] = [text.slice(0, colon), text.slice(colon + 1)].map((part) =>
      decodeURIComponent(part.replaceAll('+', ' ')),
    );
  } catch {
    return refuseMalformed('The Authorization header is malformed.');
  }
  if (clientId !== undefined && clientId !== id)
    return refuseMalformed('client_id differs from the client in the Authorization header.');
  return ok({ method: 'client_secret_basic', clientId: id, secret });
}

/** `required`: a client that has credentials must present one. */
export async function authenticateRequest(
  service: OAuthService,
  context: RequestContext,
  parameters: Parameters,
  { required }: { readonly required: boolean },
): Promise<Outcome<AuthenticatedClient>> {
  const credential = readClientCredential(context, parameters);
  if (!credential.ok) return credential;
  if (credential.value.clientId !== undefined) context.note({ clientId: credential.value.clientId });
  const { rateLimits, grantDeps, clientAssertions } = service;
  const authenticated = await authenticateClient(
    {
      grantDeps,
      assertions: clientAssertions,
      guesses: { byAddress: rateLimits.clientGuesses, byClient: rateLimits.allClientGuesses },
    },
    credential.value,
    { address: context.clientAddress, required },
  );
  if (authenticated.ok) context.note({ clientId: authenticated.value.clientId });
  return authenticated;
}

export type AcceptedProof = Extract<ProofCheck, { ok: true }>;

/** RFC 9449 §5: undefined if the request has no DPoP header. */
export async function readProof(
  { proofs }: OAuthService,
  context: RequestContext,
): Promise<Outcome<AcceptedProof | undefined>> {
  const checked = await proofs?.verify(context);
  if (checked === undefined || checked.ok) return ok(checked);
  return refused(
    'nonce' in checked
      ? { reason: 'proof_nonce_required', nonce: checked.nonce }
      : { reason: 'proof_invalid', detail: checked.detail },
  );
}
