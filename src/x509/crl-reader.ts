import { hash } from 'node:crypto';
import { statSync } from 'node:fs';
import { readFileBytes } from '../lib/read-file.ts';
import { approveIssuer } from './approved-issuer.ts';
import { type Crl, parseCrlFile, selectNewest } from './crl-set.ts';
import { readPipe } from './read-pipe.ts';

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
