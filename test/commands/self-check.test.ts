import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { getRuntime, type Runtime, selfCheck } from '../../src/commands/self-check.ts';
import { runGatehouse } from '../support/command-line.ts';
import { MINIMAL_CONFIG, testFolder } from '../support/configuration.ts';

const good: Runtime = {
  versions: { node: '26.0.0', openssl: '3.5.0', undici: '8.10.2' },
  env: {},
  execArgv: [],
  undici: '8.12.4',
};

describe('O15 the start-up self-check', () => {
  test('O15 a supported runtime produces no messages, and this runtime is supported', () => {
    expect(selfCheck(good)).toEqual([]);
    expect(selfCheck(getRuntime({}, []))).toEqual([]);
  });

  test.each<[string, Partial<Runtime>, RegExp]>([
    [
      'an old Node',
      { versions: { ...good.versions, node: '25.9.9' } },
      /^Node must be 26\.0\.0 or later, but is 25\.9\.9/,
    ],
    ['an old OpenSSL', { versions: { ...good.versions, openssl: '1.1.1w' } }, /^OpenSSL must be 3\.0\.0 or later/],
    ['an old undici', { undici: '7.23.9' }, /^undici must be 7\.24\.0 or later, but is 7\.23\.9/],
    ['certificates unchecked', { env: { NODE_TLS_REJECT_UNAUTHORIZED: '0' } }, /^NODE_TLS_REJECT_UNAUTHORIZED=0 /],
    ['a lenient parser', { execArgv: ['--insecure-http-parser'] }, /^--insecure-http-parser on the command line/],
    [
      'a lenient parser in NODE_OPTIONS',
      { env: { NODE_OPTIONS: '--max-old-space-size=64 --insecure-http-parser' } },
      /in NODE_OPTIONS/,
    ],
    ['underscores', { execArgv: ['--insecure_http_parser'] }, /^--insecure-http-parser/],
    ['a debugger', { execArgv: ['--inspect=0.0.0.0:9229'] }, /^--inspect .*debugger/],
    ['a waiting debugger', { env: { NODE_OPTIONS: '"--inspect-brk"' } }, /^--inspect-brk in NODE_OPTIONS/],
    ['a key log', { execArgv: ['--tls-keylog=/tmp/k'] }, /^--tls-keylog/],
    ['old TLS', { execArgv: ['--tls-min-v1.0'] }, /^--tls-min-v1\.0/],
    ['a talkative http', { env: { NODE_DEBUG: 'fs,http' } }, /^NODE_DEBUG/],
  ])('O15 %s is rejected', (_name, change, words) => {
    const problems = selfCheck({ ...good, ...change });
    expect(problems).toHaveLength(1);
    expect(problems[0]).toMatch(words);
  });

  test('O15 harmless options are accepted', () => {
    expect(
      selfCheck({
        ...good,
        env: {
          NODE_OPTIONS: '--max-old-space-size=512 --tls-min-v1.3',
          NODE_TLS_REJECT_UNAUTHORIZED: '1',
          NODE_DEBUG: '',
        },
        execArgv: ['--enable-source-maps'],
      }),
    ).toEqual([]);
  });
});

describe('O15 as a process', () => {
  const file = (): string => {
    const path = join(testFolder(), 'gatehouse.yaml');
    writeFileSync(path, MINIMAL_CONFIG);
    return path;
  };

  test('O15 serve refuses to start, reports all reasons, and exits with 78', async () => {
    const { code, stderr } = await runGatehouse(['serve', '-c', file()], {
      env: { NODE_TLS_REJECT_UNAUTHORIZED: '0', NODE_OPTIONS: '--insecure-http-parser' },
    });
    expect(code).toBe(78);
    expect(stderr).toMatch(/NODE_TLS_REJECT_UNAUTHORIZED=0 /);
    expect(stderr).toMatch(/--insecure-http-parser in NODE_OPTIONS/);
  });

  test('O15 serve refuses to start with a debugger option of node', async () => {
    const { code, stderr } = await runGatehouse(['serve', '-c', file()], {
      nodeArgs: ['--inspect=127.0.0.1:0'],
    });
    expect(code).toBe(78);
    expect(stderr).toMatch(/--inspect on the command line of node/);
  });
});
