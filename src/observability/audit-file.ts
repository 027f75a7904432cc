import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import type { AuditRecord, AuditSink } from './audit-log.ts';

/** Lines at the end of a file that only its owner reads. Several processes may write to it: each adds whole lines. */
export async function openAuditFile(path: string, { sync }: { readonly sync: boolean }): Promise<AuditSink> {
  const openIt = (): Promise<FileHandle> =>
    open(path, constants.O_WRONLY | constants.O_APPEND | constants.O_CREAT, 0o600);
  let file: FileHandle | undefined = await openIt();
  /** A line was broken off: what comes next begins a line of its own. */
  let torn = false;
  let wantsNew = false;
  let busy = false;
  let turning: Promise<unknown> = Promise.resolve();

  const current = async (): Promise<FileHandle> => {
    if (wantsNew || file === undefined) {
      const next = await openIt();
      wantsNew = false;
      await file?.close().catch(() => {});
      file = next;
      torn = false;
    }
    return file;
  };
  return {
    batch: 1_000,
    async deliver(records: readonly AuditRecord[]) {
      await turning;
      busy = true;
      try {
        const to = await current();
        const bytes = Buffer.from(`${torn ? '\n' : ''}${records.map(({ line }) => line).join('')}`);
        const { bytesWritten } = await to.write(bytes);
        torn = bytesWritten > 0 && bytesWritten < bytes.length;
        // They are all written again, after the broken line: twice is better than never.
        if (bytesWritten < bytes.length)
          throw new Error(`only ${bytesWritten} of ${bytes.length} bytes were written`);
        if (sync) await to.datasync();
      } finally {
        busy = false;
      }
    },
    // What is being written now still goes to the old file. One that cannot be opened is told with the next event.
    reopen() {
      wantsNew = true;
      if (!busy) turning = current().catch(() => {});
    },
    close: async () => {
      await file?.close().catch(() => {});
      file = undefined;
    },
  };
}
