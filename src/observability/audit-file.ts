import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import type { AuditRecord, AuditSink } from './audit-log.ts';

/** Appends lines to a file with mode 0600. Several processes can share it, since each appends whole lines. */
export async function openAuditFile(path: string, { sync }: { readonly sync: boolean }): Promise<AuditSink> {
  const openFile = (): Promise<FileHandle> =>
    open(path, constants.O_WRONLY | constants.O_APPEND | constants.O_CREAT, 0o600);
  let file: FileHandle | undefined = await openFile();
  /** The last write was incomplete: the next one must begin with a line break. */
  let hasPartialLine = false;
  let reopenRequested = false;
  let busy = false;
  let reopening: Promise<unknown> = Promise.resolve();

  const getFile = async (): Promise<FileHandle> => {
    if (reopenRequested || file === undefined) {
      const next = await openFile();
      reopenRequested = false;
      await file?.close().catch(() => {});
      file = next;
      hasPartialLine = false;
    }
    return file;
  };
  return {
    batchSize: 1_000,
    async deliver(records: readonly AuditRecord[]) {
      await reopening;
      busy = true;
      try {
        const handle = await getFile();
        const bytes = Buffer.from(`${hasPartialLine ? '\n' : ''}${records.map(({ line }) => line).join('')}`);
        const { bytesWritten } = await handle.write(bytes);
        hasPartialLine = bytesWritten > 0 && bytesWritten < bytes.length;
        // The queue retries the whole batch: duplicates are better than lost events.
        if (bytesWritten < bytes.length) throw new Error(`only ${bytesWritten} of ${bytes.length} bytes were written`);
        if (sync) await handle.datasync();
      } finally {
        busy = false;
      }
    },
    // An active write completes in the old file. If the new one cannot be opened, the next delivery fails.
    reopen() {
      reopenRequested = true;
      if (!busy) reopening = getFile().catch(() => {});
    },
    close: async () => {
      await file?.close().catch(() => {});
      file = undefined;
    },
  };
}
