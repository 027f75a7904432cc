import { readFileSync } from 'node:fs';

export interface Runtime {
  /** Of Node and its parts, as in `process.versions`. */
  readonly versions: Readonly<Record<string, string | undefined>>;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly execArgv: readonly string[];
  /** Of the undici package that is installed beside us. */
  readonly undici: string;
}

const LEAST = { node: '26.0.0', openssl: '3.0.0', undici: '7.24.0' } as const;

/** Runtime options that take away what a gateway promises, and what each would do. */
const REFUSED: readonly (readonly [RegExp, string])[] = [
  [/^--insecure-http-parser$/, 'accepts malformed requests (request smuggling)'],
  [/^--inspect/, 'opens a debugger through which every key and token can be read'],
  [/^--debug(?:-brk|-port)?$/, 'opens a debugger through which every key and token can be read'],
  [/^--tls-keylog$/, 'writes the keys of TLS sessions to a file'],
  [/^--trace-tls$/, 'writes the content of TLS messages to standard error'],
  [/^--tls-min-v1\.[01]$/, 'allows TLS versions that are broken'],
  [/^--security-revert$/, 'brings back a security fault'],
  [/^--openssl-legacy-provider$/, 'brings back broken algorithms'],
  [/^--heapsnapshot/, 'writes the memory, with keys and tokens, to a file'],
];

/** What is wrong with the process we are to serve in; empty when nothing is. Every line says what to change. */
export function selfCheck({ versions, env, execArgv, undici }: Runtime): readonly string[] {
  return [
    ...atLeast('Node', versions['node'], LEAST.node),
    ...atLeast('OpenSSL', versions['openssl'], LEAST.openssl),
    ...atLeast('undici', undici, LEAST.undici),
    ...atLeast('undici within Node', versions['undici'], LEAST.undici),
    ...(env['NODE_TLS_REJECT_UNAUTHORIZED'] === '0'
      ? ['NODE_TLS_REJECT_UNAUTHORIZED=0 switches off the check of certificates; unset it']
      : []),
    ...(/\b(?:http2?|https|tls|net|stream|fetch|undici)\b|\*/i.test(env['NODE_DEBUG'] ?? '')
      ? ['NODE_DEBUG writes requests with their tokens to standard error; unset it']
      : []),
    ...refused(words(env['NODE_OPTIONS'] ?? ''), 'in NODE_OPTIONS'),
    ...refused(execArgv, 'on the command line of node'),
  ];
}

function atLeast(name: string, found: string | undefined, least: string): string[] {
  if (found !== undefined && compare(found, least) >= 0) return [];
  return [`${name} must be ${least} or later, and is ${found ?? 'missing'}; update it`];
}

function compare(a: string, b: string): number {
  const [left, right] = [a, b].map((version) =>
    version.split(/[.+-]/).map((part) => Number.parseInt(part, 10) || 0),
  );
  for (let index = 0; index < 3; index += 1) {
    const difference = (left?.[index] ?? 0) - (right?.[index] ?? 0);
    if (difference !== 0) return difference;
  }
  return 0;
}

/** Node takes `_` for `-` in its options, and a value after `=`. */
function refused(options: readonly string[], where: string): string[] {
  return options.flatMap((option) => {
    const [name = ''] = option.replaceAll('_', '-').split('=');
    const found = REFUSED.find(([shape]) => shape.test(name));
    return found ? [`${name} ${where} ${found[1]}; take it out`] : [];
  });
}

const words = (text: string): string[] =>
  text
    .split(/\s+/)
    .map((word) => word.replace(/^["']|["']$/g, ''))
    .filter(Boolean);

/** The runtime we are in. */
export const thisRuntime = (env: Runtime['env'], execArgv: readonly string[]): Runtime => ({
  versions: process.versions,
  env,
  execArgv,
  undici: installedUndici(),
});

function installedUndici(): string {
  const text = readFileSync(new URL('./package.json', packageRoot('undici')), 'utf8');
  return (JSON.parse(text) as { readonly version: string }).version;
}

const packageRoot = (name: string): URL => {
  const entry = import.meta.resolve(name);
  const marker = `/node_modules/${name}/`;
  return new URL(entry.slice(0, entry.lastIndexOf(marker) + marker.length));
};
