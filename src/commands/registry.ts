import type { Command } from './command.ts';

type CommandLoader = () => Promise<{ readonly command: Command }>;
type CommandLoaders = Readonly<Record<string, CommandLoader>>;

interface CommandGroup {
  readonly title: string;
  readonly commands: CommandLoaders;
}

/**
 * The order of the help. Commands are loaded on demand. To add one, create a file that exports `command`, and add it here; then
 * run `npm run docs`.
 */
export const COMMAND_GROUPS: readonly CommandGroup[] = [
  {
    title: 'run',
    commands: {
      demo: () => import('./demo.ts'),
      serve: () => import('./serve.ts'),
      health: () => import('./health.ts'),
      drain: () => import('./drain.ts'),
      sleep: () => import('./sleep.ts'),
    },
  },
  {
    title: 'configure',
    commands: {
      init: () => import('./init.ts'),
      'dev-ca': () => import('./dev-ca.ts'),
      check: () => import('./check.ts'),
      explain: () => import('./explain.ts'),
      schema: () => import('./schema.ts'),
      'hash-password': () => import('./hash-password.ts'),
      'hash-secret': () => import('./hash-secret.ts'),
    },
  },
  {
    title: 'operate',
    commands: {
      keys: () => import('./keys.ts'),
      grants: () => import('./grants.ts'),
      backup: () => import('./backup.ts'),
      restore: () => import('./restore.ts'),
    },
  },
  {
    title: 'sign in as a client',
    commands: {
      login: () => import('./login.ts'),
      token: () => import('./token.ts'),
      whoami: () => import('./whoami.ts'),
      logout: () => import('./logout.ts'),
      call: () => import('./call.ts'),
    },
  },
  {
    title: 'this program',
    commands: {
      completion: () => import('./completion.ts'),
      version: () => import('./version.ts'),
    },
  },
];

export const COMMANDS: CommandLoaders = Object.assign({}, ...COMMAND_GROUPS.map(({ commands }) => commands));

interface LoadedGroup {
  readonly title: string;
  readonly commands: readonly Command[];
}

export const loadGroups = (): Promise<readonly LoadedGroup[]> =>
  Promise.all(
    COMMAND_GROUPS.map(async ({ title, commands }) => ({
      title,
      commands: await Promise.all(Object.values(commands).map(async (load) => (await load()).command)),
    })),
  );
