import { setTimeout as wait } from 'node:timers/promises';
import { type Command, EXIT, UsageError } from './command.ts';

const MAX_SECONDS = 3_600;

export const command: Command = {
  name: 'sleep',
  summary: 'waits N seconds: a preStop hook for images without a shell',
  usage: ['gatehouse sleep N'],
  options: {},
  positionals: { min: 1, max: 1 },
  async run({ positionals: [text = ''] }) {
    const seconds = /^\d{1,4}(?:\.\d{1,3})?s?$/.test(text) ? Number.parseFloat(text) : Number.NaN;
    if (!(seconds <= MAX_SECONDS))
      throw new UsageError(
        `gatehouse sleep: N must be a number of seconds up to ${MAX_SECONDS}, not "${text.slice(0, 32)}"`,
      );
    await wait(seconds * 1_000);
    return EXIT.ok;
  },
};
