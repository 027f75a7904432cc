import { createHmac, randomUUID } from 'node:crypto';
import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import type { AuditRecord, AuditSink } from './audit-log.ts';
import { openPoster } from './json-poster.ts';

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

interface WebhookOptions {
  readonly url: string;
  readonly secret: string;
  readonly batchSize?: number;
  readonly ca?: string | undefined;
}

/** Events in one delivery. */
const BATCH_SIZE = 100;

/**
 * Sends events with POST as `{"events":[…]}`. Each delivery has its time, an id that stays the same on a retry, and `v1=`
 * HMAC-SHA-256 of `time.body` as a signature.
 */
export function openAuditWebhook({ url, secret, batchSize = BATCH_SIZE, ca }: WebhookOptions): AuditSink {
  const poster = openPoster({ url, ca, timeoutMs: 10_000 });
  let last: { readonly records: readonly AuditRecord[]; readonly id: string } | undefined;
  return {
    batchSize,
    async deliver(records) {
      if (last?.records !== records) last = { records, id: randomUUID() };
      const body = `{"events":[${records.map(({ line }) => line.trimEnd()).join(',')}]}`;
      const time = String(Math.floor(Date.now() / 1_000));
      const status = await poster.post(body, {
        'x-gatehouse-delivery': last.id,
        'x-gatehouse-timestamp': time,
        'x-gatehouse-signature': `v1=${createHmac('sha256', secret).update(`${time}.${body}`).digest('hex')}`,
      });
      // Redirects are not followed: events are meant for this URL only.
      if (status < 200 || status > 299) throw new Error(`the receiver responded with ${status}`);
    },
    close: async () => poster.close(),
  };
}
