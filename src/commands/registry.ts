import type { Command } from './command.ts';

type CommandLoader = () => Promise<{ readonly command: Command }>;

/** Commands are loaded on demand. To add one, create a file that exports `command`, and add it here. */
export const COMMANDS: Readonly<Record<string, CommandLoader>> = {
  demo: () => import('./demo.ts'),
  serve: () => import('./serve.ts'),
  check: () => import('./check.ts'),
  explain: () => import('./explain.ts'),
  keys: () => import('./keys.ts'),
  'hash-password': () => import('./hash-password.ts'),
  'hash-secret': () => import('./hash-secret.ts'),
  grants: () => import('./grants.ts'),
  backup: () => import('./backup.ts'),
  restore: () => import('./restore.ts'),
  login: () => import('./login.ts'),
  token: () => import('./token.ts'),
  whoami: () => import('./whoami.ts'),
  logout: () => import('./logout.ts'),
  call: () => import('./call.ts'),
  health: () => import('./health.ts'),
  sleep: () => import('./sleep.ts'),
  schema: () => import('./schema.ts'),
  version: () => import('./version.ts'),
};
