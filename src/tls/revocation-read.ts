import { createHash } from 'node:crypto';
import { readFileSync, statSync } from 'node:fs';
import { type ApprovedIssuer, approveIssuer } from './approved-issuer.ts';
import { readPipe } from './read-pipe.ts';
import { type RevocationList, readRevocationFile } from './revocation-lists.ts';

/** Reading and parsing files of revocation lists: on the main thread for small ones, in a worker thread for others. */

const MAX_BYTES = 64 * 1_048_576;

/** Plain data: it is sent to the worker thread. */
export interface RevocationTask {
  /** `digest`: of the content that is already known, if any. */
  readonly files: readonly { readonly file: string; readonly digest: string | undefined }[];
  readonly issuers: readonly { readonly name: string; readonly der: Uint8Array }[];
}

export type RevocationReading =
  | { readonly file: string; readonly kind: 'unchanged' }
  | {
      readonly file: string;
      readonly kind: 'read';
      readonly digest: string;
      readonly lists: readonly RevocationList[];
    }
  | { readonly file: string; readonly kind: 'unusable'; readonly problem: string };

/** For a worker thread, which may read large files at once. Pipes are waited for without blocking it: it can be terminated. */
export async function readFilesAndPipes(task: RevocationTask): Promise<RevocationReading[]> {
  const pipes = new Map<string, () => Buffer>();
  for (const { file } of task.files) {
    if (!isPipe(file)) continue;
    try {
      const bytes = await readPipe(file, MAX_BYTES, () => new TooLarge());
      pipes.set(file, () => bytes);
    } catch (error) {
      pipes.set(file, () => {
        throw error;
      });
    }
  }
  return readRevocationFiles(task, (file) => pipes.get(file)?.() ?? readWhole(file));
}

function isPipe(file: string): boolean {
  try {
    return statSync(file).isFIFO();
  } catch {
    // `readWhole` says why.
    return false;
  }
}

export function readRevocationFiles(
  { files, issuers }: RevocationTask,
  readBytes = readWhole,
): RevocationReading[] {
  // Where names are looked up does not matter for the signature of a list.
  const approved = issuers.map(({ name, der }) =>
    approveIssuer({ name, certificate: Buffer.from(der), directory: '', identityFrom: 'commonName' }),
  );
  return files.map(({ file, digest }) => {
    try {
      return readOneFile(file, readBytes(file), digest, approved);
    } catch (error) {
      return { file, kind: 'unusable', problem: (error as Error).message };
    }
  });
}

function readOneFile(
  file: string,
  bytes: Buffer,
  known: string | undefined,
  issuers: readonly ApprovedIssuer[],
): RevocationReading {
  const digest = createHash('sha256').update(bytes).digest('base64');
  if (digest === known) return { file, kind: 'unchanged' };
  return { file, kind: 'read', digest, lists: readRevocationFile(file, bytes, issuers) };
}

/** Throws an `Error` whose message completes "<file> ...". */
export function readWhole(file: string): Buffer {
  let bytes: Buffer;
  try {
    if (statSync(file).size > MAX_BYTES) throw new TooLarge();
    bytes = readFileSync(file);
  } catch (error) {
    if (error instanceof TooLarge) throw error;
    const { code } = error as NodeJS.ErrnoException;
    throw new Error(code === 'ENOENT' ? 'does not exist' : `cannot be read (${code})`, { cause: error });
  }
  return bytes;
}

class TooLarge extends Error {
  constructor() {
    super('is larger than 64 MiB');
  }
}
