import { fetch, Headers, Request, type RequestInfo, type RequestInit, type Response } from 'undici';
import type { Client } from './client.ts';

/** Recognizes a 401 of gatehouse about the token, and not one of the API itself. */
const isTokenRejected = (status: number, challenge: string | null | undefined): boolean =>
  status === 401 && /^bearer\b.*\berror="invalid_token"/i.test(challenge ?? '');

export async function fetchWithToken(client: Client, input: RequestInfo, init: RequestInit = {}): Promise<Response> {
  const url = new URL(input instanceof Request ? input.url : input);
  if (!client.isAllowedOrigin(url.origin))
    throw new TypeError(`${url.origin} is not one of the client's origins; the token is not sent there`);
  const baseHeaders = init.headers ?? (input instanceof Request ? input.headers : undefined);
  const dispatcher = await client.dispatcher();
  const send = (token: string): Promise<Response> => {
    const headers = new Headers(baseHeaders);
    headers.set('authorization', `Bearer ${token}`);
    return fetch(input instanceof Request ? input.clone() : input, { ...init, headers, dispatcher });
  };
  const token = await client.token();
  const response = await send(token);
  if (!isTokenRejected(response.status, response.headers.get('www-authenticate')) || !isReplayable(init.body))
    return response;
  const renewed = await client.renew(token).catch(() => undefined);
  // Without a new token, the caller gets the first response.
  if (renewed === undefined) return response;
  await response.body?.cancel();
  return send(renewed);
}

/** A stream was consumed by the first request. */
const isReplayable = (body: RequestInit['body']): boolean =>
  body === undefined ||
  body === null ||
  !(body instanceof ReadableStream || (typeof body === 'object' && Symbol.asyncIterator in body));
