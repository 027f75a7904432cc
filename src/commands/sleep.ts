import { setTimeout as wait } from 'node:timers/promises';
import { type Command, UsageError } from './command.ts';

export const command: Command = {
  name: 'sleep',
  summary: 'waits N seconds, for preStop hooks in images without a shell',
  usage: ['gatehouse sleep N'],
  options: {},
  positionals: { min: 1, max: 1 },
  async run({ positionals: [text = ''] }) {
    await wait(parseSeconds('gatehouse sleep', text) * 1_000);
  },
};

const MAX_SECONDS = 3_600;

/** The positional N of a command that waits. */
export function parseSeconds(label: string, text: string): number {
  const seconds = /^\d{1,4}(?:\.\d{1,3})?s?$/.test(text) ? Number.parseFloat(text) : Number.NaN;
  if (seconds <= MAX_SECONDS) return seconds;
  throw new UsageError(`${label}: N must be a number of seconds up to ${MAX_SECONDS}, not "${text.slice(0, 32)}"`);
}
