import type { Reply } from '../../http/reply.ts';
import type { RequestContext } from '../../http/request-context.ts';
import { createIdentityHeaders, type HeaderPolicy } from './headers.ts';
import { readOriginalRequest } from './original-request.ts';
import { type RequestCheck, toRecord } from './request-check.ts';

/** Forward-auth: a gateway asks in an HTTP request. The response to an allowed request is 200 with every identity header. */
export class ForwardAuth {
  readonly #check: RequestCheck;
  readonly #headers: HeaderPolicy;

  constructor(check: RequestCheck, headers: HeaderPolicy) {
    this.#check = check;
    this.#headers = headers;
  }

  /** `pathSuffix`: what follows `/check` in the request target, unchanged. */
  async handle(context: RequestContext, pathSuffix: string): Promise<Reply> {
    const refusal = this.#check.refusePeer(context);
    if (refusal !== undefined) return refusal;
    const { request, id, peer, sourceUnknown, clientAddress, certificate, notes } = context;
    const read = readOriginalRequest(request, pathSuffix);
    if (!read.ok) return this.#check.refuseAmbiguous(context, read.detail);
    const { original } = read;
    const { head } = request;
    const result = await this.#check.check({
      id,
      peer,
      sourceUnknown: sourceUnknown === true,
      clientAddress,
      certificate,
      notes,
      original,
      head,
      request,
    });
    if (result.kind === 'refused') return result.reply;
    const identity = toRecord(createIdentityHeaders(this.#headers, result.caller));
    return { status: 200, headers: { 'cache-control': 'no-store', ...identity, ...result.fields, 'X-Request-Id': id } };
  }
}
