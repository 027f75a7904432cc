import { createHash } from 'node:crypto';
import { stat } from 'node:fs/promises';
import { Worker } from 'node:worker_threads';
import type { ApprovedIssuer } from './approved-issuer.ts';
import { type CrlReadResult, type CrlReadTask, readCrlFiles } from './crl-reader.ts';
import type { Crl } from './crl-set.ts';

/** Parsed within a few milliseconds. */
const SMALL_BYTES = 131_072;

interface CachedFile {
  readonly digest: string;
  readonly lists: readonly Crl[];
}

export type CrlFiles = ReturnType<typeof createCrlFiles>;

/**
 * Revocation lists from files. A file is parsed only when its content has changed; large ones in a worker thread, since
 * parsing a million entries takes seconds (docs/decisions/0029-revocation-lists.md).
 */
export function createCrlFiles() {
  let cache: ReadonlyMap<string, CachedFile> = new Map();
  /** The issuers that verified the cached lists. */
  let cachedIssuersDigest = '';
  const workers = new Set<Worker>();
  return {
    /** Terminates running workers, so that the process can exit. */
    async stop(): Promise<void> {
      await Promise.all([...workers].map((worker) => worker.terminate()));
    },
    /** Problems are in the form "<file>: ...". */
    async load(
      files: readonly string[],
      issuers: readonly ApprovedIssuer[],
    ): Promise<{ readonly lists: readonly Crl[]; readonly problems: readonly string[] }> {
      if (files.length === 0) return { lists: [], problems: [] };
      const issuersDigest = computeIssuersDigest(issuers);
      const previous: typeof cache = issuersDigest === cachedIssuersDigest ? cache : new Map();
      const next = new Map<string, CachedFile>();
      const lists: Crl[] = [];
      const problems: string[] = [];
      const task: CrlReadTask = {
        files: [...new Set(files)].map((file) => ({ file, digest: previous.get(file)?.digest })),
        issuers: listIssuerCertificates(issuers),
      };
      for (const result of (await isSmall(task)) ? readCrlFiles(task) : await readInWorker(task, workers)) {
        const { file } = result;
        if (result.kind === 'unusable') problems.push(`${file}: ${result.problem}`);
        const entry = result.kind === 'parsed' ? result : previous.get(file);
        if (entry === undefined) continue;
        // Also if the file is unusable now: the lists in force need not be parsed again once it is repaired.
        next.set(file, { digest: entry.digest, lists: entry.lists });
        if (result.kind !== 'unusable') for (const list of entry.lists) lists.push(list);
      }
      cache = next;
      cachedIssuersDigest = issuersDigest;
      return { lists, problems };
    },
    /** The lists in bytes that were fetched from a URL. Rejects with an `Error` that says what is wrong with them. */
    async parse(url: string, bytes: Buffer, issuers: readonly ApprovedIssuer[]): Promise<readonly Crl[]> {
      const task: CrlReadTask = { files: [{ file: url, bytes }], issuers: listIssuerCertificates(issuers) };
      const [result] = bytes.length <= SMALL_BYTES ? readCrlFiles(task) : await readInWorker(task, workers);
      if (result?.kind === 'parsed') return result.lists;
      throw new Error(result?.kind === 'unusable' ? result.problem : 'could not be parsed');
    },
  };
}

const listIssuerCertificates = (issuers: readonly ApprovedIssuer[]): CrlReadTask['issuers'] =>
  issuers.map(({ name, certificate }) => ({ name, der: new Uint8Array(certificate.raw) }));

export function computeIssuersDigest(issuers: readonly ApprovedIssuer[]): string {
  const hash = createHash('sha256');
  for (const { name, certificate } of issuers) hash.update(`${JSON.stringify(name)}\n`).update(certificate.raw);
  return hash.digest('base64');
}

/** Pipes are never small: they have no size, and reading them may take any time. */
async function isSmall({ files }: CrlReadTask): Promise<boolean> {
  const sizes = await Promise.all(
    files.map(({ file }) =>
      stat(file).then(
        (stats) => (stats.isFile() ? stats.size : Number.POSITIVE_INFINITY),
        () => 0,
      ),
    ),
  );
  return sizes.reduce((sum, size) => sum + size, 0) <= SMALL_BYTES;
}

/** With the extension of this module: TypeScript from the sources, JavaScript when compiled. */
const WORKER_URL = new URL(`./crl-worker${import.meta.url.endsWith('.ts') ? '.ts' : '.js'}`, import.meta.url);

/** Lists are in typed arrays outside this heap: a million entries need a few megabytes of it. */
const WORKER_LIMITS = { maxOldGenerationSizeMb: 64, maxYoungGenerationSizeMb: 16, stackSizeMb: 2 } as const;
/** Without a file, and for each: reading a pipe may take a minute, and a million entries take seconds on a busy machine. */
const WORKER_TIMEOUT_MS = 60_000;

function readInWorker(task: CrlReadTask, workers: Set<Worker>): Promise<readonly CrlReadResult[]> {
  const failAll = (reason: string): readonly CrlReadResult[] =>
    task.files.map(({ file }) => ({ file, kind: 'unusable', problem: `could not be parsed: ${reason}` }));
  return new Promise((resolve) => {
    const worker = new Worker(WORKER_URL, {
      workerData: task,
      // What was fetched is not copied: it is as long as a server likes, within the limit.
      transferList: task.files.flatMap(({ bytes }) => (bytes === undefined ? [] : [bytes.buffer as ArrayBuffer])),
      execArgv: [],
      name: 'crl-reader',
      resourceLimits: WORKER_LIMITS,
    });
    const timeoutMs = WORKER_TIMEOUT_MS * (1 + task.files.length);
    const timer = setTimeout(() => {
      resolve(failAll(`it took longer than ${timeoutMs / 1_000} s`));
      void worker.terminate();
    }, timeoutMs);
    workers.add(worker);
    worker
      .once('message', (results: readonly CrlReadResult[]) => resolve(results))
      .once('error', (error) => resolve(failAll((error as Error).message)))
      .once('exit', (code) => {
        clearTimeout(timer);
        workers.delete(worker);
        resolve(failAll(`its worker thread exited (code ${code})`));
      });
  });
}
