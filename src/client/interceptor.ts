import type { Dispatcher } from 'undici';
import type { Client } from './client.ts';
import { isTokenRejected } from './fetch.ts';

/**
 * Adds the token to the requests of a dispatcher: `new Agent().compose(bearerInterceptor(client))`. Requests to the
 * allowed origins get the token; when it is rejected, they are sent once more with a renewed one. Other requests are
 * unchanged.
 */
export const bearerInterceptor =
  (client: Client): Dispatcher.DispatcherComposeInterceptor =>
  (dispatch) =>
  (options, handler) => {
    if (!client.isAllowedOrigin(getOrigin(options.origin))) return dispatch(options, handler);
    const send = (token: string, responseHandler: Dispatcher.DispatchHandler): void =>
      void dispatch({ ...options, headers: withToken(options.headers, token) }, responseHandler);
    const fail = (error: unknown): void =>
      handler.onResponseError?.(undefined as unknown as Dispatcher.DispatchController, error as Error);

    const start = async (): Promise<void> => {
      const token = await client.token();
      const first = isReplayable(options.body)
        ? createRetryHandler(handler, fail, async () => {
            const renewed = await client.renew(token).catch(() => undefined);
            return renewed === undefined ? undefined : () => send(renewed, handler);
          })
        : handler;
      // Throws if the dispatcher is closed or the request is invalid.
      send(token, first);
    };
    start().catch(fail);
    return true;
  };

const getOrigin = (origin: string | URL | undefined): string =>
  origin === undefined || !URL.canParse(String(origin)) ? '' : new URL(origin).origin;

type RequestHeaders = NonNullable<Dispatcher.DispatchOptions['headers']>;

function withToken(headers: RequestHeaders | undefined | null, token: string): RequestHeaders {
  const pairs: [string, string | string[]][] = [];
  const add = (name: string, value: unknown): void => {
    if (name.toLowerCase() !== 'authorization' && value !== undefined && value !== null)
      pairs.push([name, value as string | string[]]);
  };
  if (Array.isArray(headers))
    for (let at = 0; at + 1 < headers.length; at += 2) add(String(headers[at]), headers[at + 1]);
  else if (headers !== null && headers !== undefined && Symbol.iterator in headers)
    for (const [name, value] of headers as Iterable<[string, string]>) add(name, value);
  else for (const [name, value] of Object.entries(headers ?? {})) add(name, value);
  pairs.push(['authorization', `Bearer ${token}`]);
  return Object.fromEntries(pairs);
}

const isReplayable = (body: Dispatcher.DispatchOptions['body']): boolean =>
  body === undefined || body === null || typeof body === 'string' || body instanceof Uint8Array;

/** Responses of gatehouse are shorter; longer ones are passed on unbuffered. */
const MAX_BUFFERED = 16 * 1_024;

/** Buffers a response that rejects the token until it is known whether the token can be renewed. */
function createRetryHandler(
  handler: Dispatcher.DispatchHandler,
  fail: (error: unknown) => void,
  prepareRetry: () => Promise<(() => void) | undefined>,
): Dispatcher.DispatchHandler {
  let buffered: ((target: Dispatcher.DispatchHandler) => void)[] | undefined;
  let length = 0;
  const replay = (events: readonly ((target: Dispatcher.DispatchHandler) => void)[]): void => {
    for (const part of events) part(handler);
  };
  return {
    onRequestStart: (controller, context) => handler.onRequestStart?.(controller, context),
    onRequestUpgrade: (controller, status, headers, socket) =>
      handler.onRequestUpgrade?.(controller, status, headers, socket),
    onResponseStart(controller, status, headers, message) {
      const challenge = headers['www-authenticate'];
      if (!isTokenRejected(status, Array.isArray(challenge) ? challenge.join(', ') : challenge))
        return handler.onResponseStart?.(controller, status, headers, message);
      buffered = [(to) => to.onResponseStart?.(controller, status, headers, message)];
    },
    onResponseData(controller, chunk) {
      if (buffered === undefined) return handler.onResponseData?.(controller, chunk);
      length += chunk.length;
      buffered.push((to) => to.onResponseData?.(controller, chunk));
      if (length <= MAX_BUFFERED) return;
      const events = buffered;
      buffered = undefined;
      replay(events);
    },
    onResponseEnd(controller, trailers) {
      if (buffered === undefined) return handler.onResponseEnd?.(controller, trailers);
      const events = [...buffered, (to: Dispatcher.DispatchHandler) => to.onResponseEnd?.(controller, trailers)];
      const finish = async (): Promise<void> => {
        const retry = await prepareRetry();
        if (retry === undefined) replay(events);
        else retry();
      };
      finish().catch(fail);
    },
    onResponseError: (controller, error) => handler.onResponseError?.(controller, error),
  };
}
