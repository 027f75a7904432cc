import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { COMMANDS } from '../../src/commands/registry.ts';
import { needs } from '../set-up/programs.ts';
import { runChild } from '../support/child-process.ts';
import { runCommand } from '../support/command-in-process.ts';
import { testFolder } from '../support/configuration.ts';

needs('fish');

/** What fish offers at the end of each command line, without the descriptions. */
async function complete(...lines: readonly string[]): Promise<readonly string[][]> {
  const cwd = testFolder();
  writeFileSync(join(cwd, 'some-file.yaml'), '');
  const file = join(testFolder(), 'gatehouse.fish');
  writeFileSync(file, (await runCommand(['completion', 'fish'])).stdout);
  const script = 'source $argv[1]; for line in $argv[2..]; complete -C $line; echo ";"; end';
  const { code, stdout, stderr } = await runChild(['fish', '--no-config', '-c', script, file, ...lines], {
    cwd,
    env: { PATH: process.env['PATH'] ?? '', HOME: cwd },
  });
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return stdout
    .split(';\n')
    .slice(0, -1)
    .map((text) => text.split('\n').flatMap((line) => (line === '' ? [] : [line.split('\t')[0] ?? ''])));
}

test('fish accepts the script, and offers commands, subcommands, options, values and files', async () => {
  const [commands, ...results] = await complete(
    'gatehouse ',
    'gatehouse hash',
    'gatehouse help vers',
    'gatehouse keys ',
    'gatehouse keys rotate --p',
    'gatehouse keys list --p',
    'gatehouse keys new x --algorithm ',
    'gatehouse check --output=j',
    'gatehouse check --config some',
    'gatehouse check -c some',
    'gatehouse keys list some',
    'gatehouse check some',
    'gatehouse login --scope some',
    'gatehouse grants revoke --client token --ye',
  );
  expect(commands?.toSorted()).toEqual([...Object.keys(COMMANDS), 'help'].toSorted());
  expect(results).toEqual([
    ['hash-password', 'hash-secret'],
    ['version'],
    ['list', 'new', 'rotate'],
    ['--publish-before'],
    [],
    ['EdDSA', 'ES256'],
    ['--output=json'],
    ['some-file.yaml'],
    ['some-file.yaml'],
    ['some-file.yaml'],
    [],
    [],
    ['--yes'],
  ]);
});
