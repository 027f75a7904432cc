import type { Epoch } from '../domain/epoch.ts';

/** Does a record authorise nothing any more? Only grants are kept beyond their end, so that a late client gets a better error. */
export const isOver = (record: unknown, now: Epoch): boolean =>
  typeof record === 'object' &&
  record !== null &&
  'refreshUntil' in record &&
  typeof record.refreshUntil === 'number' &&
  record.refreshUntil <= now;
