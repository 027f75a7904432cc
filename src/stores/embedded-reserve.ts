import { closeSync, fstatSync, openSync, statfsSync, write } from 'node:fs';
import { promisify } from 'node:util';
import { Fault } from '../ports/fault.ts';
import type { StoreFiles } from './embedded-folder.ts';

/**
 * Space at the end of the data file that is ours already. LMDB must not meet a full disk itself: lmdb 3.5.6
 * writes its message about that past the end of a buffer and the process dies of a damaged heap. So the file is
 * kept longer than LMDB needs it, and a batch that might not fit is refused before LMDB hears of it.
 */
export interface Reserve {
  /** May a batch of so many writes go ahead? Makes the file longer when that is what it takes. */
  fits(batch: Batch): Promise<boolean>;
  close(): void;
}

export interface Batch {
  readonly writes: number;
  readonly bytes: number;
  /** The largest record in it. */
  readonly largest: number;
  /** What must be left over after it, as a part of the spare space: the more useful a write, the less. */
  readonly leave: number;
}

/** What the reserve asks about the file. */
export interface Pages {
  count(): { readonly lastPageNumber: number; readonly pageSize: number };
  /** Pages of removed records and former versions, that LMDB fills again before it takes new ones. */
  free(): number;
  /** Does a reader still look at an old state? Pages freed since then cannot be filled yet. */
  pinned(): boolean;
}

const SPARE_BYTES = 4 * 2 ** 20;
const GROW_AT_MOST = 32 * 2 ** 20;
const ZEROS = Buffer.alloc(2 ** 20);
/** Both trees a write touches, from root to leaf, and the pages they may split into. */
const PAGES_PER_WRITE = 12;
/** The list of free pages, the tree of tables. */
const PAGES_PER_BATCH = 32;
/** Larger records lie on pages of their own, in a row, which the free ones seldom are. */
const FITS_IN_A_PAGE = 1500;
/** Some of the free pages were freed too recently to be filled, and other workers fill them too. */
const FREE_MARGIN = 8;

const writeTo = promisify(write);

export function reserve(files: StoreFiles, pages: Pages): Reserve {
  // Appending can only ever add to the end, so zeros never land on a page that another worker has just written.
  const fd = openSync(files.data, 'a', 0o600);
  const disk = statfsSync(files.folder);
  const spare = Math.min(SPARE_BYTES, Math.floor((disk.blocks * disk.bsize) / 8));

  const grow = async (bytes: number): Promise<boolean> => {
    try {
      for (let left = bytes; left > 0; ) {
        const { bytesWritten } = await writeTo(fd, ZEROS, 0, Math.min(left, ZEROS.length), null);
        if (bytesWritten === 0) return false;
        left -= bytesWritten;
      }
      return true;
    } catch (error) {
      if (isFull(error)) return false;
      throw new Fault('store_unavailable', `cannot make ${files.data} longer`, { cause: error });
    }
  };

  // A batch rewrites at most every page there is, and never more than its writes reach.
  const pagesFor = ({ writes }: Batch, lastPage: number): number =>
    Math.min(writes * PAGES_PER_WRITE, lastPage + 1 + writes) + PAGES_PER_BATCH;

  const missingFor = (batch: Batch): number => {
    const { lastPageNumber, pageSize } = pages.count();
    const needed = pagesFor(batch, lastPageNumber) * pageSize + 2 * batch.bytes + batch.leave * spare;
    return Math.ceil(needed) - (fstatSync(fd).size - (lastPageNumber + 1) * pageSize);
  };

  const fitsIntoFreePages = (batch: Batch): boolean => {
    if (batch.largest > FITS_IN_A_PAGE || pages.pinned()) return false;
    const { lastPageNumber, pageSize } = pages.count();
    const needed = pagesFor(batch, lastPageNumber) + (2 * batch.bytes + batch.leave * spare) / pageSize;
    return pages.free() >= FREE_MARGIN * needed;
  };

  return {
    async fits(batch) {
      if (copiesOnWrite(disk.type) && !hasFreeSpace(files, batch)) return false;
      const missing = missingFor(batch);
      if (missing <= 0) return true;
      // In large steps while there is space, so that this happens seldom.
      const step = Math.min(GROW_AT_MOST, Math.floor(fstatSync(fd).size / 8));
      if (await grow(missing + step)) return true;
      return missingFor(batch) <= 0 || fitsIntoFreePages(batch);
    },
    close: () => closeSync(fd),
  };
}

const isFull = (error: unknown): boolean =>
  error instanceof Error && 'code' in error && ['ENOSPC', 'EDQUOT', 'EFBIG'].includes(String(error.code));

const BTRFS = 0x9123683e;
const ZFS = 0x2fc12fc1;
const BCACHEFS = 0xca451a4e;

/** Where a block that is written again takes a new place, space at the end of the file promises nothing. */
const copiesOnWrite = (type: number): boolean => [BTRFS, ZFS, BCACHEFS].includes(type);

function hasFreeSpace(files: StoreFiles, { writes, bytes }: Batch): boolean {
  const { bavail, bsize } = statfsSync(files.folder);
  return bavail * bsize > 16 * 2 ** 20 + writes * PAGES_PER_WRITE * 4096 + 2 * bytes;
}
