import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { getLongestGrantLifetime } from '../config/lifetimes.ts';
import type { Settings } from '../config/schema.ts';
import { duration } from '../config/units.ts';
import { Fault } from '../ports/fault.ts';
import {
  createKeyringFile,
  describeKeyring,
  type KeyDescription,
  readKeyringFile,
  rotateKeyring,
  type SigningAlgorithm,
  writeKeyringFile,
} from '../tokens/keyring-file.ts';
import {
  CONFIG_OPTIONS,
  type Command,
  type CommandContext,
  CommandError,
  EXIT,
  UsageError,
  writeJson,
} from './command.ts';
import { loadCommandSettings } from './settings.ts';
import { printColumns } from './style.ts';

type Action = (context: CommandContext, file: string, now: number) => number;

const ACTIONS = {
  new(context, file, now) {
    const algorithm = readAlgorithm(context, loadOptionalSettings(context));
    writeKeyringFile(file, createKeyringFile(algorithm), { replace: false });
    return printKeys(context, file, now);
  },
  rotate(context, file, now) {
    const settings = loadOptionalSettings(context);
    const keep = readDuration(context, 'keep') ?? getRetention(settings);
    const rotated = rotateKeyring(readKeyringFile(file), {
      alg: readAlgorithm(context, settings),
      now,
      publishBefore: readDuration(context, 'publish-before') ?? DEFAULT_PUBLISH_BEFORE,
      ...(keep !== undefined && { keep }),
    });
    writeKeyringFile(file, rotated, { replace: true });
    return printKeys(context, file, now);
  },
  list: (context, file, now) => printKeys(context, file, now),
} satisfies Readonly<Record<string, Action>>;

export const command: Command = {
  name: 'keys',
  summary: 'creates, rotates and lists signing and sealing keys',
  usage: ['gatehouse keys new|rotate|list FILE', 'gatehouse keys rotate FILE --config CONFIGURATION'],
  options: {
    algorithm: {
      value: 'EdDSA|ES256',
      help: 'algorithm of the new signing key (default: keys.algorithm in --config; without --config, EdDSA)',
    },
    'publish-before': {
      value: 'DURATION',
      help: 'rotate: time until the new keys are used, so that every replica has loaded them (default: 5m)',
    },
    keep: {
      value: 'DURATION',
      help: 'rotate: how long the old keys stay valid for verification (default: the longest grant lifetime in --config; without --config, forever)',
    },
    config: {
      ...CONFIG_OPTIONS.config,
      value: 'CONFIGURATION',
      help: 'the configuration file that sets the defaults of the other options',
    },
  },
  positionals: { min: 2, max: 2, complete: ['file'] },
  subcommands: {
    new: {
      summary: 'creates a key file; never replaces one',
      usage: ['gatehouse keys new FILE [--algorithm EdDSA|ES256] [--config CONFIGURATION]'],
      options: ['algorithm', 'config'],
    },
    rotate: {
      summary: 'adds new keys to a key file, and retires the old ones',
      usage: [
        'gatehouse keys rotate FILE --config CONFIGURATION',
        'gatehouse keys rotate FILE [--publish-before DURATION] [--keep DURATION]',
      ],
      options: ['algorithm', 'publish-before', 'keep', 'config'],
    },
    list: {
      summary: 'lists the keys of a key file, and when each is used',
      usage: ['gatehouse keys list FILE'],
      options: [],
    },
  },
  notes: ['Secret keys are never printed. The file has mode 0600; a running gatehouse reloads it when it changes.'],
  async run(context) {
    const [action = '', file = ''] = context.positionals;
    const path = resolve(context.cwd, file);
    try {
      // One of `subcommands`: others are usage errors.
      return ACTIONS[action as keyof typeof ACTIONS](context, path, Date.now() / 1_000);
    } catch (error) {
      if (error instanceof Fault) throw new CommandError(error.message, getExitCode(action, path));
      throw toFileError(error, file);
    }
  },
};

/** The key file exists already, is missing, or is damaged. */
const getExitCode = (action: string, path: string): number =>
  action === 'new' ? EXIT.cannotCreate : existsSync(path) ? EXIT.data : EXIT.noInput;

/** A key must not retire before the grants made with it expire. */
const getRetention = (settings: Settings | undefined): number | undefined =>
  settings && getLongestGrantLifetime(settings);

function toFileError(error: unknown, file: string): unknown {
  const { code } = error as { readonly code?: unknown };
  if (typeof code !== 'string' || !/^E[A-Z]+$/.test(code)) return error;
  return new CommandError(`${file}: cannot be read or written (${code})`, EXIT.cannotCreate);
}

/** Without --config, no configuration is read. */
const loadOptionalSettings = (context: CommandContext): Settings | undefined =>
  context.option('config') === undefined ? undefined : loadCommandSettings(context).settings;

function readAlgorithm(context: CommandContext, settings: Settings | undefined): SigningAlgorithm {
  const algorithm = context.option('algorithm') ?? settings?.keys.algorithm ?? 'EdDSA';
  if (algorithm === 'EdDSA' || algorithm === 'ES256') return algorithm;
  throw new UsageError(`gatehouse keys: --algorithm must be EdDSA or ES256, not "${algorithm}"`);
}

/** Seconds. */
const DEFAULT_PUBLISH_BEFORE = 300;

function readDuration(context: CommandContext, option: string): number | undefined {
  const text = context.option(option);
  if (text === undefined) return undefined;
  const { data } = duration.safeParse(text);
  if (data !== undefined) return data;
  throw new UsageError(`gatehouse keys: --${option} must be a duration such as 5m or 90d, not "${text}"`);
}

function printKeys(context: CommandContext, file: string, now: number): number {
  const keys = describeKeyring(readKeyringFile(file), now);
  const header = ['key', 'use', 'algorithm', 'state', 'used from', 'retires'];
  if (context.json) writeJson(context, { file, keys });
  else printColumns(context, [header, ...keys.map(createRow)]);
  return EXIT.ok;
}

const createRow = ({ kid, use, algorithm, state, activeFrom, retireAt }: KeyDescription): string[] => [
  kid,
  use,
  algorithm,
  state,
  formatTime(activeFrom),
  retireAt === undefined ? '-' : formatTime(retireAt),
];

const formatTime = (epoch: number): string =>
  epoch === 0 ? 'always' : new Date(epoch * 1_000).toISOString().replace('.000Z', 'Z');
