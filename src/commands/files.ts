import { resolve } from 'node:path';
import { checkKeyPair, KeyPairError } from '../lib/key-pair.ts';
import { readFileBytes } from '../lib/read-file.ts';
import { type CommandContext, CommandError, EXIT } from './command.ts';

/** The content of the file that an option names; undefined where the option is omitted. */
export function readOptionFile(
  { cwd }: CommandContext,
  option: string,
  file: string | undefined,
): Buffer | undefined {
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

/** The files of --cert, --key and --cacert. */
export function readTlsFiles(context: CommandContext): TlsFiles {
  const read = (option: string): Buffer | undefined =>
    readOptionFile(context, option, context.option(option));
  const [cert, key, ca] = [read('cert'), read('key'), read('cacert')];
  if (cert !== undefined && key !== undefined) requireKeyPair(cert, key);
  return { ...(cert && { cert }), ...(key && { key }), ...(ca && { ca }) };
}

function requireKeyPair(cert: Buffer, key: Buffer): void {
  try {
    checkKeyPair({ cert, key });
  } catch (error) {
    if (error instanceof KeyPairError)
      throw new CommandError(`--cert and --key: ${error.message}`, EXIT.configuration);
    throw error;
  }
}

/** Reads a stream to its end; throws `createError()` beyond `maxBytes`. */
export async function readStream(
  stream: AsyncIterable<unknown>,
  maxBytes: number,
  createError: () => Error,
): Promise<Buffer> {
  const parts: Buffer[] = [];
  let length = 0;
  for await (const part of stream) {
    const bytes = Buffer.from(part as Buffer);
    length += bytes.length;
    if (length > maxBytes) throw createError();
    parts.push(bytes);
  }
  return Buffer.concat(parts);
}
