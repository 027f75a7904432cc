import { flattenString } from '../lib/flat-string.ts';
import { createBatchedGenerator, randomString } from '../lib/random-string.ts';

/** W3C Trace Context §3.2: version, trace id, parent id and flags; ids must not be all zeros. */
const TRACEPARENT = /^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;

export const isTraceparent = (text: string): boolean => TRACEPARENT.test(text);
export const getTraceId = (traceparent: string): string => traceparent.slice(3, 35);
export const getSpanId = (traceparent: string): string => traceparent.slice(36, 52);
export const isSampled = (traceparent: string): boolean => (Number.parseInt(traceparent.slice(53, 55), 16) & 1) === 1;

export const newTraceId = (): string => randomString(16, 'hex');
export const newSpanId = (): string => randomString(8, 'hex');

const BATCH_SIZE = 16;

/** A new trace that is not sampled. */
export const newTraceparent = createBatchedGenerator(55, () => {
  const hex = randomString(24 * BATCH_SIZE, 'hex');
  let batch = '';
  for (let at = 0; at < hex.length; at += 48) batch += `00-${hex.slice(at, at + 32)}-${hex.slice(at + 32, at + 48)}-00`;
  return flattenString(batch);
});
