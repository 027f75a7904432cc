import { readFileSync, statSync } from 'node:fs';

const READ_PROBLEMS: Readonly<Record<string, string>> = {
  ENOENT: 'does not exist',
  ENOTDIR: 'does not exist',
  EACCES: 'is not readable by this user',
  EPERM: 'is not readable by this user',
  EISDIR: 'is a directory',
};

/** Completes "<file> ...". */
export function describeReadError(error: unknown): string {
  const { code = 'unknown error' } = error as NodeJS.ErrnoException;
  return READ_PROBLEMS[code] ?? `cannot be read (${code})`;
}

/** Throws the error that `toError` makes of the problem, which completes "<file> ...". */
export function readFileBytes(
  file: string,
  toError: (problem: string, cause?: unknown) => Error = (problem, cause) => new Error(problem, { cause }),
  maxBytes = Number.POSITIVE_INFINITY,
): Buffer {
  let bytes: Buffer | undefined;
  try {
    if (statSync(file).size <= maxBytes) bytes = readFileSync(file);
  } catch (error) {
    throw toError(describeReadError(error), error);
  }
  if (bytes === undefined) throw toError(describeTooLarge(maxBytes));
  return bytes;
}

export const describeTooLarge = (maxBytes: number): string =>
  `is larger than ${maxBytes >= 1_048_576 ? `${maxBytes / 1_048_576} MiB` : `${maxBytes / 1_024} KiB`}`;
