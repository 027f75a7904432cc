import { type Database, open, type RootDatabase } from 'lmdb';
import type { Epoch } from '../domain/epoch.ts';
import { Fault } from '../ports/fault.ts';
import { corrupt } from './embedded-check.ts';
import { isDiskFull, type StoreFiles, stateOf, unavailable } from './embedded-folder.ts';
import { type Pages, type Reserve, reserve } from './embedded-reserve.ts';
import { type WriteLine, writeLine } from './embedded-writes.ts';

export const RECORD_KINDS = ['grants', 'devices', 'userCodes', 'notes'] as const;
export type RecordKind = (typeof RECORD_KINDS)[number];
export type TableName = RecordKind | 'revocations';
export type Table = Database<Buffer, string>;

/** When to forget what: one key per record that ends. */
export type ExpiryKey = [keepUntil: Epoch, table: TableName, id: string];

/** Under whose name a grant stands: one key per grant. */
export type HolderKey = [holder: string, grantId: string];

/** The opened file: its tables, the one line of writes, and reading that always sees the newest flushed state. */
export interface Env {
  readonly root: RootDatabase<Buffer, string>;
  readonly tables: Readonly<Record<TableName, Table>>;
  readonly expiry: Database<Buffer, ExpiryKey>;
  /** Grants by identity; each entry is written and removed together with its grant. */
  readonly holders: Database<Buffer, HolderKey>;
  /** What the process writes to see whether it can. */
  readonly pulse: Table;
  readonly writes: WriteLine;
  /** Reads from a fresh snapshot. LMDB readers keep theirs, and would miss what another worker has written since. */
  fresh<T>(look: () => T): T;
  /** Throws `store_full` when the records take up what the settings allow. */
  requireRoom(): void;
  close(): Promise<void>;
}

export function openEnv(files: StoreFiles, mapSize: number): Env {
  if (stateOf(files) === 'new' && isDiskFull(files))
    throw new Fault('store_full', `no space left to make a store in ${files.folder}`);
  let root: RootDatabase<Buffer, string>;
  try {
    root = open<Buffer, string>({
      path: files.data,
      noSubdir: true,
      mapSize,
      maxDbs: 16,
      maxReaders: 512,
      encoding: 'binary',
      // A resolved write is a flushed write. Never `useWritemap`: a full disk would then end the process (SIGBUS).
      overlappingSync: false,
      // Batches are made by the write line; each becomes one transaction.
      eventTurnBatching: false,
      txnStartThreshold: Number.MAX_SAFE_INTEGER,
      permissionsMode: 0o600,
    } as Parameters<typeof open<Buffer, string>>[0]);
  } catch (error) {
    throw openFault(files, error);
  }
  const table = (name: string): Table =>
    root.openDB<Buffer, string>(name, { encoding: 'binary', useVersions: true });
  let closed = false;
  let space: Reserve | undefined;
  try {
    const tables = {
      grants: table('grants'),
      devices: table('devices'),
      userCodes: table('userCodes'),
      notes: table('notes'),
      revocations: table('revocations'),
    };
    const expiry = root.openDB<Buffer, ExpiryKey>('expiry', { encoding: 'binary' });
    const holders = root.openDB<Buffer, HolderKey>('holders', { encoding: 'binary' });
    const pulse = table('pulse');
    const trees = [...Object.values(tables), expiry, holders, pulse];
    const reserved = reserve(files, pagesOf(root, trees));
    space = reserved;
    const writes = writeLine(reserved);
    return {
      root,
      tables,
      expiry,
      holders,
      pulse,
      writes,
      requireRoom: roomKeeper(root, trees, mapSize),
      fresh(look) {
        if (closed) throw unavailable('the store is closed');
        try {
          root.resetReadTxn();
          return look();
        } catch (error) {
          throw error instanceof Fault ? error : unavailable('the store could not be read', error);
        }
      },
      async close() {
        if (closed) return;
        await writes.close(10_000);
        closed = true;
        reserved.close();
        await root.close();
      },
    };
  } catch (error) {
    space?.close();
    void root.close();
    throw openFault(files, error);
  }
}

function openFault(files: StoreFiles, error: unknown): Fault {
  const words = error instanceof Error ? error.message : '';
  if (/MDB_INVALID|MDB_CORRUPTED|MDB_VERSION_MISMATCH|MDB_PAGE_NOTFOUND/.test(words))
    return corrupt(files.data, words, error);
  return unavailable(`cannot open the store in ${files.folder}: ${words}`, error);
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

const pagesIn = (tree: TreeStats): number =>
  tree.treeBranchPageCount + tree.treeLeafPageCount + tree.overflowPages;
const fileStats = (root: Tree): FileStats => root.getStats() as FileStats;
const pagesInUse = (trees: readonly Tree[]): number =>
  trees.reduce((sum, tree) => sum + pagesIn(tree.getStats() as TreeStats), 0);

const HEADER_PAGES = 2;

function pagesOf(root: RootDatabase<Buffer, string>, trees: readonly Tree[]): Pages {
  return {
    count() {
      root.resetReadTxn();
      return fileStats(root);
    },
    free() {
      root.resetReadTxn();
      const stats = fileStats(root);
      const used = HEADER_PAGES + pagesIn(stats) + pagesIn(stats.free) + pagesInUse(trees);
      return stats.lastPageNumber + 1 - used;
    },
    pinned() {
      root.resetReadTxn();
      const { lastTxnId } = fileStats(root);
      // One line for each reader: process, thread, and the transaction it looks at ("-" for none).
      const readers = [...root.readerList().matchAll(/^\s*\d+\s+\S+\s+(\d+)\s*$/gm)];
      return readers.some(([, txn]) => Number(txn) < lastTxnId - 2);
    },
  };
}

/**
 * lmdb makes the map grow beyond `mapSize`, so the limit is kept here. The file's length decides while it is below;
 * after that the pages in use are counted, since the file keeps the pages of swept records for new ones.
 */
function roomKeeper(root: RootDatabase<Buffer, string>, trees: readonly Tree[], mapSize: number): () => void {
  let looked = Number.NEGATIVE_INFINITY;
  let full = false;
  const isFull = (): boolean => {
    const { lastPageNumber, pageSize } = fileStats(root);
    if (lastPageNumber * pageSize < mapSize * 0.9) return false;
    return pagesInUse(trees) * pageSize >= mapSize * 0.9;
  };
  return () => {
    if (performance.now() - looked > 20) {
      looked = performance.now();
      full = isFull();
    }
    if (full)
      throw new Fault('store_full', `the store has reached its limit of ${mapSize} bytes (store.mapSize)`, {
        retryAfter: 30,
      });
  };
}
