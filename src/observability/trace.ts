import { flat } from './flat-text.ts';
import { oneByOne, randomText } from './random-text.ts';

/** W3C Trace Context §3.2: version, trace, parent and flags, none of all zeros. */
const TRACEPARENT = /^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;

export const isTraceparent = (text: string): boolean => TRACEPARENT.test(text);
export const traceIdOf = (traceparent: string): string => traceparent.slice(3, 35);
export const spanIdOf = (traceparent: string): string => traceparent.slice(36, 52);
export const isSampled = (traceparent: string): boolean =>
  (Number.parseInt(traceparent.slice(53, 55), 16) & 1) === 1;

export const newTraceId = (): string => randomText(16, 'hex');
export const newSpanId = (): string => randomText(8, 'hex');

const SPELLED = 16;

/** A trace that begins here, and that nobody has asked to record. */
export const newTraceparent = oneByOne(55, () => {
  const hex = randomText(24 * SPELLED, 'hex');
  let made = '';
  for (let at = 0; at < hex.length; at += 48)
    made += `00-${hex.slice(at, at + 32)}-${hex.slice(at + 32, at + 48)}-00`;
  return flat(made);
});

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
