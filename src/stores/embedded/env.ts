import { type Database, open, type RootDatabase } from 'lmdb';
import type { Epoch } from '../../domain/grant.ts';
import { Fault } from '../../ports/fault.ts';
import { RECORD_KINDS, type RecordKind } from '../../ports/record-authenticator.ts';
import { corruptFault } from './check-data-file.ts';
import { getFolderState, isDiskFull, type StoreFiles, toFault, unavailableFault } from './folder.ts';
import { openDiskReserve, type PageStats, WriteQueue } from './write-queue.ts';

export type TableName = RecordKind | 'revocations';
type Table = Database<Buffer, string>;

/** One key for each record that expires. */
export type ExpiryKey = [keepUntil: Epoch, table: TableName, id: string];

/** One key for each grant. */
export type IdentityIndexKey = [identityHash: string, grantId: string];

/** The opened data file. */
export type Env = ReturnType<typeof openEnv>;

/** The range of the keys that follow `after`; of all keys if it is undefined. */
export const startAfter = <Key>(after: Key | undefined) =>
  after === undefined ? {} : { start: after, exclusiveStart: true };

export function openEnv(files: StoreFiles, mapSize: number) {
  if (getFolderState(files) === 'new' && isDiskFull(files))
    throw new Fault('store_full', `no space left to create a store in ${files.folder}`);
  let root: RootDatabase<Buffer, string>;
  try {
    root = open<Buffer, string>({
      path: files.data,
      noSubdir: true,
      mapSize,
      maxDbs: 16,
      maxReaders: 512,
      encoding: 'binary',
      // A resolved write is flushed. Never `useWritemap`: a full disk would then kill the process (SIGBUS).
      overlappingSync: false,
      // The write queue makes batches; each is one transaction.
      eventTurnBatching: false,
      txnStartThreshold: Number.MAX_SAFE_INTEGER,
      permissionsMode: 0o600,
    } as Parameters<typeof open<Buffer, string>>[0]);
  } catch (error) {
    throw toOpenFault(files, error);
  }
  const openTable = (name: string): Table =>
    root.openDB<Buffer, string>(name, { encoding: 'binary', useVersions: true });
  let closed = false;
  try {
    const names: readonly TableName[] = [...RECORD_KINDS, 'revocations'];
    const tables = Object.fromEntries(names.map((name) => [name, openTable(name)])) as Record<TableName, Table>;
    const expiry = root.openDB<Buffer, ExpiryKey>('expiry', { encoding: 'binary' });
    const identityIndex = root.openDB<Buffer, IdentityIndexKey>('grantsByIdentity', { encoding: 'binary' });
    const probeTable = openTable('pulse');
    const trees = [...Object.values(tables), expiry, identityIndex, probeTable];
    const diskReserve = openDiskReserve(files, createPageStats(root, trees));
    const writeQueue = new WriteQueue(diskReserve);
    return {
      root,
      tables,
      expiry,
      /** Each entry is written and removed in the transaction of its grant. */
      identityIndex,
      /** Written by `Store.probe`. */
      probeTable,
      writeQueue,
      /** Throws `store_full` when the records have reached the configured size. */
      requireSpace: createSpaceCheck(root, trees, mapSize),
      /** Reads from a new snapshot, which includes the writes of other workers. */
      readFresh<T>(read: () => T): T {
        if (closed) throw unavailableFault('the store is closed');
        try {
          root.resetReadTxn();
          return read();
        } catch (error) {
          throw toFault(error, 'the store could not be read');
        }
      },
      async close(): Promise<void> {
        if (closed) return;
        await writeQueue.close(10_000);
        closed = true;
        diskReserve.close();
        await root.close();
      },
    };
  } catch (error) {
    void root.close();
    throw toOpenFault(files, error);
  }
}

function toOpenFault(files: StoreFiles, error: unknown): Fault {
  const message = error instanceof Error ? error.message : '';
  if (/MDB_INVALID|MDB_CORRUPTED|MDB_VERSION_MISMATCH|MDB_PAGE_NOTFOUND/.test(message))
    return corruptFault(files.data, message, error);
  return unavailableFault(`cannot open the store in ${files.folder}: ${message}`, error);
}

interface TreeStats {
  readonly treeBranchPageCount: number;
  readonly treeLeafPageCount: number;
  readonly overflowPages: number;
}

interface FileStats extends TreeStats {
  readonly pageSize: number;
  readonly lastPageNumber: number;
  readonly lastTxnId: number;
  readonly root: TreeStats;
  readonly free: TreeStats;
}

type Tree = Pick<Database, 'getStats'>;

const countPages = (tree: TreeStats): number => tree.treeBranchPageCount + tree.treeLeafPageCount + tree.overflowPages;
const readFileStats = (root: Tree): FileStats => root.getStats() as FileStats;
const countPagesInUse = (trees: readonly Tree[]): number =>
  trees.reduce((sum, tree) => sum + countPages(tree.getStats() as TreeStats), 0);

const HEADER_PAGES = 2;

function createPageStats(root: RootDatabase<Buffer, string>, trees: readonly Tree[]): PageStats {
  return {
    read() {
      root.resetReadTxn();
      return readFileStats(root);
    },
    countFree() {
      root.resetReadTxn();
      const stats = readFileStats(root);
      const used = HEADER_PAGES + countPages(stats) + countPages(stats.free) + countPagesInUse(trees);
      return stats.lastPageNumber + 1 - used;
    },
    hasStaleReaders() {
      root.resetReadTxn();
      const { lastTxnId } = readFileStats(root);
      // One line per reader: process, thread and the transaction of its snapshot ("-" for none).
      const readers = [...root.readerList().matchAll(/^\s*\d+\s+\S+\s+(\d+)\s*$/gm)];
      return readers.some(([, txn]) => Number(txn) < lastTxnId - 2);
    },
  };
}

/**
 * lmdb lets the map grow beyond `mapSize`, so the limit is enforced here. The file length is sufficient below the limit;
 * above it the pages in use are counted, since the file keeps the pages of removed records for new ones.
 */
function createSpaceCheck(root: RootDatabase<Buffer, string>, trees: readonly Tree[], mapSize: number): () => void {
  let checkedAt = Number.NEGATIVE_INFINITY;
  let isOverLimit = false;
  const isFull = (): boolean => {
    const { lastPageNumber, pageSize } = readFileStats(root);
    if (lastPageNumber * pageSize < mapSize * 0.9) return false;
    return countPagesInUse(trees) * pageSize >= mapSize * 0.9;
  };
  return () => {
    if (performance.now() - checkedAt > 20) {
      checkedAt = performance.now();
      isOverLimit = isFull();
    }
    if (isOverLimit)
      throw new Fault('store_full', `the store has reached its limit of ${mapSize} bytes (store.mapSize)`, {
        retryAfter: 30,
      });
  };
}
