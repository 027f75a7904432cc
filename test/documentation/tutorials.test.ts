import { readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { describe, expect, test } from 'vitest';
import { fillPlaceholders, readDocumentedConfig } from '../gateways/documented-configuration.ts';
import { readPage } from './pages.ts';
import { readSteps, TUTORIALS } from './tutorial.ts';

const ROOT = join(import.meta.dirname, '../..');

/** The tests that run the commands of each tutorial. */
const RUNNERS = {
  'sh executed': 'test/documentation/tutorials.full.test.ts',
  'sh started': 'test/documentation/tutorials.full.test.ts',
  'sh cluster': 'test/apiserver/tutorials.apiserver.ts',
  // No pod runs there: checked against the objects, and run with the rendered configuration.
  'sh nodes': 'test/apiserver/tutorials.apiserver.ts',
} as const;

describe.each(TUTORIALS)('%s', (page) => {
  const text = readPage(page);

  test('says what the reader will have and needs, what to do if a step fails, and where to go next', () => {
    expect(text).toMatch(/^# [^\n]+\n\n[^*]+\n\n\*\*What you will have\*\*: /);
    expect(text).toContain('\n**What you need**: [gatehouse](README.md#install-gatehouse)');
    const headings = [...text.matchAll(/^## (.+)$/gm)].map(([, heading = '']) => heading);
    expect(headings.slice(-2)).toEqual(['When a step fails', 'Next']);
  });

  test('the steps are numbered without gaps', () => {
    const numbers = [...text.matchAll(/^## (\d+)\. /gm)].map(([, number]) => Number(number));
    expect(numbers).toEqual(numbers.map((_, index) => index + 1));
    expect(numbers.length).toBeGreaterThan(4);
  });

  test('every command is run by a test', () => {
    const kinds = readSteps(page).map(({ kind }) => kind);
    const commands = kinds.filter((kind) => /^(?:sh|bash|console|shell)/.test(kind));
    expect(commands.filter((kind) => !(kind in RUNNERS))).toEqual([]);
    for (const kind of new Set(commands)) {
      const runner = RUNNERS[kind as keyof typeof RUNNERS];
      expect(readFileSync(join(ROOT, runner), 'utf8')).toContain(page);
    }
  });

  test('the number of terminals is that of the programs that keep running, and one for commands', () => {
    const started = readSteps(page).filter(({ kind }) => kind === 'sh started').length;
    const [, number = ''] = /^\*\*What you need\*\*:[^]*? (\w+) terminals/m.exec(text) ?? [];
    if (started > 0) expect(number).toBe(['two', 'three', 'four', 'five'][started - 1]);
  });

  test('it is listed in both indexes', () => {
    for (const index of ['docs/README.md', 'docs/tutorials/README.md'])
      expect(readPage(index)).toContain(`](${relative(dirname(index), page)})`);
  });
});

test('there are tutorials', () => {
  expect(TUTORIALS.length).toBeGreaterThan(8);
});

test('the configuration of nginx in the tutorial is the tested one of the forward-auth page', () => {
  const documented = fillPlaceholders(readDocumentedConfig('nginx'), {
    'server_name api.example.test': 'server_name localhost',
    'gate.example.test': 'localhost',
    '/etc/gatehouse/ca.pem': '../pki/ca.pem',
  });
  expect(readPage('docs/tutorials/nginx.md')).toContain(documented);
});

test('the versions of the MCP SDKs that the pages name are the tested ones', () => {
  const { devDependencies } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as {
    readonly devDependencies: Readonly<Record<string, string>>;
  };
  const [, python] = /^mcp==(\S+)$/m.exec(readFileSync(join(ROOT, 'test/mcp/requirements.txt'), 'utf8')) ?? [];
  for (const page of ['docs/mcp.md', 'docs/tutorials/mcp-server.md']) {
    const text = readPage(page);
    expect(text).toContain(`\`@modelcontextprotocol/sdk\` ${devDependencies['@modelcontextprotocol/sdk']}`);
    expect(text).toContain(`\`mcp\` ${python}`);
  }
});
