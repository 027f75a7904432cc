import { formatScope } from '../../domain/scope.ts';
import { ProtobufError } from '../../grpc/protobuf.ts';
import { createMessageReply, isProtobufCall, readMessage } from '../../grpc/unary-call.ts';
import { foldFieldName } from '../../http/fold-field-name.ts';
import { MESSAGE_PREFIX_BYTES } from '../../http/grpc.ts';
import { getHeaderValues } from '../../http/raw-headers.ts';
import type { Reply } from '../../http/reply.ts';
import type { RequestContext, RequestNotes } from '../../http/request-context.ts';
import { checkMethod, RequestHead } from '../../http/request-head.ts';
import { createServiceReply } from '../../http/service-response.ts';
import { type PeerList, resolveClientAddress, resolveRequestId } from '../../listener/client-address.ts';
import { type CheckAttributes, encodeAllowed, encodeDenied, readCheckRequest } from './check-messages.ts';
import { createIdentityHeaders, type HeaderPolicy, type HeaderRules } from './headers.ts';
import type { ProxyRefusal } from './refusals.ts';
import { type CheckedRequest, type CheckResult, type RequestCheck, toRecord } from './request-check.ts';

export const EXT_AUTHZ_PATH = '/envoy.service.auth.v3.Authorization/Check';

const ENVOY_CERTIFICATE_FIELD = foldFieldName('x-forwarded-client-cert');

interface ExtAuthzDeps {
  readonly check: RequestCheck;
  readonly headers: HeaderPolicy;
  readonly headerRules: HeaderRules;
  readonly trustedProxies: PeerList;
  readonly maxMessageBytes: number;
  readonly bodyTimeout: number;
}

/**
 * External authorization: Envoy asks over gRPC. Every refusal is a `CheckResponse` that denies the request, also that of a message
 * which cannot be read: with `failure_mode_allow`, Envoy forwards requests whose check fails.
 */
export class ExtAuthz {
  readonly #deps: ExtAuthzDeps;

  constructor(deps: ExtAuthzDeps) {
    this.#deps = deps;
  }

  async handle(context: RequestContext): Promise<Reply> {
    const reply = await this.#respond(context);
    const status = reply.trailers?.['grpc-status'] ?? reply.headers['grpc-status'];
    if (status !== undefined) context.note({ grpcStatus: Number(status) });
    return reply;
  }

  async #respond(context: RequestContext): Promise<Reply> {
    const { check, maxMessageBytes, bodyTimeout } = this.#deps;
    const { method, head } = context.request;
    if (method !== 'POST' || !isProtobufCall(head)) return refuseProtocol(context);
    const refusal = check.refusePeer(context);
    if (refusal !== undefined) return deny(refusal, context.notes);
    const body = await context.readBody(maxMessageBytes + MESSAGE_PREFIX_BYTES, bodyTimeout);
    if (body.kind !== 'complete') {
      const reason = body.kind === 'too_large' ? 'head_too_large' : 'client_too_slow';
      return deny(check.refuse(context, { reason }), context.notes);
    }
    const message = readMessage(body.bytes);
    if (!Buffer.isBuffer(message)) {
      context.note({ decision: 'refused', reason: 'malformed: not a gRPC message' });
      return message;
    }
    let attributes: CheckAttributes;
    try {
      attributes = readCheckRequest(message);
    } catch (error) {
      if (!(error instanceof ProtobufError)) throw error;
      return deny(check.refuseAmbiguous(context, `not a valid CheckRequest: ${error.message}`), context.notes);
    }
    return this.#check(this.#createCheckedRequest(context, attributes), attributes);
  }

  /** The gateway is trusted, so it is trusted for what it says about its client. */
  #createCheckedRequest(context: RequestContext, attributes: CheckAttributes): CheckedRequest {
    const { trustedProxies } = this.#deps;
    const { peer, notes, certificate } = context;
    const { method, path, rawHeaders, sourceAddress, sourceCertificate } = attributes;
    const head = new RequestHead(rawHeaders, '1.1');
    // Envoy may have added the address of its client to X-Forwarded-For as well.
    const hops = [...getHeaderValues(rawHeaders, 'x-forwarded-for'), sourceAddress ?? ''].filter((hop) => hop !== '');
    const id = resolveRequestId(peer, rawHeaders, trustedProxies);
    const clientAddress = resolveClientAddress(peer, ['x-forwarded-for', hops.join(',')], trustedProxies);
    notes.originalId = id;
    notes.originalAddress = clientAddress;
    return {
      id,
      peer,
      clientAddress,
      certificate,
      notes,
      original: { method, url: path, host: head.host },
      head,
      request: { rawHeaders: selectCertificateFields(rawHeaders) },
      sourceCertificate,
    };
  }

  async #check(request: CheckedRequest, { sourceAddress }: CheckAttributes): Promise<Reply> {
    const { check, headers, headerRules, trustedProxies } = this.#deps;
    const { id, notes, head } = request;
    const refusal = checkHead(request);
    const result: CheckResult =
      refusal === undefined ? await check.check(request) : { kind: 'refused', reply: check.refuse(request, refusal) };
    if (result.kind === 'refused') return deny(result.reply, notes);
    const { rule, caller, fields } = result;
    const changes = headerRules.getChanges(head.rawHeaders, {
      forwardAuthorization: rule.forwardAuthorization,
      isTrustedPeer: sourceAddress !== undefined && trustedProxies.includes(sourceAddress),
    });
    const set = new Map([['x-request-id', id]]);
    const removed = new Set(changes.removed);
    if (changes.cookie !== undefined) set.set('cookie', changes.cookie);
    for (const [name, value] of Object.entries(toRecord(createIdentityHeaders(headers, caller))))
      if (value === '') removed.add(name.toLowerCase());
      else set.set(name.toLowerCase(), value);
    const scope = caller && formatScope(caller.scope);
    const allowed = {
      headers: [...set].flat(),
      // Envoy removes after it has set.
      headersToRemove: [...removed].filter((name) => !set.has(name)),
      responseHeaders: fields,
    };
    return createMessageReply(encodeAllowed(allowed, getMetadata(notes, scope)), 200);
  }
}

/**
 * Clients can send every other field that may contain a certificate: Envoy forwards them in a check. This one it removes or overwrites, unless
 * it is configured otherwise. Other spellings are kept, so that they are refused.
 */
const selectCertificateFields = (rawHeaders: readonly string[]): string[] =>
  rawHeaders.flatMap((name, at) =>
    at % 2 === 0 && foldFieldName(name) === ENVOY_CERTIFICATE_FIELD ? [name, rawHeaders[at + 1] ?? ''] : [],
  );

/** What the proxy refuses before it decides. */
function checkHead({ original: { method, url }, head }: CheckedRequest): ProxyRefusal | undefined {
  const refusal = head.refusal ?? checkMethod(method);
  if (refusal !== undefined) return refusal;
  // Envoy has turned a URL into a path and a host.
  return url.startsWith('/') ? undefined : { reason: 'malformed', detail: 'the target is not a path' };
}

const deny = (reply: Reply, notes: RequestNotes): Reply =>
  createMessageReply(encodeDenied(reply, getMetadata(notes)), reply.status);

/** For the access log of the gateway, and for its own rules. */
const getMetadata = ({ identity, clientId, grantId, rule, decision, reason }: RequestNotes, scope?: string) => ({
  identity,
  client_id: clientId,
  scope,
  grant_id: grantId,
  rule,
  decision,
  reason,
});

function refuseProtocol(context: RequestContext): Reply {
  context.note({ decision: 'refused', reason: 'malformed: not a gRPC request' });
  return createServiceReply(context, {
    status: 415,
    body: {
      error: 'invalid_request',
      error_description: 'Send a POST request with Content-Type: application/grpc over HTTP/2.',
      request_id: context.id,
    },
  });
}
