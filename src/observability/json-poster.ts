import { createHttpClient, readAtMost } from '../lib/http-client.ts';

interface PosterOptions {
  readonly url: string;
  readonly ca?: string | undefined;
  /** For the whole exchange. */
  readonly timeoutMs?: number;
}

/** The body of the response is not used; of a longer one the rest is not received. */
const MAX_BODY = 64 * 1_024;

/** Sends JSON to one URL over a persistent connection. */
export function openPoster({ url, ca, timeoutMs = 5_000 }: PosterOptions) {
  const client = createHttpClient({ timeoutMs, ca, maxConnections: 1 });
  return {
    /** Resolves with the status code, whatever it is. Redirects are not followed. */
    async post(body: string, headers: Readonly<Record<string, string>> = {}): Promise<number> {
      const response = await client.send(url, {
        method: 'POST',
        headers: { 'content-type': 'application/json', ...headers },
        body,
      });
      await readAtMost(response.body, MAX_BODY);
      return response.status;
    },
    close: () => client.destroy(),
  };
}
