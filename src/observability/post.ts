import { Agent as HttpAgent, request as httpRequest } from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';

/** Sends JSON to one address, again and again over the same connection. */
export interface Poster {
  /** Resolves with the status, whatever it is. */
  post(body: string, headers?: Readonly<Record<string, string>>): Promise<number>;
  close(): void;
}

export interface PosterOptions {
  readonly url: string;
  readonly ca?: string | undefined;
  /** Within this time the answer must be there. */
  readonly timeoutMs?: number;
}

const MAX_BODY = 64 * 1_024;

export function openPoster({ url, ca, timeoutMs = 5_000 }: PosterOptions): Poster {
  const target = new URL(url);
  const secure = target.protocol === 'https:';
  const terms = { keepAlive: true, maxSockets: 1 } as const;
  // Named, so that no environment variable can turn it off.
  const agent = secure
    ? new HttpsAgent({ ...terms, rejectUnauthorized: true, ...(ca !== undefined && { ca }) })
    : new HttpAgent(terms);
  return {
    post: (body, headers = {}) =>
      new Promise((resolve, reject) => {
        const sent = (secure ? httpsRequest : httpRequest)(
          target,
          {
            method: 'POST',
            agent,
            headers: {
              'content-type': 'application/json',
              'content-length': Buffer.byteLength(body),
              ...headers,
            },
            signal: AbortSignal.timeout(timeoutMs),
          },
          (answer) => {
            // Only the status is used. A longer body is not received: the connection ends.
            let length = 0;
            answer.on('data', (part: Buffer) => {
              length += part.length;
              if (length <= MAX_BODY) return;
              resolve(answer.statusCode ?? 0);
              answer.destroy();
            });
            answer.on('error', reject);
            answer.on('end', () => resolve(answer.statusCode ?? 0));
          },
        );
        sent.on('error', reject);
        sent.end(body);
      }),
    close: () => agent.destroy(),
  };
}
