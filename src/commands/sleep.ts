import { setTimeout as wait } from 'node:timers/promises';
import { type Command, EXIT } from './command.ts';
import { parseSeconds } from './seconds.ts';

export const command: Command = {
  name: 'sleep',
  summary: 'waits N seconds, for preStop hooks in images without a shell',
  usage: ['gatehouse sleep N'],
  options: {},
  positionals: { min: 1, max: 1 },
  async run({ positionals: [text = ''] }) {
    await wait(parseSeconds('gatehouse sleep', text) * 1_000);
    return EXIT.ok;
  },
};
