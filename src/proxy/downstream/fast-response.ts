import type { Downstream, ForwardRequest } from '../exchange.ts';
import type { ProxyRefusal } from '../policy/refusals.ts';
import { clientFieldsText } from '../response-fields.ts';
import type { ResponseHead } from '../upstream/response-head.ts';
import type { FastConnection } from './fast-connection.ts';
import { formatDateField, formatFields, formatResponseStart, getConnectionFields } from './response-text.ts';

const LAST_CHUNK = '0\r\n\r\n';

/** Writes the responses of a fast-path connection, head and body together where possible. */
export class FastResponse implements Downstream {
  readonly #connection: FastConnection;
  readonly #request: ForwardRequest;
  /** The response head, until it is written together with what follows it. */
  #head = '';
  #isChunked = false;
  /** The close of the connection ends the response. */
  endsByClose = false;
  #isCorked = false;
  hasStarted = false;

  constructor(connection: FastConnection, request: ForwardRequest) {
    this.#connection = connection;
    this.#request = request;
  }

  /** Before each request. */
  reset(): void {
    this.hasStarted = false;
    this.#isChunked = false;
    this.endsByClose = false;
  }

  get isClosed(): boolean {
    return this.#connection.socket.destroyed;
  }

  get unread(): number {
    return this.#connection.socket.writableLength;
  }

  /** The body of the response is being sent in chunks. */
  get isChunked(): boolean {
    return this.#isChunked;
  }

  writeHead(head: ResponseHead): void {
    const { id, method, limitFields } = this.#request;
    const { status, framing } = head;
    // A last chunk would prove an end that is not known.
    this.endsByClose = head.isEndUncertain;
    const isLast = this.#connection.startResponse(status);
    this.#isChunked =
      (framing === 'chunked' || (framing === 'close' && !this.endsByClose)) && method !== 'HEAD';
    this.#head = `${formatResponseStart(status)}${id}\r\n${clientFieldsText(this.#request, head)}${
      head.hasDate ? '' : formatDateField()
    }${limitFields.length === 0 ? '' : formatFields(limitFields)}${
      this.#isChunked ? 'Transfer-Encoding: chunked\r\n' : ''
    }${getConnectionFields(isLast)}`;
    this.hasStarted = true;
  }

  write(bytes: Buffer, start: number, end: number): boolean {
    const { socket, buffers } = this.#connection;
    const size = end - start;
    const before = this.#isChunked ? `${this.#head}${size.toString(16)}\r\n` : this.#head;
    const after = this.#isChunked ? 2 : 0;
    this.#head = '';
    const length = before.length + size + after;
    const pooled = buffers.acquire(length);
    const out = pooled === undefined ? Buffer.allocUnsafe(length) : pooled.bytes;
    out.write(before, 0, 'latin1');
    bytes.copy(out, before.length, start, end);
    if (this.#isChunked) {
      out.write('\r\n', before.length + size, 'latin1');
      this.#cork();
    }
    return pooled === undefined ? socket.write(out) : socket.write(out.subarray(0, length), pooled.release);
  }

  flush(): boolean {
    if (this.#head !== '') {
      this.#connection.socket.write(this.#head, 'latin1');
      this.#head = '';
    }
    this.#uncork();
    return true;
  }

  end(): void {
    const { socket } = this.#connection;
    const rest = this.#isChunked ? this.#head + LAST_CHUNK : this.#head;
    this.#head = '';
    if (rest !== '') socket.write(rest, 'latin1');
    this.#uncork();
    this.#connection.responseWritten(!socket.writableNeedDrain);
  }

  refuse(refusal: ProxyRefusal): void {
    this.#connection.refuse(refusal);
  }

  abort(): void {
    this.#connection.abort();
  }

  #cork(): void {
    if (this.#isCorked) return;
    this.#isCorked = true;
    this.#connection.socket.cork();
  }

  #uncork(): void {
    if (!this.#isCorked) return;
    this.#isCorked = false;
    this.#connection.socket.uncork();
  }
}
