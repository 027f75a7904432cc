import { expect, test } from 'vitest';
import { COMMON_OPTIONS } from '../../src/commands/arguments.ts';
import { COMMANDS } from '../../src/commands/registry.ts';
import { runCommand } from '../support/command-in-process.ts';

/** What `gatehouse __complete` offers for the last word of a command line. */
async function complete(...words: readonly string[]): Promise<readonly string[]> {
  const { code, stdout, stderr } = await runCommand(['__complete', '--', ...words]);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return stdout.split('\n').slice(0, -1);
}

const completeWords = async (...words: readonly string[]): Promise<readonly string[]> =>
  (await complete(...words)).map((line) => line.split('\t')[0] ?? '');

test('every command and every option of the registry is offered, with its description', async () => {
  const names = await complete('');
  expect(names).toHaveLength(Object.keys(COMMANDS).length + 3);
  for (const load of Object.values(COMMANDS)) {
    const { name, summary, options } = (await load()).command;
    expect(names).toContain(`${name}\t${summary}`);
    expect(await complete(name, '--')).toEqual(
      Object.entries({ ...options, ...COMMON_OPTIONS }).map(([option, { help }]) => `--${option}\t${help}`),
    );
  }
  expect(await completeWords('h')).toEqual(['health', 'hash-password', 'hash-secret', 'help']);
  expect(await completeWords('--')).toEqual(['--help', '--version']);
});

test.each<[words: string, offered: readonly string[]]>([
  ['hash', ['hash-password', 'hash-secret']],
  ['help vers', ['version']],
  ['help --', []],
  ['help keys ', ['new', 'rotate', 'list']],
  ['help keys list ', []],
  ['keys ', ['new', 'rotate', 'list']],
  ['keys rotate --p', ['--publish-before']],
  ['keys new x --algorithm ', ['EdDSA', 'ES256']],
  ['check --output j', ['json']],
  ['check --output=', ['--output=text', '--output=json']],
  ['check --output=j', ['--output=json']],
  ['check --set listen.port=', []],
  ['check --set listen.port=1 --conf', ['--config']],
  ['completion ', ['bash', 'zsh', 'fish']],
  ['explain P', ['POST', 'PUT', 'PATCH']],
  ['explain GET ', []],
  ['call https:', []],
  ['grants --url https://a re', ['revoke']],
  // Only the options that apply to the subcommand.
  ['keys list --', ['--output', '--help', '--trace']],
  ['keys --algorithm ES256 new --', ['--algorithm', '--config', '--output', '--help', '--trace']],
  ['grants list --y', []],
  ['grants revoke --client token --y', ['--yes']],
  // Paths only where one is expected.
  ['check -c m', [':file']],
  ['check --config=m', [':file']],
  ['keys list m', [':file']],
  ['demo --folder ', [':folder']],
  ['check m', []],
  ['login --scope m', []],
  ['unknown m', []],
  ['unknown --config m', []],
])('after gatehouse %s, %j are offered', async (line, offered) => {
  expect(await completeWords(...line.split(' '))).toEqual(offered);
});

test('another shell is a usage error', async () => {
  const { code, stderr } = await runCommand(['completion', 'fisch']);
  expect({ code, stderr }).toEqual({
    code: 64,
    stderr: 'gatehouse completion: expected bash, zsh or fish, not "fisch"; did you mean fish?\n',
  });
});
