import type { IncomingMessage } from 'node:http';
import { type BodySource, RequestBody } from '../request-body.ts';

/** The body of a request that Node's HTTP servers have parsed, over HTTP/1.1 or HTTP/2. */
export class MessageBody implements BodySource {
  readonly #message: IncomingMessage;
  readonly #body: RequestBody;

  static of(message: IncomingMessage, length: number | undefined, maxBytes: number): RequestBody {
    return new MessageBody(message, length, maxBytes).#body;
  }

  private constructor(message: IncomingMessage, length: number | undefined, maxBytes: number) {
    this.#message = message;
    this.#body = new RequestBody(this, length, maxBytes);
    message.on('data', this.#onData).on('end', this.#onEnd).on('close', this.#onClose);
    message.pause();
  }

  get isComplete(): boolean {
    return this.#message.complete;
  }

  pause(): void {
    this.#message.pause();
  }

  resume(): void {
    this.#message.resume();
  }

  readonly #onData = (part: Buffer): void => this.#body.push(part);
  readonly #onEnd = (): void => this.#body.end();
  readonly #onClose = (): void => {
    if (!this.#body.isSent && !this.#message.complete) this.#body.fail('client_disconnected');
  };
}
