import { longestGrant } from '../config/lifetimes.ts';
import { Fault } from '../ports/fault.ts';
import {
  describeKeyring,
  type KeyDescription,
  newKeyring,
  readKeyringFile,
  rotateKeyring,
  type SigningAlgorithm,
  writeKeyringFile,
} from '../tokens/keyring-file.ts';
import { printColumns } from './columns.ts';
import {
  CONFIG_OPTIONS,
  type Command,
  CommandError,
  type Context,
  EXIT,
  UsageError,
  writeJson,
} from './command.ts';
import { settingsFor } from './settings.ts';

const ACTIONS: Readonly<
  Record<string, (context: Context, file: string, now: number) => number | Promise<number>>
> = {
  new(context, file, now) {
    writeKeyringFile(file, newKeyring(algorithmOf(context)), { replace: false });
    return tell(context, file, now);
  },
  async rotate(context, file, now) {
    const keep = await keepFor(context);
    if (keep === 'no settings') return EXIT.configuration;
    const rotated = rotateKeyring(readKeyringFile(file), {
      alg: algorithmOf(context),
      now,
      publishBefore: seconds(context, 'publish-before', '5m'),
      ...(keep !== undefined && { keep }),
    });
    writeKeyringFile(file, rotated, { replace: true });
    return tell(context, file, now);
  },
  list: (context, file, now) => tell(context, file, now),
};

export const command: Command = {
  name: 'keys',
  summary: 'makes, rotates and lists signing and sealing keys',
  usage: ['gatehouse keys new|rotate|list FILE', 'gatehouse keys rotate FILE --config CONFIGURATION'],
  options: {
    algorithm: { type: 'string', value: 'EdDSA|ES256', help: 'of the new signing key (default EdDSA)' },
    'publish-before': {
      type: 'string',
      value: 'DURATION',
      help: 'rotate: how long until the new keys are used, so that every replica knows them (default 5m)',
    },
    keep: {
      type: 'string',
      value: 'DURATION',
      help: 'rotate: how long the old keys go on checking (default: the longest grant of --config; without it, for good)',
    },
    config: {
      ...CONFIG_OPTIONS.config,
      value: 'CONFIGURATION',
      help: 'rotate: the configuration whose longest grant decides about --keep',
    },
  },
  words: { least: 2, most: 2 },
  notes: [
    'The keys themselves are never printed. The file has mode 0600; a running gatehouse reads it again when it changes.',
  ],
  async run(context) {
    const [action = '', file = ''] = context.words;
    const act = Object.hasOwn(ACTIONS, action) ? ACTIONS[action] : undefined;
    if (act === undefined)
      throw new UsageError(`gatehouse keys: says new, rotate or list, not "${action.slice(0, 32)}"`);
    const { resolve } = await import('node:path');
    try {
      return await act(context, resolve(context.cwd, file), Date.now() / 1_000);
    } catch (error) {
      if (error instanceof Fault) throw new CommandError(error.message, EXIT.configuration);
      throw fileProblem(error, file);
    }
  },
};

/** A key that retires before its last grant would make that grant's client wrong: the longest lifetime decides. */
async function keepFor(context: Context): Promise<number | undefined | 'no settings'> {
  if (context.option('keep') !== undefined) return seconds(context, 'keep', '');
  if (context.option('config') === undefined) return undefined;
  const loaded = await settingsFor(context);
  return typeof loaded === 'number' ? 'no settings' : longestGrant(loaded.settings);
}

function fileProblem(error: unknown, file: string): unknown {
  const { code } = error as { readonly code?: unknown };
  if (typeof code !== 'string' || !/^E[A-Z]+$/.test(code)) return error;
  return new CommandError(`${file}: cannot be read or written (${code})`, EXIT.configuration);
}

function algorithmOf(context: Context): SigningAlgorithm {
  const asked = context.option('algorithm') ?? 'EdDSA';
  if (asked === 'EdDSA' || asked === 'ES256') return asked;
  throw new UsageError(`gatehouse keys: --algorithm is EdDSA or ES256, not "${asked}"`);
}

const SECONDS = { s: 1, m: 60, h: 3_600, d: 86_400 } as const;

function seconds(context: Context, option: string, fallback: string): number {
  const text = context.option(option) ?? fallback;
  const [, count, unit] = /^(\d{1,9})([smhd])$/.exec(text) ?? [];
  if (count === undefined)
    throw new UsageError(`gatehouse keys: --${option} is a duration such as 5m or 90d, not "${text}"`);
  return Number(count) * SECONDS[unit as keyof typeof SECONDS];
}

function tell(context: Context, file: string, now: number): number {
  const keys = describeKeyring(readKeyringFile(file), now);
  if (context.json) {
    writeJson(context, { file, keys });
    return EXIT.ok;
  }
  const rows = [['key', 'use', 'algorithm', 'state', 'used from', 'retires'], ...keys.map(rowOf)];
  printColumns(context, rows);
  return EXIT.ok;
}

const rowOf = ({ kid, use, algorithm, state, activeFrom, retireAt }: KeyDescription): string[] => [
  kid,
  use,
  algorithm,
  state,
  time(activeFrom),
  retireAt === undefined ? '-' : time(retireAt),
];

const time = (epoch: number): string =>
  epoch === 0 ? 'always' : new Date(epoch * 1_000).toISOString().replace('.000Z', 'Z');
