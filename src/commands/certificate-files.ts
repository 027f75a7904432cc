import { checkPair, UnusablePair } from '../client/connection-trouble.ts';
import { CommandError, EXIT } from './command.ts';

/** A certificate and a key that are given together are one pair; nobody is asked before. */
export function mustBePair({
  cert,
  key,
}: {
  readonly cert?: Buffer | undefined;
  readonly key?: Buffer | undefined;
}): void {
  if (cert === undefined || key === undefined) return;
  try {
    checkPair({ cert, key });
  } catch (error) {
    if (error instanceof UnusablePair)
      throw new CommandError(`--cert and --key: ${error.message}`, EXIT.configuration);
    throw error;
  }
}
