import { randomFillSync } from 'node:crypto';
import { flat } from './flat-text.ts';

/** W3C Trace Context §3.2: version, trace, parent and flags, none of all zeros. */
const TRACEPARENT = /^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;

export const isTraceparent = (text: string): boolean => TRACEPARENT.test(text);
export const traceIdOf = (traceparent: string): string => traceparent.slice(3, 35);
export const spanIdOf = (traceparent: string): string => traceparent.slice(36, 52);
export const isSampled = (traceparent: string): boolean =>
  (Number.parseInt(traceparent.slice(53, 55), 16) & 1) === 1;

export const newTraceId = (): string => randomHex(16);
export const newSpanId = (): string => randomHex(8);
/** Few: one that somebody keeps keeps those that were spelled with it. */
const SPELLED = 16;
const TRACEPARENT_LENGTH = 55;
let spelled = '';
let spelledAt = 0;

/** A trace that begins here, and that nobody has asked to record. Spelled for several requests at once, and cut off one by one. */
export function newTraceparent(): string {
  if (spelledAt === spelled.length) {
    const hex = randomHex(24 * SPELLED);
    let made = '';
    for (let at = 0; at < hex.length; at += 48)
      made += `00-${hex.slice(at, at + 32)}-${hex.slice(at + 32, at + 48)}-00`;
    spelled = flat(made);
    spelledAt = 0;
  }
  spelledAt += TRACEPARENT_LENGTH;
  return spelled.slice(spelledAt - TRACEPARENT_LENGTH, spelledAt);
}

const pool = Buffer.alloc(4_096);
let poolAt = pool.length;

/** Random bytes are cheaper by the page. */
function randomHex(bytes: number): string {
  if (poolAt + bytes > pool.length) {
    randomFillSync(pool);
    poolAt = 0;
  }
  poolAt += bytes;
  return pool.toString('hex', poolAt - bytes, poolAt);
}

/** The only value of a header; undefined when there is none, or more than one. */
export function headerValue(rawHeaders: readonly string[], name: string): string | undefined {
  let found: string | undefined;
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const candidate = rawHeaders[at] ?? '';
    if (candidate.length !== name.length || candidate.toLowerCase() !== name) continue;
    if (found !== undefined) return undefined;
    found = rawHeaders[at + 1];
  }
  return found;
}
