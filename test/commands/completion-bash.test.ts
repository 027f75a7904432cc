import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
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
  const PATH = `${fileURLToPath(new URL('../../bin', import.meta.url))}:${process.env['PATH']}`;
  const { code, stdout, stderr } = await runChild(['bash', '--norc', file], { cwd, env: { PATH } });
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return stdout
    .split(';\n')
    .slice(0, -1)
    .map((words) => words.split('\n').filter((word) => word !== ''));
}

test('bash accepts the script, and offers words, files and folders; it splits words at = and :', async () => {
  const cwd = testFolder();
  writeFileSync(join(cwd, 'my gatehouse.yaml'), '');
  writeFileSync(join(cwd, 'mx*.yaml'), '');
  mkdirSync(join(cwd, 'my folder'));
  const results = await complete(
    cwd,
    ['hash'],
    ['check', '--output', '=', 'te'],
    ['check', '--output', '='],
    ['grants', '--url', 'https', ':', '//a', 're'],
    ['call', 'https', ':'],
    ['check', '-c', 'm'],
    ['check', '--config', '=', 'my g'],
    ['demo', '--folder', ''],
  );
  expect(results.map((words) => words.toSorted())).toEqual([
    ['hash-password', 'hash-secret'],
    ['text'],
    ['json', 'text'],
    ['revoke'],
    [],
    ['mx*.yaml', 'my folder', 'my gatehouse.yaml'],
    ['my gatehouse.yaml'],
    ['my folder'],
  ]);
});

test('eval of the script, as the help recommends, registers the completion', async () => {
  const { stdout: script } = await runCommand(['completion', 'bash']);
  const registered = await runChild(['bash', '--norc', '-c', 'eval "$1"; complete -p gatehouse', 'bash', script]);
  expect(registered.stdout).toBe('complete -F _gatehouse gatehouse\n');
});
