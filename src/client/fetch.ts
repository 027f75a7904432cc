import { fetch, Headers, Request, type RequestInfo, type RequestInit, type Response } from 'undici';
import type { Client } from './client.ts';

/** An API's 401 counts only when gatehouse said it about the token: one of the API's own is the caller's business. */
export const isTokenRefused = (status: number, challenge: string | null | undefined): boolean =>
  status === 401 && /^bearer\b.*\berror="invalid_token"/i.test(challenge ?? '');

export async function callApi(client: Client, input: RequestInfo, init: RequestInit = {}): Promise<Response> {
  const url = new URL(input instanceof Request ? input.url : input);
  if (!client.isOwn(url.origin))
    throw new TypeError(`${url.origin} is not one of the client's origins; the token is not sent there`);
  const given = init.headers ?? (input instanceof Request ? input.headers : undefined);
  const dispatcher = await client.dispatcher();
  const send = (token: string): Promise<Response> => {
    const headers = new Headers(given);
    headers.set('authorization', `Bearer ${token}`);
    return fetch(input instanceof Request ? input.clone() : input, {
      ...init,
      headers,
      dispatcher,
    });
  };
  const token = await client.token();
  const answer = await send(token);
  if (!isTokenRefused(answer.status, answer.headers.get('www-authenticate')) || !isRepeatable(init.body))
    return answer;
  const renewed = await client.renew(token).catch(() => undefined);
  // Nothing better to show: the caller learns why from the answer there is.
  if (renewed === undefined) return answer;
  await answer.body?.cancel();
  return send(renewed);
}

/** A stream has been read by the first try. */
const isRepeatable = (body: RequestInit['body']): boolean =>
  body === undefined ||
  body === null ||
  !(body instanceof ReadableStream || (typeof body === 'object' && Symbol.asyncIterator in body));
