import { type HttpResponse, readAtMost } from '../lib/http-client.ts';

/** A response that is too long, compressed or not text. The message contains nothing of it. */
export class UnusableResponse extends Error {
  readonly code = 'UNUSABLE_RESPONSE';
  override readonly name = 'UnusableResponse';
}

type ReceivedResponse = Pick<HttpResponse, 'headers' | 'body'>;

/** For requests whose response is read with `readResponseText`. */
export const IDENTITY_ENCODING = { 'accept-encoding': 'identity' } as const;

/**
 * The body. Rejects content codings (RFC 9110 §8.4.1), since gzip shrinks zeros to a thousandth and the limit would
 * not hold. The caller's abort signal must cover the body as well.
 */
export async function readResponseBytes({ headers, body }: ReceivedResponse, maxBytes: number): Promise<Buffer> {
  const problem = findProblem(headers, maxBytes);
  const bytes = await readAtMost(body, problem === undefined ? maxBytes : 0);
  if (bytes === undefined) throw new UnusableResponse(problem ?? describeTooLong(maxBytes));
  return bytes;
}

/** The same as text. */
export async function readResponseText(response: ReceivedResponse, maxBytes: number): Promise<string> {
  const bytes = await readResponseBytes(response, maxBytes);
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw new UnusableResponse('the response is not UTF-8');
  }
}

const describeTooLong = (maxBytes: number): string => `the response is longer than ${maxBytes / 1_024} KiB`;

function findProblem(headers: ReceivedResponse['headers'], maxBytes: number): string | undefined {
  const coding = String(headers['content-encoding'] ?? '')
    .trim()
    .toLowerCase();
  if (coding !== '' && coding !== 'identity')
    return 'the response has a content coding, although identity was requested';
  return Number(headers['content-length'] ?? 0) > maxBytes ? describeTooLong(maxBytes) : undefined;
}
