import { UsageError } from './command.ts';

const MAX_SECONDS = 3_600;

/** The positional N of a command that waits. */
export function parseSeconds(label: string, text: string): number {
  const seconds = /^\d{1,4}(?:\.\d{1,3})?s?$/.test(text) ? Number.parseFloat(text) : Number.NaN;
  if (seconds <= MAX_SECONDS) return seconds;
  throw new UsageError(`${label}: N must be a number of seconds up to ${MAX_SECONDS}, not "${text.slice(0, 32)}"`);
}
