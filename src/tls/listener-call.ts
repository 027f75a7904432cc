import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Epoch } from '../domain/epoch.ts';
import type { Call, CallNote } from '../http/call.ts';
import { type Connection, certificateOf } from './connections.ts';

export interface CallFacts {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly id: string;
  readonly arrivedAt: Epoch;
  readonly clientAddress: string;
  readonly connection: Connection;
  readonly upgrade: Call['upgrade'] | undefined;
}

/**
 * A class, because there is one of these for each request: an object literal with a getter has a hidden class of its own
 * each time, and those, with all that hangs on them, live until a full garbage collection (docs/performance.md).
 */
export class ListenerCall implements Call {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly id: string;
  readonly arrivedAt: Epoch;
  readonly peer: string;
  readonly sourceUnknown: boolean;
  readonly clientAddress: string;
  readonly upgrade?: NonNullable<Call['upgrade']>;
  readonly notes: CallNote = {};
  readonly #connection: Connection;

  constructor({ request, response, id, arrivedAt, clientAddress, connection, upgrade }: CallFacts) {
    this.request = request;
    this.response = response;
    this.id = id;
    this.arrivedAt = arrivedAt;
    this.peer = connection.peer;
    this.sourceUnknown = connection.sourceUnknown;
    this.clientAddress = clientAddress;
    this.#connection = connection;
    if (upgrade !== undefined) this.upgrade = upgrade;
  }

  certificate(): Buffer | undefined {
    return certificateOf(this.request.socket, this.#connection);
  }

  note(fields: CallNote): void {
    Object.assign(this.notes, fields);
  }
}
