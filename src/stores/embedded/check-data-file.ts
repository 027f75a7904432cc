import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { Fault } from '../../ports/fault.ts';
import type { ReportProgress } from '../../ports/progress.ts';

/**
 * Checks a data file before LMDB maps it: accessing a page beyond the end of a mapped file kills the process with SIGBUS, and
 * a damaged page may do worse. Every reachable page must be in the file, contain its own number and have the expected type.
 * Leaf pages of a large file are only checked to exist, so that a large store opens quickly; `thorough` reads them all.
 *
 * The layout is LMDB's data format 2, as written by lmdb 3.5.6.
 */
export function checkDataFile(file: string, thorough = false, report?: ReportProgress): void {
  const fd = openSync(file, 'r');
  try {
    // An orphaned worker of a former owner may still write: check again if the file has changed meanwhile.
    for (let attempt = 1; ; attempt += 1) {
      const meta = readNewestMeta(fd);
      const problem = typeof meta === 'string' ? meta : findProblem(fd, meta, thorough, report);
      if (problem === undefined) return;
      if (attempt === 3 || getTxn(readNewestMeta(fd)) === getTxn(meta)) throw corruptFault(file, problem);
    }
  } finally {
    closeSync(fd);
  }
}

export const corruptFault = (file: string, problem: string, cause?: unknown): Fault =>
  new Fault(
    'store_corrupt',
    `the data file ${file} is damaged (${problem}). It was not changed. Restore a backup into an empty folder (gatehouse restore) and set store.path to it`,
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
/** Up to this size, every page is read. */
const SMALL_FILE = 64 * 2 ** 20;

interface Meta {
  readonly pageSize: number;
  readonly roots: readonly bigint[];
  readonly lastPage: bigint;
  readonly txn: bigint;
}

function readMeta(page: Buffer, number: number): Meta | string {
  if (page.length < 4096) return `header page ${number} is truncated`;
  if ((page.readUInt16LE(18) & META_PAGE) === 0 || page.readUInt32LE(META) !== MAGIC)
    return `page ${number} is not a header page`;
  const format = page.readUInt32LE(META + 4) & 0xffff;
  if (format !== FORMAT) return `it has data format ${format}; this version reads format ${FORMAT}`;
  return {
    pageSize: page.readUInt32LE(FREE_DB),
    roots: [page.readBigUInt64LE(FREE_DB + ROOT_IN_DB), page.readBigUInt64LE(MAIN_DB + ROOT_IN_DB)],
    lastPage: page.readBigUInt64LE(MAIN_DB + DB_SIZE),
    txn: page.readBigUInt64LE(MAIN_DB + DB_SIZE + 8),
  };
}

function readNewestMeta(fd: number): Meta | string {
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

const getTxn = (meta: Meta | string): bigint => (typeof meta === 'string' ? -1n : meta.txn);

const PAGES_PER_REPORT = 1_024;

/** A page to be checked. Leaves have height 0, the branches above them 1; undefined: unknown. */
interface PageRef {
  readonly number: number;
  readonly height: number | undefined;
}

const toRoot = (root: bigint, height?: number): readonly PageRef[] =>
  root === NO_PAGE ? [] : [{ number: Number(root), height }];

function findProblem(
  fd: number,
  { pageSize, roots, lastPage }: Meta,
  thorough: boolean,
  report: ReportProgress | undefined,
): string | undefined {
  const total = fstatSync(fd).size;
  const pagesInFile = Math.floor(total / pageSize);
  // Pages that were allocated and freed by a transaction need not be written, so a short file may be intact.
  const isShort = BigInt(total) < (lastPage + 1n) * BigInt(pageSize);
  const readAllPages = thorough || isShort || total <= SMALL_FILE;
  const page = Buffer.alloc(pageSize);
  const seen = new Set<number>();
  const pending = roots.flatMap((root) => toRoot(root));
  for (let next = pending.pop(); next !== undefined; next = pending.pop()) {
    const { number, height } = next;
    if (number < 2 || BigInt(number) > lastPage) return `it refers to page ${number}, which cannot exist`;
    if (number >= pagesInFile) return `it is truncated: page ${number} is missing`;
    if (seen.has(number)) return `page ${number} is used twice`;
    seen.add(number);
    if (seen.size % PAGES_PER_REPORT === 0)
      report?.({ step: 'checking the pages', unit: 'bytes', done: seen.size * pageSize, total });
    if (!readAllPages && height === 0) continue;
    if (readSync(fd, page, 0, pageSize, number * pageSize) !== pageSize) return `page ${number} is truncated`;
    const result = checkPage(page, next, pagesInFile);
    if (typeof result === 'string') return result;
    pending.push(...result);
  }
  return undefined;
}

/** The pages that a page refers to, or a problem. */
function checkPage(page: Buffer, { number, height }: PageRef, pagesInFile: number): PageRef[] | string {
  if (Number(page.readBigUInt64LE(0)) !== number) return `page ${number} has a wrong number`;
  const type = page.readUInt16LE(18);
  const entries = page.readUInt16LE(20) >> 1;
  if ((type & (BRANCH | LEAF)) === 0 || (type & (OVERFLOW | META_PAGE)) !== 0) return `page ${number} has a wrong type`;
  if ((type & LEAF2) !== 0) return [];
  if (entries * 2 + PAGE_HEADER > page.length) return `page ${number} claims ${entries} entries`;

  const outside = `page ${number} has an entry outside of itself`;
  const children: PageRef[] = [];
  for (let entry = 0; entry < entries; entry += 1) {
    const offset = PAGE_HEADER + page.readUInt16LE(PAGE_HEADER + entry * 2);
    if (offset + 8 > page.length) return outside;
    const flags = page.readUInt16LE(offset + 4);
    if ((type & BRANCH) !== 0) {
      const child = page.readUInt32LE(offset) + flags * 2 ** 32;
      children.push({ number: child, height: height === undefined ? undefined : height - 1 });
      continue;
    }
    const value = offset + 8 + page.readUInt16LE(offset + 6);
    const dataBytes = page.readUInt32LE(offset);
    const isSubtree = (flags & SUB_DATA) !== 0;
    const isOverflow = !isSubtree && (flags & BIG_DATA) !== 0;
    if (value + (isSubtree ? DB_SIZE : isOverflow ? 8 : dataBytes) > page.length) return outside;
    if (isSubtree) {
      const depth = page.readUInt16LE(value + 6);
      children.push(...toRoot(page.readBigUInt64LE(value + ROOT_IN_DB), depth - 1));
    } else if (isOverflow) {
      const first = Number(page.readBigUInt64LE(value));
      const pages = Math.ceil((dataBytes + PAGE_HEADER) / page.length);
      if (first < 2 || first + pages > pagesInFile) return `it is truncated: page ${first} is missing`;
    }
  }
  return children;
}
