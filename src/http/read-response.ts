/** A response of another server that is too long, encoded or not text. Its content is in no message. */
export class UnusableResponse extends Error {
  readonly code = 'UNUSABLE_RESPONSE';
  override readonly name = 'UnusableResponse';
}

export interface ReceivedResponse {
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly body: AsyncIterable<Uint8Array>;
}

/** Asked for in every request whose response `readText` reads. */
export const NO_CODING = { 'accept-encoding': 'identity' } as const;

/**
 * The body as text, at most `most` bytes of it. Responses with a content coding (RFC 9110 §8.4.1) are refused: a limit on
 * compressed bytes is none, since gzip shrinks zeros to a thousandth. The deadline is the caller's: its signal must cover
 * the body as well.
 */
export async function readText({ headers, body }: ReceivedResponse, most: number): Promise<string> {
  const problem = problemIn(headers, most);
  const parts: Uint8Array[] = [];
  let length = 0;
  // Leaving the loop ends the iteration, and with it the connection: the rest is not received.
  for await (const part of body) {
    length += part.length;
    if (problem !== undefined || length > most) throw new UnusableResponse(problem ?? tooLong(most));
    parts.push(part);
  }
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(Buffer.concat(parts));
  } catch {
    throw new UnusableResponse('the response is not UTF-8');
  }
}

const tooLong = (most: number): string => `the response is longer than ${most / 1_024} KiB`;

function problemIn(headers: ReceivedResponse['headers'], most: number): string | undefined {
  const coding = String(headers['content-encoding'] ?? '')
    .trim()
    .toLowerCase();
  if (coding !== '' && coding !== 'identity')
    return 'the response has a content coding, though none was asked for';
  return Number(headers['content-length'] ?? 0) > most ? tooLong(most) : undefined;
}
