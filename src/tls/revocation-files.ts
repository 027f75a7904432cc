import { createHash } from 'node:crypto';
import { stat } from 'node:fs/promises';
import { Worker } from 'node:worker_threads';
import type { ApprovedIssuer } from './approved-issuer.ts';
import type { RevocationList } from './revocation-lists.ts';
import { type RevocationReading, type RevocationTask, readRevocationFiles } from './revocation-read.ts';

/**
 * Revocation lists from files. A file is parsed only when its content has changed, and a large one in a worker thread:
 * a list of a million entries takes seconds, and no request may wait for it (docs/decisions/0029-revocation-lists.md).
 */
export interface RevocationFiles {
  /** The lists in these files, and what is wrong with files that cannot be used ("<file>: ..."). */
  load(
    files: readonly string[],
    issuers: readonly ApprovedIssuer[],
  ): Promise<{ readonly lists: readonly RevocationList[]; readonly problems: readonly string[] }>;
  /** How many times a file was parsed. */
  readonly parsed: number;
  /** Ends what is being read: the process can exit. */
  stop(): Promise<void>;
}

/** Parsed within a few milliseconds. */
const SMALL_BYTES = 131_072;

interface Known {
  readonly digest: string;
  readonly lists: readonly RevocationList[];
}

export function revocationFiles(): RevocationFiles {
  let known = new Map<string, Known>();
  /** Whose signatures the known lists were verified with. */
  let knownIssuers = '';
  let parsed = 0;
  const workers = new Set<Worker>();
  return {
    get parsed() {
      return parsed;
    },
    async stop() {
      await Promise.all([...workers].map((worker) => worker.terminate()));
    },
    async load(files, issuers) {
      if (files.length === 0) return { lists: [], problems: [] };
      const signers = digestOf(issuers);
      const before = signers === knownIssuers ? known : new Map<string, Known>();
      const next = new Map<string, Known>();
      const lists: RevocationList[] = [];
      const problems: string[] = [];
      const wanted = [...new Set(files)].map((file) => ({ file, digest: before.get(file)?.digest }));
      for (const reading of await read({ files: wanted, issuers: issuers.map(plain) }, workers)) {
        const { file } = reading;
        const earlier = before.get(file);
        if (reading.kind === 'read') parsed += 1;
        if (reading.kind === 'unusable') problems.push(`${file}: ${reading.problem}`);
        const found = reading.kind === 'read' ? reading : earlier;
        if (found === undefined) continue;
        // Also of a file that is unusable now: the lists in force need not be parsed again when it is put right.
        next.set(file, { digest: found.digest, lists: found.lists });
        if (reading.kind !== 'unusable') lists.push(...found.lists);
      }
      known = next;
      knownIssuers = signers;
      return { lists, problems };
    },
  };
}

const plain = ({ name, certificate }: ApprovedIssuer) => ({ name, der: new Uint8Array(certificate.raw) });

function digestOf(issuers: readonly ApprovedIssuer[]): string {
  const hash = createHash('sha256');
  for (const { name, certificate } of issuers)
    hash.update(`${JSON.stringify(name)}\n`).update(certificate.raw);
  return hash.digest('base64');
}

async function read(task: RevocationTask, workers: Set<Worker>): Promise<readonly RevocationReading[]> {
  return (await isSmall(task)) ? readRevocationFiles(task) : inWorker(task, workers);
}

/** A pipe has no size, and reading it may take any time. */
async function isSmall({ files }: RevocationTask): Promise<boolean> {
  const sizes = await Promise.all(
    files.map(({ file }) =>
      stat(file).then(
        (found) => (found.isFile() ? found.size : Number.POSITIVE_INFINITY),
        () => 0,
      ),
    ),
  );
  return sizes.reduce((sum, size) => sum + size, 0) <= SMALL_BYTES;
}

/** Sources run as they are, or compiled (bin/gatehouse.js): the worker is what this module is. */
const MODULE = new URL(
  `./revocation-worker${import.meta.url.endsWith('.ts') ? '.ts' : '.js'}`,
  import.meta.url,
);

function inWorker(task: RevocationTask, workers: Set<Worker>): Promise<readonly RevocationReading[]> {
  const failed = (why: string): readonly RevocationReading[] =>
    task.files.map(({ file }) => ({ file, kind: 'unusable', problem: `could not be parsed: ${why}` }));
  return new Promise((resolve) => {
    const worker = new Worker(MODULE, { workerData: task, execArgv: [], name: 'revocation lists' });
    workers.add(worker);
    worker
      .once('message', (readings: readonly RevocationReading[]) => resolve(readings))
      .once('error', (error) => resolve(failed((error as Error).message)))
      .once('exit', (code) => {
        workers.delete(worker);
        resolve(failed(`its thread ended (${code})`));
      });
  });
}
