import { createHash } from 'node:crypto';
import { stat } from 'node:fs/promises';
import { Worker } from 'node:worker_threads';
import type { Epoch } from '../domain/grant.ts';
import { smallest } from '../lib/extremes.ts';
import type { ApprovedIssuer } from './approved-issuer.ts';
import { KEY_USAGE } from './certificate-facts.ts';
import { type CrlReadResult, type CrlReadTask, readCrlFiles } from './crl-reader.ts';
import { CLOCK_SKEW, type Crl, type CrlSource } from './crl-set.ts';

export interface CrlFetcherOptions {
  readonly url: string;
  readonly issuers: readonly ApprovedIssuer[];
  /** Accept lists of this issuer only. */
  readonly issuer?: string | undefined;
  /** Rejects with an `Error` whose message is fit for a log. */
  readonly fetch: () => Promise<Buffer>;
  /** Verifies and parses the lists of these issuers; rejects like `fetch`. */
  readonly parse: (bytes: Buffer, issuers: readonly ApprovedIssuer[]) => Promise<readonly Crl[]>;
  /** Seconds between fetches. */
  readonly refresh: number;
  readonly now: () => Epoch;
  /** Called after each attempt. */
  readonly onAttempt?: (error: Error | undefined) => void;
  /** Called when fetching begins to fail (with the error) and when it works again (without). */
  readonly onStateChange?: (error: Error | undefined) => void;
}

/** Seconds until a failed fetch is repeated; doubled with each failure. */
const RETRY = { min: 1, max: 60 };
/** A list is fetched again in this part of its remaining validity at the latest. */
const RENEW_AT_FRACTION = 0.5;
const MIN_INTERVAL = 10;
/** Replicas that start together fetch at different times. */
const JITTER = 0.1;

/**
 * The revocation lists at a URL. The last good ones stay in use while they cannot be fetched, until they expire. As in a
 * reload, a list is never replaced by an older one (docs/decisions/0029-revocation-lists.md).
 */
export class CrlFetcher implements CrlSource {
  readonly #options: CrlFetcherOptions;
  /** One for each key of an issuer. */
  #lists: readonly Crl[];
  #revision = 0;
  #failures = 0;
  #fetchedAt: Epoch | undefined;
  #timer: NodeJS.Timeout | undefined;
  #isClosed = false;

  /** `previous`: a fetcher of the same URL, for other issuers. Its lists stay in use. */
  constructor(options: CrlFetcherOptions, previous?: CrlFetcher) {
    this.#options = options;
    this.#lists = (previous?.lists ?? []).flatMap((list) => adoptList(list, options));
    this.#fetchedAt = previous?.fetchedAt;
  }

  get url(): string {
    return this.#options.url;
  }

  get lists(): readonly Crl[] {
    return this.#lists;
  }

  get revision(): number {
    return this.#revision;
  }

  /** The last successful fetch. */
  get fetchedAt(): Epoch | undefined {
    return this.#fetchedAt;
  }

  covers(issuerKey: string): boolean {
    const { issuers, issuer } = this.#options;
    return issuers.some(({ name, keyFingerprint }) => keyFingerprint === issuerKey && name === (issuer ?? name));
  }

  /** Fetches and schedules the next fetch. Resolves also if it has failed. */
  async start(): Promise<void> {
    const { onAttempt, onStateChange, now } = this.#options;
    try {
      const lists = await this.#fetchLists();
      if (this.#isClosed) return;
      this.#replaceLists(lists);
      this.#fetchedAt = now();
      const isRecovery = this.#failures > 0;
      this.#failures = 0;
      onAttempt?.(undefined);
      if (isRecovery) onStateChange?.(undefined);
    } catch (error) {
      if (this.#isClosed) return;
      this.#failures += 1;
      onAttempt?.(error as Error);
      if (this.#failures === 1) onStateChange?.(error as Error);
    }
    this.#timer = setTimeout(() => void this.start(), this.#computeDelay() * 1_000).unref();
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
  }

  async #fetchLists(): Promise<readonly Crl[]> {
    const { fetch, parse, issuers, issuer, now } = this.#options;
    const lists = await parse(await fetch(), issuers);
    for (const list of lists) {
      if (issuer !== undefined && list.issuer !== issuer)
        throw new Error(`it is the revocation list of ${list.issuer}, and not of ${issuer}`);
      const current = this.#lists.find(({ issuerKey }) => issuerKey === list.issuerKey);
      if (current !== undefined && list.thisUpdate < current.thisUpdate)
        throw new Error(`the revocation list of ${list.issuer} is older than the one in use`);
      // It would not apply yet, and lists issued until then would be refused as older.
      if (list.thisUpdate > now() + CLOCK_SKEW)
        throw new Error(`the revocation list of ${list.issuer} is from the future`);
      if (list.nextUpdate < now()) throw new Error(`the revocation list of ${list.issuer} has expired`);
    }
    return lists;
  }

  #replaceLists(lists: readonly Crl[]): void {
    const replaced = new Set(lists.map(({ issuerKey }) => issuerKey));
    // A CA with a new key publishes its list under the same URL; the list of the old key is still needed.
    const kept = this.#lists.filter(({ issuerKey }) => !replaced.has(issuerKey));
    this.#lists = [...kept, ...lists.map((list) => ({ ...list, isFetched: true as const }))];
    this.#revision += 1;
  }

  #computeDelay(): number {
    const { refresh, now } = this.#options;
    if (this.#failures > 0) return Math.min(RETRY.max, RETRY.min * 2 ** (this.#failures - 1));
    return computeRefetchDelay(this.#lists, refresh, now()) * (1 - Math.random() * JITTER);
  }
}

/** Seconds until the next fetch: after `refresh`, but well before the first of the lists expires. */
export function computeRefetchDelay(lists: readonly Pick<Crl, 'nextUpdate'>[], refresh: number, now: Epoch): number {
  const remaining = smallest(lists.map(({ nextUpdate }) => nextUpdate - now));
  return Math.min(refresh, Math.max(MIN_INTERVAL, remaining * RENEW_AT_FRACTION));
}

/** Its signature was verified with a key, so it stays valid for another certificate of that key that may sign lists. */
function adoptList(list: Crl, { issuers, issuer: onlyIssuer }: CrlFetcherOptions): Crl[] {
  const issuer = issuers.find(
    ({ keyFingerprint, name }) => keyFingerprint === list.issuerKey && name === (onlyIssuer ?? name),
  );
  if (issuer === undefined) return [];
  const { keyUsage } = issuer.facts;
  return keyUsage === undefined || keyUsage.has(KEY_USAGE.crlSign) ? [{ ...list, issuer: issuer.name }] : [];
}

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
