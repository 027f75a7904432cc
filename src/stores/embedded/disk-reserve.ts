import { closeSync, fstatSync, openSync, statfsSync, write } from 'node:fs';
import { promisify } from 'node:util';
import { Fault } from '../../ports/fault.ts';
import type { StoreFiles } from './folder.ts';

export interface Batch {
  readonly writes: number;
  readonly bytes: number;
  /** The largest record in it. */
  readonly largest: number;
  /** How much of the spare space must remain: less for more important writes. */
  readonly reserveShare: number;
}

export interface PageStats {
  read(): { readonly lastPageNumber: number; readonly pageSize: number };
  /** Pages of removed records and old versions, which LMDB reuses before it allocates new ones. */
  countFree(): number;
  /** Pages freed since the snapshot of a reader cannot be reused yet. */
  hasStaleReaders(): boolean;
}

const SPARE_BYTES = 4 * 2 ** 20;
const MAX_GROW_BYTES = 32 * 2 ** 20;
const ZEROS = Buffer.alloc(2 ** 20);
/** The two trees that a write changes, from root to leaf, including page splits. */
const PAGES_PER_WRITE = 12;
/** The free list and the tree of tables. */
const PAGES_PER_BATCH = 32;
/** Larger records need contiguous pages, which free pages seldom are. */
const MAX_INLINE_BYTES = 1500;
/** Some free pages were freed too recently to be reused, and other workers use them too. */
const FREE_MARGIN = 8;

const writeFd = promisify(write);

/**
 * Allocated space at the end of the data file. LMDB must not encounter a full disk itself: lmdb 3.5.6 writes the error
 * message past the end of a buffer and corrupts the heap. So the file is kept longer than needed, and a batch that might
 * not fit is rejected before it reaches LMDB.
 */
export function openDiskReserve(files: StoreFiles, pages: PageStats) {
  // In append mode, zeros never overwrite a page that another worker has just written.
  const fd = openSync(files.data, 'a', 0o600);
  const disk = statfsSync(files.folder);
  const spareBytes = Math.min(SPARE_BYTES, Math.floor((disk.blocks * disk.bsize) / 8));

  const grow = async (bytes: number): Promise<boolean> => {
    try {
      for (let remaining = bytes; remaining > 0; ) {
        const { bytesWritten } = await writeFd(fd, ZEROS, 0, Math.min(remaining, ZEROS.length), null);
        if (bytesWritten === 0) return false;
        remaining -= bytesWritten;
      }
      return true;
    } catch (error) {
      if (isDiskFullError(error)) return false;
      throw new Fault('store_unavailable', `cannot extend ${files.data}`, { cause: error });
    }
  };

  // At most every existing page, and at most the pages that its writes reach.
  const estimatePages = ({ writes }: Batch, lastPage: number): number =>
    Math.min(writes * PAGES_PER_WRITE, lastPage + 1 + writes) + PAGES_PER_BATCH;

  const estimateBytes = (batch: Batch): number => {
    const { lastPageNumber, pageSize } = pages.read();
    return estimatePages(batch, lastPageNumber) * pageSize + 2 * batch.bytes + batch.reserveShare * spareBytes;
  };

  const computeMissingBytes = (batch: Batch): number => {
    const { lastPageNumber, pageSize } = pages.read();
    return Math.ceil(estimateBytes(batch)) - (fstatSync(fd).size - (lastPageNumber + 1) * pageSize);
  };

  const fitsInFreePages = (batch: Batch): boolean =>
    batch.largest <= MAX_INLINE_BYTES &&
    !pages.hasStaleReaders() &&
    pages.countFree() * pages.read().pageSize >= FREE_MARGIN * estimateBytes(batch);

  return {
    /** Whether there is space for a batch; extends the file if necessary. */
    async ensureSpace(batch: Batch): Promise<boolean> {
      if (isCopyOnWrite(disk.type) && !hasFreeSpace(files, batch)) return false;
      const missingBytes = computeMissingBytes(batch);
      if (missingBytes <= 0) return true;
      // In large steps while there is space.
      const step = Math.min(MAX_GROW_BYTES, Math.floor(fstatSync(fd).size / 8));
      if (await grow(missingBytes + step)) return true;
      return computeMissingBytes(batch) <= 0 || fitsInFreePages(batch);
    },
    close: (): void => closeSync(fd),
  };
}

const isDiskFullError = (error: unknown): boolean =>
  error instanceof Error && 'code' in error && ['ENOSPC', 'EDQUOT', 'EFBIG'].includes(String(error.code));

const BTRFS = 0x9123683e;
const ZFS = 0x2fc12fc1;
const BCACHEFS = 0xca451a4e;

/** On copy-on-write file systems, rewriting an allocated block needs space too. */
const isCopyOnWrite = (type: number): boolean => [BTRFS, ZFS, BCACHEFS].includes(type);

function hasFreeSpace(files: StoreFiles, { writes, bytes }: Batch): boolean {
  const { bavail, bsize } = statfsSync(files.folder);
  return bavail * bsize > 16 * 2 ** 20 + writes * PAGES_PER_WRITE * 4096 + 2 * bytes;
}
