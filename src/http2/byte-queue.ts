import type { BufferPool, PooledBuffer } from '../lib/buffer-pool.ts';

/** Smaller parts are copied together: a client decides how small they are, and each would cost an object. */
const BLOCK_SIZE = 4_096;
/** Blocks grow with the queue: on most streams, little waits. They are not from Node's pool, which a few bytes would pin. */
const MIN_BLOCK_SIZE = 512;

/** Bytes that wait, in their order. */
export class ByteQueue {
  length = 0;
  /** From `#start` in the first to `#end` in the last. */
  #blocks: Buffer[] = [];
  /** Those of `#blocks` that are from the pool. */
  #pooled: (PooledBuffer | undefined)[] = [];
  #start = 0;
  #end = 0;
  readonly #pool: BufferPool | undefined;

  /** `pool`: for copies, whose bytes are then valid until they are consumed. */
  constructor(pool?: BufferPool) {
    this.#pool = pool;
  }

  /** Adds a copy. */
  append(bytes: Buffer, start: number, end: number): void {
    const size = end - start;
    if (size === 0) return;
    let last = this.#blocks.at(-1);
    if (last === undefined || last.length - this.#end < size) {
      const blockSize = Math.max(size, MIN_BLOCK_SIZE, Math.min(this.length, BLOCK_SIZE));
      const pooled = this.#pool?.acquire(blockSize);
      last = pooled?.bytes ?? Buffer.allocUnsafeSlow(blockSize);
      this.#addBlock(last, 0, pooled);
    }
    bytes.copy(last, this.#end, start, end);
    this.#end += size;
    this.length += size;
  }

  /** Adds bytes that do not change; only small parts are copied. */
  add(part: Buffer): void {
    if (part.length < BLOCK_SIZE) return this.append(part, 0, part.length);
    this.#addBlock(part, part.length);
    this.length += part.length;
  }

  #addBlock(block: Buffer, end: number, pooled?: PooledBuffer): void {
    const at = this.#blocks.length - 1;
    const last = this.#blocks[at];
    if (last !== undefined) this.#blocks[at] = last.subarray(0, this.#end);
    this.#blocks.push(block);
    this.#pooled.push(pooled);
    this.#end = end;
  }

  /** The first bytes, as many as are in one place. */
  get first(): Buffer {
    const [block] = this.#blocks;
    if (block === undefined) return NO_BYTES;
    return block.subarray(this.#start, this.#blocks.length === 1 ? this.#end : block.length);
  }

  /** Removes the first bytes, at most as many as `first` has. */
  consume(size: number): void {
    const isBlockUsed = size === this.first.length;
    this.length -= size;
    this.#start += size;
    if (!isBlockUsed) return;
    this.#blocks.shift();
    this.#pooled.shift()?.release();
    this.#start = 0;
  }

  /** Removes and returns everything. Not for a queue with a pool. */
  take(): Buffer {
    const parts: Buffer[] = [];
    while (this.length > 0) {
      const part = this.first;
      parts.push(part);
      this.consume(part.length);
    }
    return parts.length === 1 ? (parts[0] as Buffer) : Buffer.concat(parts);
  }

  clear(): void {
    if (this.#blocks.length === 0) return;
    for (const pooled of this.#pooled) pooled?.release();
    this.#pooled = [];
    this.#blocks = [];
    this.#start = 0;
    this.#end = 0;
    this.length = 0;
  }
}

const NO_BYTES = Buffer.alloc(0);
