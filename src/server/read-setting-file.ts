import { readFileSync } from 'node:fs';
import { StartError } from './start-error.ts';

/** The text of a file that a setting names; undefined where the setting is omitted. */
export function readSettingFile(setting: string, file: string): string;
export function readSettingFile(setting: string, file: string | undefined): string | undefined;
export function readSettingFile(setting: string, file: string | undefined): string | undefined {
  if (file === undefined) return undefined;
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw new StartError([`${setting}: ${file} cannot be read (${code})`], { cause: error });
  }
}
