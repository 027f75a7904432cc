import { createHmac, randomUUID } from 'node:crypto';
import type { AuditRecord, AuditSink } from './audit-log.ts';
import { openPoster } from './post.ts';

export interface WebhookOptions {
  readonly url: string;
  readonly secret: string;
  readonly batch: number;
  readonly ca?: string | undefined;
}

/**
 * Events by POST, as `{"events":[…]}`. Each delivery carries its time and `v1=` HMAC-SHA-256 of `time.body`: a receiver
 * can tell that it is ours, whole, and of now. It also carries an id, the same when it is tried again.
 */
export function openAuditWebhook({ url, secret, batch, ca }: WebhookOptions): AuditSink {
  const poster = openPoster({ url, ca, timeoutMs: 10_000 });
  let last: { readonly records: readonly AuditRecord[]; readonly id: string } | undefined;
  return {
    batch,
    async deliver(records) {
      if (last?.records !== records) last = { records, id: randomUUID() };
      const body = `{"events":[${records.map(({ line }) => line.trimEnd()).join(',')}]}`;
      const time = String(Math.floor(Date.now() / 1_000));
      const status = await poster.post(body, {
        'x-gatehouse-delivery': last.id,
        'x-gatehouse-timestamp': time,
        'x-gatehouse-signature': signature(secret, time, body),
      });
      // A redirect is not followed: what is sent is meant for this address.
      if (status < 200 || status > 299) throw new Error(`the receiver answered ${status}`);
    },
    close: async () => poster.close(),
  };
}

export const signature = (secret: string, time: string, body: string): string =>
  `v1=${createHmac('sha256', secret).update(`${time}.${body}`).digest('hex')}`;
