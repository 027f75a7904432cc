import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { Fault } from '../ports/fault.ts';

/**
 * Looks at a data file before LMDB maps it: a page that lies beyond the end of a mapped file ends the process
 * with SIGBUS, and a broken page may do worse. Every page that is reachable must be in the file, carry its own
 * number and be of the kind its parent expects. Leaf pages of a large file are only checked to exist, so that a
 * store with millions of records still opens at once; `thorough` reads them all.
 *
 * The layout is that of LMDB's data format 2, as lmdb 3.5.6 writes it.
 */
export function checkDataFile(file: string, thorough = false): void {
  // Written to by an orphan of a former owner while we look, pages move: look again when the file has moved on.
  for (let attempt = 1; ; attempt += 1) {
    const before = newestTxn(file);
    const problem = problemIn(file, thorough);
    if (problem === undefined) return;
    if (attempt < 3 && newestTxn(file) !== before) continue;
    throw corrupt(file, problem);
  }
}

export const corrupt = (file: string, problem: string, cause?: unknown): Fault =>
  new Fault(
    'store_corrupt',
    `the data file ${file} is damaged (${problem}). It was left as it is. Restore a backup into an empty folder (gatehouse restore) and start with that`,
    { cause },
  );

const PAGE_HEADER = 24;
const META = PAGE_HEADER;
const MAGIC = 0xbeefc0de;
const FORMAT = 2;
const ROOT_IN_DB = 40;
const DB_SIZE = 48;
const FREE_DB = META + 24;
const MAIN_DB = FREE_DB + DB_SIZE;
const NO_PAGE = 0xffff_ffff_ffff_ffffn;
const BRANCH = 0x01;
const LEAF = 0x02;
const OVERFLOW = 0x04;
const META_PAGE = 0x08;
const LEAF2 = 0x20;
const BIG_DATA = 0x01;
const SUB_DATA = 0x02;
/** Up to this size every page is read at each start. */
const SMALL_FILE = 64 * 2 ** 20;

interface Meta {
  readonly pageSize: number;
  readonly roots: readonly bigint[];
  readonly lastPage: bigint;
  readonly txn: bigint;
}

function readMeta(page: Buffer, number: number): Meta | string {
  if (page.length < 4096) return `its header page ${number} is cut off`;
  if ((page.readUInt16LE(18) & META_PAGE) === 0 || page.readUInt32LE(META) !== MAGIC)
    return `its header page ${number} is not one`;
  const format = page.readUInt32LE(META + 4) & 0xffff;
  if (format !== FORMAT) return `it has data format ${format}, and this version reads ${FORMAT}`;
  return {
    pageSize: page.readUInt32LE(FREE_DB),
    roots: [page.readBigUInt64LE(FREE_DB + ROOT_IN_DB), page.readBigUInt64LE(MAIN_DB + ROOT_IN_DB)],
    lastPage: page.readBigUInt64LE(MAIN_DB + DB_SIZE),
    txn: page.readBigUInt64LE(MAIN_DB + DB_SIZE + 8),
  };
}

function newestMeta(fd: number): Meta | string {
  const read = (at: number): Buffer => {
    const page = Buffer.alloc(4096);
    return page.subarray(0, readSync(fd, page, 0, page.length, at));
  };
  const first = readMeta(read(0), 0);
  if (typeof first === 'string') return first;
  if (first.pageSize < 4096 || first.pageSize > 65_536 || (first.pageSize & (first.pageSize - 1)) !== 0)
    return `it claims pages of ${first.pageSize} bytes`;
  const second = readMeta(read(first.pageSize), 1);
  if (typeof second === 'string') return second;
  return second.txn > first.txn ? second : first;
}

function withFile<T>(file: string, use: (fd: number) => T): T {
  const fd = openSync(file, 'r');
  try {
    return use(fd);
  } finally {
    closeSync(fd);
  }
}

const newestTxn = (file: string): bigint =>
  withFile(file, (fd) => {
    const meta = newestMeta(fd);
    return typeof meta === 'string' ? -1n : meta.txn;
  });

const problemIn = (file: string, thorough: boolean): string | undefined =>
  withFile(file, (fd) => {
    const meta = newestMeta(fd);
    if (typeof meta === 'string') return meta;
    const bytes = fstatSync(fd).size;
    // Pages that a transaction took and gave back need not have been written, so a short file is a suspicion only.
    const short = BigInt(bytes) < (meta.lastPage + 1n) * BigInt(meta.pageSize);
    const everyPage = thorough || short || bytes <= SMALL_FILE;
    return problemInTrees(fd, meta, Math.floor(bytes / meta.pageSize), everyPage);
  });

function problemInTrees(fd: number, meta: Meta, pagesInFile: number, everyPage: boolean): string | undefined {
  const { pageSize } = meta;
  const page = Buffer.alloc(pageSize);
  const seen = new Set<number>();
  // A page still to look at, and whether its parent says it is a leaf (0), a branch above leaves (1), and so on.
  const open: { readonly number: number; readonly height: number | undefined }[] = [];
  const enter = (root: bigint, height?: number): void => {
    if (root !== NO_PAGE) open.push({ number: Number(root), height });
  };
  for (const root of meta.roots) enter(root);

  for (let next = open.pop(); next !== undefined; next = open.pop()) {
    const { number } = next;
    if (number < 2 || BigInt(number) > meta.lastPage) return `it points to page ${number}, which cannot be`;
    if (number >= pagesInFile) return `it is cut off: page ${number} is missing`;
    if (seen.has(number)) return `page ${number} is used twice`;
    seen.add(number);
    if (!everyPage && next.height === 0) continue;
    if (readSync(fd, page, 0, pageSize, number * pageSize) !== pageSize) return `page ${number} is cut off`;
    if (Number(page.readBigUInt64LE(0)) !== number) return `page ${number} is not itself`;

    const kind = page.readUInt16LE(18);
    const entries = page.readUInt16LE(20) >> 1;
    if ((kind & (BRANCH | LEAF)) === 0 || (kind & (OVERFLOW | META_PAGE)) !== 0)
      return `page ${number} is of the wrong kind`;
    if ((kind & LEAF2) !== 0) continue;
    const isBranch = (kind & BRANCH) !== 0;
    const height: number | undefined = isBranch ? next.height : 0;
    if (entries * 2 + PAGE_HEADER > pageSize) return `page ${number} claims ${entries} entries`;

    for (let entry = 0; entry < entries; entry += 1) {
      const at = PAGE_HEADER + page.readUInt16LE(PAGE_HEADER + entry * 2);
      if (at + 8 > pageSize) return `page ${number} has an entry outside of itself`;
      const flags = page.readUInt16LE(at + 4);
      if (isBranch) {
        const child = page.readUInt32LE(at) + flags * 2 ** 32;
        open.push({ number: child, height: height === undefined ? undefined : height - 1 });
        continue;
      }
      const value = at + 8 + page.readUInt16LE(at + 6);
      if ((flags & SUB_DATA) !== 0) {
        if (value + DB_SIZE > pageSize) return `page ${number} has an entry outside of itself`;
        // The height of a tree says which of its pages are leaves, without reading them.
        const depth = page.readUInt16LE(value + 6);
        enter(page.readBigUInt64LE(value + ROOT_IN_DB), depth - 1);
      } else if ((flags & BIG_DATA) !== 0) {
        if (value + 8 > pageSize) return `page ${number} has an entry outside of itself`;
        const first = Number(page.readBigUInt64LE(value));
        const length = Math.ceil((page.readUInt32LE(at) + PAGE_HEADER) / pageSize);
        if (first < 2 || first + length > pagesInFile) return `it is cut off: page ${first} is missing`;
      } else if (value + page.readUInt32LE(at) > pageSize)
        return `page ${number} has an entry outside of itself`;
    }
  }
  return undefined;
}
