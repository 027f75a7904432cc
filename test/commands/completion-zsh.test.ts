import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { needs } from '../set-up/programs.ts';
import { runChild } from '../support/child-process.ts';
import { runCommand } from '../support/command-in-process.ts';
import { testFolder } from '../support/configuration.ts';

needs('zsh');

/** Completes each line in the line editor of an interactive zsh, and returns the lines that result. */
const DRIVER = `
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "source $PWD/set-up.zsh"
zpty -r shell output '*READY*'
zpty -w -n shell $'\\x14'
zpty -r shell output '*DONE*'
zpty -d shell
`;

const SET_UP = `
autoload -Uz compinit; compinit -u -d $PWD/dump
eval "$(< $PWD/_gatehouse)"
complete-lines() {
  for line in "\${(@f)$(< $PWD/lines)}"; do
    BUFFER=$line CURSOR=$#line
    zle complete-word
    print -r -- "$BUFFER" >> $PWD/completed
  done
  BUFFER=
  print DONE
}
zle -N complete-lines
bindkey '^T' complete-lines
print READ""Y
`;

async function complete(lines: readonly string[]): Promise<string[]> {
  const cwd = testFolder();
  const write = (name: string, text: string): void => writeFileSync(join(cwd, name), text);
  write('_gatehouse', (await runCommand(['completion', 'zsh'])).stdout);
  write('lines', `${lines.join('\n')}\n`);
  write('set-up.zsh', SET_UP);
  write('driver.zsh', DRIVER);
  write('some-file.yaml', '');
  const bin = fileURLToPath(new URL('../../bin', import.meta.url));
  const env = { PATH: `${bin}:${process.env['PATH']}`, HOME: cwd, TERM: 'xterm' };
  expect(await runChild(['zsh', '-n', '_gatehouse'], { cwd, env })).toMatchObject({ code: 0, stderr: '' });
  expect(await runChild(['zsh', '-f', 'driver.zsh'], { cwd, env })).toMatchObject({ code: 0, stderr: '' });
  return readFileSync(join(cwd, 'completed'), 'utf8').trimEnd().split('\n');
}

test('zsh accepts the script, and completes commands, options, values and files', async () => {
  const completed = await complete([
    'gatehouse explai',
    'gatehouse keys rotate --publ',
    'gatehouse keys new x --algorithm Ed',
    'gatehouse check --output=js',
    'gatehouse check --config some',
    'gatehouse check --config=some',
    'gatehouse check some',
    'gatehouse call -H a:b --show-s',
  ]);
  expect(completed.map((line) => line.trimEnd())).toEqual([
    'gatehouse explain',
    'gatehouse keys rotate --publish-before',
    'gatehouse keys new x --algorithm EdDSA',
    'gatehouse check --output=json',
    'gatehouse check --config some-file.yaml',
    'gatehouse check --config=some-file.yaml',
    'gatehouse check some',
    'gatehouse call -H a:b --show-status',
  ]);
});
