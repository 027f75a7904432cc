import { accessSync, constants, readFileSync, statSync } from 'node:fs';
import { StartError } from './start-error.ts';

const READ_PROBLEMS: Readonly<Record<string, string>> = {
  ENOENT: 'does not exist',
  ENOTDIR: 'does not exist',
  EACCES: 'cannot be read by this user; check its permissions',
  EPERM: 'cannot be read by this user; check its permissions',
  EISDIR: 'is a folder',
};

function describeReadError(error: unknown): string {
  const { code = 'unknown error' } = error as NodeJS.ErrnoException;
  return READ_PROBLEMS[code] ?? `cannot be read (${code})`;
}

/** Why a file cannot be read, completing "<file> ...". The file is not opened: it may be a pipe. */
export function findReadProblem(file: string): string | undefined {
  try {
    if (statSync(file).isDirectory()) return READ_PROBLEMS['EISDIR'];
    accessSync(file, constants.R_OK);
    return undefined;
  } catch (error) {
    return describeReadError(error);
  }
}

/** Throws an `Error` whose message completes "<file> ...". */
export function readFileBytes(file: string, maxBytes = Number.POSITIVE_INFINITY): Buffer {
  let bytes: Buffer | undefined;
  try {
    if (statSync(file).size <= maxBytes) bytes = readFileSync(file);
  } catch (error) {
    throw new Error(describeReadError(error), { cause: error });
  }
  // Again: the size of a pipe is not known before.
  if (bytes === undefined || bytes.length > maxBytes) throw new Error(describeTooLarge(maxBytes));
  return bytes;
}

export const describeTooLarge = (maxBytes: number): string =>
  `is larger than ${maxBytes >= 1_048_576 ? `${maxBytes / 1_048_576} MiB` : `${maxBytes / 1_024} KiB`}`;

/** The content of a file that a setting names. Throws a `StartError` "<setting>: <file> ...". */
export function readSettingBytes(setting: string, file: string, maxBytes?: number): Buffer {
  try {
    return readFileBytes(file, maxBytes);
  } catch (error) {
    throw new StartError([`${setting}: ${file} ${(error as Error).message}`], { cause: error });
  }
}

/** As text; undefined where the setting is omitted. */
export function readSettingFile(setting: string, file: string): string;
export function readSettingFile(setting: string, file: string | undefined): string | undefined;
export function readSettingFile(setting: string, file: string | undefined): string | undefined {
  return file === undefined ? undefined : readSettingBytes(setting, file).toString('utf8');
}
