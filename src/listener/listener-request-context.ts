import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Epoch } from '../domain/epoch.ts';
import type { RequestContext, RequestNotes } from '../http/request-context.ts';
import { type ConnectionInfo, getPeerCertificate } from './connection-registry.ts';

type ContextInit = Pick<
  RequestContext,
  'request' | 'response' | 'id' | 'arrivedAt' | 'clientAddress' | 'pendingBefore'
> & {
  readonly upgrade: RequestContext['upgrade'] | undefined;
};

/**
 * A class, since one is created for each request: each object literal with a getter has a hidden class of its own, which
 * lives until a full garbage collection together with all it refers to (docs/decisions/0040-performance-work.md).
 */
export class ListenerRequestContext implements RequestContext {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly id: string;
  readonly arrivedAt: Epoch;
  readonly peer: string;
  readonly sourceUnknown: boolean;
  readonly clientAddress: string;
  readonly pendingBefore: number;
  readonly upgrade?: NonNullable<RequestContext['upgrade']>;
  readonly notes: RequestNotes = {};
  readonly #connection: ConnectionInfo;
  #heldBytes = 0;

  constructor(
    { request, response, id, arrivedAt, clientAddress, pendingBefore, upgrade }: ContextInit,
    connection: ConnectionInfo,
  ) {
    this.request = request;
    this.response = response;
    this.id = id;
    this.arrivedAt = arrivedAt;
    this.peer = connection.peer;
    this.sourceUnknown = connection.sourceUnknown;
    this.clientAddress = clientAddress;
    this.pendingBefore = pendingBefore;
    this.#connection = connection;
    if (upgrade !== undefined) this.upgrade = upgrade;
  }

  certificate(): Buffer | undefined {
    return getPeerCertificate(this.request.socket, this.#connection);
  }

  hold(bytes: number): void {
    this.#heldBytes += bytes;
    this.#connection.account.add(bytes);
  }

  /** The request has ended, or the limits of its grant apply. */
  release(): void {
    this.hold(-this.#heldBytes);
  }

  markAuthorized(): void {
    this.#connection.account.hasAuthorized = true;
    this.release();
  }

  note(fields: RequestNotes): void {
    Object.assign(this.notes, fields);
  }
}
