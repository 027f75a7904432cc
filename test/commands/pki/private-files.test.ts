import { lstatSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { writePrivateFile } from '../../../src/commands/pki/private-files.ts';
import { testFolder } from '../../support/configuration.ts';

test('a private file is written in place of symbolic links, never through them', () => {
  const folder = testFolder();
  const [file, other] = [join(folder, 'key.pem'), join(folder, 'other')];
  writeFileSync(other, 'unchanged');
  symlinkSync(other, file);
  symlinkSync(other, `${file}.new`);
  writePrivateFile(file, 'secret');
  expect(readFileSync(other, 'utf8')).toBe('unchanged');
  expect(readFileSync(file, 'utf8')).toBe('secret');
  expect(lstatSync(file).isSymbolicLink()).toBe(false);
  expect(statSync(file).mode & 0o777).toBe(0o600);
});

test('a temporary file that an interrupted run left does not prevent the next one', () => {
  const file = join(testFolder(), 'key.pem');
  writeFileSync(`${file}.new`, 'half', { mode: 0o644 });
  writePrivateFile(file, 'secret');
  expect(readFileSync(file, 'utf8')).toBe('secret');
  expect(statSync(file).mode & 0o777).toBe(0o600);
});
