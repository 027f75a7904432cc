import { basename, dirname, join } from 'node:path';
import { Fault } from '../../ports/fault.ts';
import { acquireLock, prepareFolder, resolveStoreFiles } from '../../stores/embedded/folder.ts';
import { CommandError, EXIT } from '../command.ts';
import { refuseSymbolicLink } from '../pki/private-files.ts';

interface LockedFolder {
  readonly folder: string;
  /** Another demo uses the first choice, and most likely its ports too. */
  readonly isAlternative: boolean;
  readonly unlock: () => void;
}

const MAX_DEMOS = 9;

/** Locks the folder for one demo at a time. Without a folder of its own choice, a second demo uses `<folder>-2`. */
export function lockDemoFolder(folder: string, isChosen: boolean): LockedFolder {
  for (let number = 1; number <= (isChosen ? 1 : MAX_DEMOS); number += 1) {
    const name = number === 1 ? basename(folder) : `${basename(folder)}-${number}`;
    const candidate = join(dirname(folder), name);
    refuseSymbolicLink(candidate);
    const unlock = tryLock(candidate);
    if (unlock) return { folder: candidate, isAlternative: number > 1, unlock };
  }
  throw new CommandError(
    `${folder} is in use by another gatehouse demo; stop it, or choose another folder with --folder`,
    EXIT.configuration,
  );
}

function tryLock(folder: string): (() => void) | undefined {
  const files = resolveStoreFiles(folder);
  try {
    prepareFolder(files);
    return acquireLock(files);
  } catch (error) {
    if (error instanceof Fault && error.code === 'store_locked') return undefined;
    throw error;
  }
}
