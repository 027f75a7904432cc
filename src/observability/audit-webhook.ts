import { createHmac, randomUUID } from 'node:crypto';
import type { AuditRecord, AuditSink } from './audit-log.ts';
import { openPoster } from './json-poster.ts';

interface WebhookOptions {
  readonly url: string;
  readonly secret: string;
  readonly batchSize?: number;
  readonly ca?: string | undefined;
}

/**
 * Sends events with POST as `{"events":[…]}`. Each delivery has its time, an id that stays the same on a retry, and `v1=`
 * HMAC-SHA-256 of `time.body` as a signature.
 */
/** Events in one delivery. */
const BATCH_SIZE = 100;

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
        'x-gatehouse-signature': signDelivery(secret, time, body),
      });
      // Redirects are not followed: events are meant for this URL only.
      if (status < 200 || status > 299) throw new Error(`the receiver responded with ${status}`);
    },
    close: async () => poster.close(),
  };
}

const signDelivery = (secret: string, time: string, body: string): string =>
  `v1=${createHmac('sha256', secret).update(`${time}.${body}`).digest('hex')}`;
