import type { Socket } from 'node:net';
import type { ForwardedHead, ResponseFields } from '../../http/downstream.ts';
import { formatFields, formatLastChunk } from '../../http/raw-headers.ts';
import type { BufferPool } from '../../lib/buffer-pool.ts';
import { formatDateField, formatResponseStart, getConnectionFields } from './response-text.ts';

/** Writes forwarded responses to an HTTP/1.1 connection, head and body together where possible. */
export class ResponseWriter {
  readonly #socket: Socket;
  readonly #buffers: BufferPool;
  /** The response head, until it is written together with what follows it. */
  #head = '';
  /** The body is being sent in chunks. */
  isChunked = false;
  #isCorked = false;

  constructor(socket: Socket, buffers: BufferPool) {
    this.#socket = socket;
    this.#buffers = buffers;
  }

  writeHead(
    { status, hasDate }: ForwardedHead,
    fields: ResponseFields,
    id: string,
    extra: readonly string[],
    isChunked: boolean,
    isLast: boolean,
  ): void {
    if (fields.text === '') fields.text = formatFields(fields.list);
    this.isChunked = isChunked;
    this.#head = `${formatResponseStart(status)}${id}\r\n${fields.text}${hasDate ? '' : formatDateField()}${
      extra.length === 0 ? '' : formatFields(extra)
    }${isChunked ? 'Transfer-Encoding: chunked\r\n' : ''}${getConnectionFields(isLast)}`;
  }

  write(bytes: Buffer, start: number, end: number): boolean {
    const size = end - start;
    const before = this.isChunked ? `${this.#head}${size.toString(16)}\r\n` : this.#head;
    const after = this.isChunked ? 2 : 0;
    this.#head = '';
    const length = before.length + size + after;
    const pooled = this.#buffers.acquire(length);
    const out = pooled === undefined ? Buffer.allocUnsafe(length) : pooled.bytes;
    out.write(before, 0, 'latin1');
    bytes.copy(out, before.length, start, end);
    if (this.isChunked) {
      out.write('\r\n', before.length + size, 'latin1');
      this.#cork();
    }
    return pooled === undefined ? this.#socket.write(out) : this.#socket.write(out.subarray(0, length), pooled.release);
  }

  flush(): void {
    if (this.#head !== '') {
      this.#socket.write(this.#head, 'latin1');
      this.#head = '';
    }
    this.#uncork();
  }

  /** `trailers`: only with a chunked body. */
  end(trailers: readonly string[] | undefined): void {
    const rest = this.isChunked ? this.#head + formatLastChunk(trailers) : this.#head;
    this.#head = '';
    if (rest !== '') this.#socket.write(rest, 'latin1');
    this.#uncork();
  }

  #cork(): void {
    if (this.#isCorked) return;
    this.#isCorked = true;
    this.#socket.cork();
  }

  #uncork(): void {
    if (!this.#isCorked) return;
    this.#isCorked = false;
    this.#socket.uncork();
  }
}
