import undiciPackage from 'undici/package.json' with { type: 'json' };
import { compareVersions } from '../lib/compare-versions.ts';

export interface Runtime {
  /** `process.versions`. */
  readonly versions: Readonly<Record<string, string | undefined>>;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly execArgv: readonly string[];
  /** Version of the installed undici package. */
  readonly undici: string;
}

const MIN_VERSIONS = { node: '26.0.0', openssl: '3.0.0', undici: '7.24.0' } as const;

/** Node options that break security guarantees, with their effect. */
const FORBIDDEN_OPTIONS: readonly (readonly [RegExp, string])[] = [
  [/^--insecure-http-parser$/, 'accepts malformed requests (request smuggling)'],
  [/^--inspect/, 'opens a debugger that exposes all keys and tokens'],
  [/^--debug(?:-brk|-port)?$/, 'opens a debugger that exposes all keys and tokens'],
  [/^--tls-keylog$/, 'writes TLS session keys to a file'],
  [/^--trace-tls$/, 'writes the content of TLS messages to standard error'],
  [/^--tls-min-v1\.[01]$/, 'allows insecure TLS versions'],
  [/^--security-revert$/, 'reverts a security fix'],
  [/^--openssl-legacy-provider$/, 'enables insecure algorithms'],
  [/^--heapsnapshot/, 'writes the heap, including keys and tokens, to a file'],
];

/** Problems of the runtime, each with its remedy. */
export function selfCheck({ versions, env, execArgv, undici }: Runtime): readonly string[] {
  return [
    ...checkVersion('Node', versions['node'], MIN_VERSIONS.node),
    ...checkVersion('OpenSSL', versions['openssl'], MIN_VERSIONS.openssl),
    ...checkVersion('undici', undici, MIN_VERSIONS.undici),
    ...checkVersion('undici within Node', versions['undici'], MIN_VERSIONS.undici),
    ...(env['NODE_TLS_REJECT_UNAUTHORIZED'] === '0'
      ? ['NODE_TLS_REJECT_UNAUTHORIZED=0 disables certificate verification; unset it']
      : []),
    ...(/\b(?:http2?|https|tls|net|stream|fetch|undici)\b|\*/i.test(env['NODE_DEBUG'] ?? '')
      ? ['NODE_DEBUG writes requests, including tokens, to standard error; unset it']
      : []),
    ...findForbiddenOptions(splitOptions(env['NODE_OPTIONS'] ?? ''), 'in NODE_OPTIONS'),
    ...findForbiddenOptions(execArgv, 'on the command line of node'),
  ];
}

function checkVersion(name: string, found: string | undefined, minimum: string): string[] {
  if (found !== undefined && compareVersions(found, minimum) >= 0) return [];
  return [`${name} must be ${minimum} or later, but is ${found ?? 'missing'}; update it`];
}

/** Node accepts `_` for `-` in option names. */
function findForbiddenOptions(options: readonly string[], where: string): string[] {
  return options.flatMap((option) => {
    const [name = ''] = option.replaceAll('_', '-').split('=');
    const found = FORBIDDEN_OPTIONS.find(([pattern]) => pattern.test(name));
    return found ? [`${name} ${where} ${found[1]}; remove it`] : [];
  });
}

const splitOptions = (text: string): string[] =>
  text
    .split(/\s+/)
    .map((word) => word.replace(/^["']|["']$/g, ''))
    .filter(Boolean);

export const getRuntime = (env: Runtime['env'], execArgv: readonly string[]): Runtime => ({
  versions: process.versions,
  env,
  execArgv,
  undici: undiciPackage.version,
});
