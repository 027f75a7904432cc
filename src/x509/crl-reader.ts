import { hash } from 'node:crypto';
import { closeSync, constants, openSync, readSync, statSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { describeTooLarge, readFileBytes } from '../lib/read-file.ts';
import { approveIssuer } from './approved-issuer.ts';
import { type Crl, parseCrlFile, selectNewest } from './crl-set.ts';

const MAX_FILE_BYTES = 64 * 1_048_576;

export const readBytes = (file: string): Buffer => readFileBytes(file, MAX_FILE_BYTES);

/** Plain data: it is sent to the worker thread. */
export interface CrlReadTask {
  /** `digest`: of the content that was parsed before, if any. `bytes`: its content, for one that was fetched. */
  readonly files: readonly {
    readonly file: string;
    readonly digest?: string | undefined;
    readonly bytes?: Uint8Array;
  }[];
  readonly issuers: readonly { readonly name: string; readonly der: Uint8Array }[];
}

export type CrlReadResult = { readonly file: string } & (
  | { readonly kind: 'unchanged' }
  | { readonly kind: 'parsed'; readonly digest: string; readonly lists: readonly Crl[] }
  | { readonly kind: 'unusable'; readonly problem: string }
);

/** For the worker thread, which may block on large files. Pipes are polled, so that the thread can be terminated. */
export async function readFilesAndPipes(task: CrlReadTask): Promise<CrlReadResult[]> {
  const pipes = new Map<string, PromiseSettledResult<Buffer>>();
  for (const { file, bytes } of task.files)
    if (bytes === undefined && isPipe(file)) {
      const [result] = await Promise.allSettled([readPipe(file, MAX_FILE_BYTES)]);
      pipes.set(file, result);
    }
  return readCrlFiles(task, (file) => {
    const pipe = pipes.get(file);
    if (pipe?.status === 'rejected') throw pipe.reason;
    return pipe?.value ?? readBytes(file);
  });
}

/** False also for a file that does not exist: reading it reports that. */
const isPipe = (file: string): boolean => {
  try {
    return statSync(file).isFIFO();
  } catch {
    return false;
  }
};

const toBuffer = ({ buffer, byteOffset, length }: Uint8Array): Buffer => Buffer.from(buffer, byteOffset, length);

export function readCrlFiles({ files, issuers }: CrlReadTask, read = readBytes): CrlReadResult[] {
  // The name source does not matter for the signature of a list.
  const approved = issuers.map(({ name, der }) =>
    approveIssuer({ name, certificate: Buffer.from(der), directory: '', identityFrom: 'commonName' }),
  );
  return files.map(({ file, digest: previousDigest, bytes: fetched }) => {
    try {
      const bytes = fetched === undefined ? read(file) : toBuffer(fetched);
      const digest = hash('sha256', bytes, 'base64');
      if (digest === previousDigest) return { file, kind: 'unchanged' };
      const lists = parseCrlFile(file, bytes, approved);
      // A list in a file that is not valid yet is kept beside the current one; a fetched list would be refused.
      return { file, kind: 'parsed', digest, lists: fetched === undefined ? lists : selectNewest(lists) };
    } catch (error) {
      return { file, kind: 'unusable', problem: (error as Error).message };
    }
  });
}

const TIMEOUT_MS = 60_000;
const POLL_INTERVAL_MS = 20;
const CHUNK_BYTES = 65_536;

/**
 * Reads a named pipe to its end without blocking: a thread that waits in the kernel for a writer cannot be terminated, and
 * keeps the process from exiting. Throws an `Error` whose message completes "<file> ...".
 */
async function readPipe(file: string, maxBytes: number): Promise<Buffer> {
  const deadline = performance.now() + TIMEOUT_MS;
  const pipe = openSync(file, constants.O_RDONLY | constants.O_NONBLOCK);
  try {
    const parts: Buffer[] = [];
    let length = 0;
    for (;;) {
      const part = Buffer.alloc(CHUNK_BYTES);
      const size = readAvailable(pipe, part);
      // Before the first byte, 0 may also mean that no writer has opened the pipe yet.
      if (size === undefined || (size === 0 && length === 0)) {
        if (performance.now() > deadline) throw new Error(`did not end within ${TIMEOUT_MS / 1_000} s`);
        await sleep(POLL_INTERVAL_MS);
        continue;
      }
      if (size === 0) return Buffer.concat(parts, length);
      length += size;
      if (length > maxBytes) throw new Error(describeTooLarge(maxBytes));
      parts.push(part.subarray(0, size));
    }
  } finally {
    closeSync(pipe);
  }
}

/** Undefined if a writer has the pipe open but has written nothing more. */
function readAvailable(pipe: number, into: Buffer): number | undefined {
  try {
    return readSync(pipe, into, 0, into.length, null);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EAGAIN') return undefined;
    throw error;
  }
}
