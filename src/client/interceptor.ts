import type { Dispatcher } from 'undici';
import type { Client } from './client.ts';
import { isTokenRefused } from './fetch.ts';

/**
 * For an undici dispatcher of one's own: `new Agent().compose(bearer(client))`. Requests to the client's origins get the
 * token, and once more a renewed one when it is refused; all others go as they are.
 */
export const bearer =
  (client: Client): Dispatcher.DispatcherComposeInterceptor =>
  (dispatch) =>
  (options, handler) => {
    if (!client.isOwn(originOf(options.origin))) return dispatch(options, handler);
    const send = (token: string, onto: Dispatcher.DispatchHandler): void =>
      void dispatch({ ...options, headers: withToken(options.headers, token) }, onto);
    const fail = (error: unknown): void =>
      handler.onResponseError?.(undefined as unknown as Dispatcher.DispatchController, error as Error);

    const begin = async (): Promise<void> => {
      const token = await client.token();
      const first = isRepeatable(options.body)
        ? onceMore(handler, fail, async () => {
            const renewed = await client.renew(token).catch(() => undefined);
            return renewed === undefined ? undefined : () => send(renewed, handler);
          })
        : handler;
      // Throws where the dispatcher is closed, or the request is none.
      send(token, first);
    };
    begin().catch(fail);
    return true;
  };

const originOf = (origin: string | URL | undefined): string =>
  origin === undefined || !URL.canParse(String(origin)) ? '' : new URL(origin).origin;

type Headers = NonNullable<Dispatcher.DispatchOptions['headers']>;

function withToken(headers: Headers | undefined | null, token: string): Headers {
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

const isRepeatable = (body: Dispatcher.DispatchOptions['body']): boolean =>
  body === undefined || body === null || typeof body === 'string' || body instanceof Uint8Array;

/** gatehouse refuses in fewer words: a longer answer is passed on as it comes, and costs no memory. */
const MOST_HELD = 16 * 1_024;

/**
 * Passes everything on, but a refusal of the token: that answer is kept back until it is known whether there is a
 * better token. Without one it is passed on after all.
 */
function onceMore(
  handler: Dispatcher.DispatchHandler,
  fail: (error: unknown) => void,
  again: () => Promise<(() => void) | undefined>,
): Dispatcher.DispatchHandler {
  let held: ((to: Dispatcher.DispatchHandler) => void)[] | undefined;
  let length = 0;
  const passOn = (answer: readonly ((to: Dispatcher.DispatchHandler) => void)[]): void => {
    for (const part of answer) part(handler);
  };
  return {
    onRequestStart: (controller, context) => handler.onRequestStart?.(controller, context),
    onRequestUpgrade: (controller, status, headers, socket) =>
      handler.onRequestUpgrade?.(controller, status, headers, socket),
    onResponseStart(controller, status, headers, message) {
      const challenge = headers['www-authenticate'];
      if (!isTokenRefused(status, Array.isArray(challenge) ? challenge.join(', ') : challenge))
        return handler.onResponseStart?.(controller, status, headers, message);
      held = [(to) => to.onResponseStart?.(controller, status, headers, message)];
    },
    onResponseData(controller, chunk) {
      if (held === undefined) return handler.onResponseData?.(controller, chunk);
      length += chunk.length;
      held.push((to) => to.onResponseData?.(controller, chunk));
      if (length <= MOST_HELD) return;
      const answer = held;
      held = undefined;
      passOn(answer);
    },
    onResponseEnd(controller, trailers) {
      if (held === undefined) return handler.onResponseEnd?.(controller, trailers);
      const answer = [...held, (to: Dispatcher.DispatchHandler) => to.onResponseEnd?.(controller, trailers)];
      const goOn = async (): Promise<void> => {
        const sendAgain = await again();
        if (sendAgain === undefined) passOn(answer);
        else sendAgain();
      };
      goOn().catch(fail);
    },
    onResponseError: (controller, error) => handler.onResponseError?.(controller, error),
  };
}
