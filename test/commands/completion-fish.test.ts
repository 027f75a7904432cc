import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
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
    env: { PATH: `${fileURLToPath(new URL('../../bin', import.meta.url))}:${process.env['PATH']}`, HOME: cwd },
  });
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return stdout
    .split(';\n')
    .slice(0, -1)
    .map((text) => text.split('\n').flatMap((line) => (line === '' ? [] : [line.split('\t')[0] ?? ''])));
}

test('fish accepts the script, and offers commands, options, values and files', async () => {
  const results = await complete(
    'gatehouse hash',
    'gatehouse keys rotate --p',
    'gatehouse keys new x --algorithm ',
    'gatehouse check --output=j',
    'gatehouse check --config=some',
    'gatehouse check -c some',
    'gatehouse check some',
  );
  expect(results).toEqual([
    ['hash-password', 'hash-secret'],
    ['--publish-before'],
    ['EdDSA', 'ES256'],
    ['--output=json'],
    ['--config=some-file.yaml'],
    ['some-file.yaml'],
    [],
  ]);
});
