import { setTimeout as wait } from 'node:timers/promises';
import { type Command, EXIT, UsageError } from './command.ts';

const LONGEST = 3_600;

export const command: Command = {
  name: 'sleep',
  summary: 'waits N seconds: a preStop hook for images without a shell',
  usage: ['gatehouse sleep N'],
  options: {},
  words: { least: 1, most: 1 },
  async run({ words: [text = ''] }) {
    const seconds = /^\d{1,4}(?:\.\d{1,3})?s?$/.test(text) ? Number.parseFloat(text) : Number.NaN;
    if (!(seconds <= LONGEST))
      throw new UsageError(
        `gatehouse sleep: N is a number of seconds up to ${LONGEST}, not "${text.slice(0, 32)}"`,
      );
    await wait(seconds * 1_000);
    return EXIT.ok;
  },
};
