import { resolve } from 'node:path';
import { checkKeyPair, KeyPairError } from '../lib/key-pair.ts';
import { readFileBytes } from '../lib/read-file.ts';
import { type CommandContext, CommandError, EXIT, UsageError } from './command.ts';

/** The content of the file that an option names; undefined where the option is omitted. */
export function readOptionFile({ cwd }: CommandContext, option: string, file: string | undefined): Buffer | undefined {
  if (file === undefined) return undefined;
  try {
    return readFileBytes(resolve(cwd, file));
  } catch (error) {
    throw new CommandError(`--${option} ${file} ${(error as Error).message}`, EXIT.configuration);
  }
}

export interface TlsFiles {
  readonly cert?: Buffer;
  readonly key?: Buffer;
  readonly ca?: Buffer;
}

/** The files of --cert, --key and --cacert; `label` is the command, for errors. */
export function readTlsFiles(context: CommandContext, label: string): TlsFiles {
  const read = (option: string): Buffer | undefined => readOptionFile(context, option, context.option(option));
  const [cert, key, ca] = [read('cert'), read('key'), read('cacert')];
  if ((cert === undefined) !== (key === undefined)) throw new UsageError(`${label}: --cert and --key go together`);
  if (cert !== undefined && key !== undefined) requireKeyPair(cert, key);
  return { ...(cert && { cert }), ...(key && { key }), ...(ca && { ca }) };
}

function requireKeyPair(cert: Buffer, key: Buffer): void {
  try {
    checkKeyPair({ cert, key });
  } catch (error) {
    if (error instanceof KeyPairError) throw new CommandError(`--cert and --key: ${error.message}`, EXIT.configuration);
    throw error;
  }
}
