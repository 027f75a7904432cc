import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { COMMON_OPTIONS } from '../../src/commands/arguments.ts';
import { COMMANDS } from '../../src/commands/registry.ts';
import { needs } from '../set-up/programs.ts';
import { runChild } from '../support/child-process.ts';
import { runCommand } from '../support/command-in-process.ts';
import { testFolder } from '../support/configuration.ts';

needs('bash');

const quote = (text: string): string => `'${text.replaceAll("'", String.raw`'\''`)}'`;

/** What bash offers for the last word of each command line. */
async function complete(cwd: string, ...lines: readonly (readonly string[])[]): Promise<readonly string[][]> {
  const { stdout: script } = await runCommand(['completion', 'bash']);
  const file = join(testFolder(), 'completion.bash');
  const queries = lines.map(
    (words) =>
      `COMP_WORDS=(gatehouse ${words.map(quote).join(' ')}); COMP_CWORD=${words.length}; _gatehouse; printf '%s\\n' "\${COMPREPLY[@]}" ';'`,
  );
  writeFileSync(file, `${script}\nset -u\n${queries.join('\n')}\n`);
  const { code, stdout, stderr } = await runChild(['bash', '--norc', file], { cwd });
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return stdout
    .split(';\n')
    .slice(0, -1)
    .map((words) => words.split('\n').filter((word) => word !== ''));
}

const completeOne = async (...words: readonly string[]): Promise<readonly string[]> =>
  (await complete('/', words))[0]?.toSorted() ?? [];

test('every command and every option of the registry is offered', async () => {
  const commands = await Promise.all(Object.values(COMMANDS).map(async (load) => (await load()).command));
  const [names, ...options] = await complete('/', [''], ...commands.map(({ name }) => [name, '--']));
  expect(names?.toSorted()).toEqual([...Object.keys(COMMANDS), 'help', '--help', '--version'].toSorted());
  expect(options.map((offered) => offered.toSorted())).toEqual(
    commands.map((command) =>
      Object.keys({ ...command.options, ...COMMON_OPTIONS })
        .map((name) => `--${name}`)
        .toSorted(),
    ),
  );
});

test('the first letters of a command, a subcommand, an option or a value are completed', async () => {
  const results = await complete(
    '/',
    ['hash'],
    ['help', 'vers'],
    ['keys', ''],
    ['help', 'keys', ''],
    ['keys', 'rotate', '--p'],
    ['keys', 'new', 'x', '--algorithm', ''],
    ['check', '--output', 'j'],
    ['completion', ''],
    ['explain', 'P'],
  );
  expect(results).toEqual([
    ['hash-password', 'hash-secret'],
    ['version'],
    ['new', 'rotate', 'list'],
    ['new', 'rotate', 'list'],
    ['--publish-before'],
    ['EdDSA', 'ES256'],
    ['json'],
    ['bash', 'zsh', 'fish'],
    ['POST', 'PUT', 'PATCH'],
  ]);
});

test('a subcommand offers only the options that apply to it', async () => {
  expect(await completeOne('keys', 'list', '--')).toEqual(['--help', '--output', '--trace']);
  expect(await completeOne('keys', '--algorithm', 'ES256', 'new', '--')).toEqual([
    '--algorithm',
    '--config',
    '--help',
    '--output',
    '--trace',
  ]);
  expect(await completeOne('grants', 'list', '--y')).toEqual([]);
  expect(await completeOne('grants', 'revoke', '--y')).toEqual(['--yes']);
});

test('words that bash splits at = and : are read as one', async () => {
  expect(await completeOne('check', '--output', '=', 'te')).toEqual(['text']);
  expect(await completeOne('check', '--output', '=')).toEqual(['json', 'text']);
  expect(await completeOne('check', '--set', 'listen.port', '=', '1', '--conf')).toEqual(['--config']);
  expect(await completeOne('grants', '--url', 'https', ':', '//a', 're')).toEqual(['revoke']);
  // The value of --set has no completion, and neither has the rest of a URL.
  expect(await completeOne('check', '--set', 'listen.port', '=', 'j')).toEqual([]);
  expect(await completeOne('check', '--set', 'listen.port', '=')).toEqual([]);
  expect(await completeOne('call', 'https', ':')).toEqual([]);
});

test('files are offered where a path is expected, and nowhere else', async () => {
  const cwd = testFolder();
  writeFileSync(join(cwd, 'my gatehouse.yaml'), '');
  writeFileSync(join(cwd, 'mx*.yaml'), '');
  mkdirSync(join(cwd, 'my folder'));
  const results = await complete(
    cwd,
    ['check', '-c', 'm'],
    ['check', '--config', '=', 'my g'],
    ['keys', 'list', 'm'],
    ['demo', '--folder', ''],
    ['check', 'm'],
    ['login', '--scope', 'm'],
    ['unknown', 'm'],
    ['unknown', '--config', 'm'],
  );
  expect(results.map((words) => words.toSorted())).toEqual([
    ['mx*.yaml', 'my folder', 'my gatehouse.yaml'],
    ['my gatehouse.yaml'],
    ['mx*.yaml', 'my folder', 'my gatehouse.yaml'],
    ['my folder'],
    [],
    [],
    [],
    [],
  ]);
});

test('eval of the script, as the help recommends, registers the completion', async () => {
  const { stdout: script } = await runCommand(['completion', 'bash']);
  const registered = await runChild(['bash', '--norc', '-c', 'eval "$1"; complete -p gatehouse', 'bash', script]);
  expect(registered.stdout).toBe('complete -F _gatehouse gatehouse\n');
});

test('another shell is a usage error', async () => {
  const { code, stderr } = await runCommand(['completion', 'fisch']);
  expect({ code, stderr }).toEqual({
    code: 64,
    stderr: 'gatehouse completion: expected bash, zsh or fish, not "fisch"; did you mean fish?\n',
  });
});
