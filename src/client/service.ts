import type { Agent, Dispatcher } from 'undici';
import { NO_CODING, readText } from '../http/read-response.ts';
import { isJsonObject, parseStrictJson } from '../http/strict-json.ts';
import type { TroubleTerms } from './connection-trouble.ts';
import { ServiceRefusal, TemporaryTrouble } from './errors.ts';
import { printable } from './printable.ts';

export interface ServiceOptions {
  /** Where gatehouse is, such as https://api.example.test */
  readonly url: string | URL;
  /** Where its token service is below that. */
  readonly servicePath?: string | undefined;
  /** The CA to trust, PEM; left out, those of the runtime. */
  readonly ca?: string | Buffer | undefined;
  readonly certificate?: { readonly cert: string | Buffer; readonly key: string | Buffer } | undefined;
  /** Milliseconds for one answer. */
  readonly timeout?: number | undefined;
  /** How errors name the setting of the CA: commands have an option of another name. */
  readonly caBy?: string | undefined;
}

/** The token service, seen from a client: one call for each of its routes. */
export interface TokenService {
  readonly url: URL;
  /** Its whole address: what a grant belongs to. */
  readonly base: string;
  /** For calls of the API too: the same CA, the same certificate. */
  agent(): Promise<Agent>;
  post(route: string, body: Readonly<Record<string, string>>, withinMs?: number): Promise<Answer>;
  get(route: string, accessToken: string): Promise<Answer>;
  close(): Promise<void>;
}

export type Answer = Readonly<Record<string, unknown>>;

const TIMEOUT_MS = 15_000;
const MAX_BYTES = 64 * 1_024;
const MAX_HEADERS = 16 * 1_024;

export function tokenService(options: ServiceOptions): TokenService {
  const url = baseOf(options.url);
  const base = new URL(`${url.pathname.replace(/\/$/, '')}${options.servicePath ?? '/authsvc'}/`, url);
  if (base.origin !== url.origin) throw new TypeError(`${url.origin}: the service path leads elsewhere`);
  const timeout = options.timeout ?? TIMEOUT_MS;
  // Loaded with the first call: whoever has a good token at hand does not wait for it.
  const open = async (): Promise<Agent> => {
    const { Agent } = await import('undici');
    if (options.certificate !== undefined)
      (await import('./connection-trouble.ts')).checkPair(options.certificate);
    return new Agent({
      allowH2: false,
      maxHeaderSize: MAX_HEADERS,
      connect: {
        timeout,
        // Named, so that no environment variable can turn it off.
        rejectUnauthorized: true,
        ...(options.ca !== undefined && { ca: options.ca }),
        ...(options.certificate !== undefined && {
          cert: options.certificate.cert,
          key: options.certificate.key,
        }),
      },
    });
  };
  let opened: Promise<Agent> | undefined;
  const agent = (): Promise<Agent> => (opened ??= open());
  const terms: TroubleTerms = {
    url,
    caBy: options.caBy ?? 'the option ca',
    caGiven: options.ca !== undefined,
  };

  const ask = async (
    route: string,
    call: Pick<Dispatcher.RequestOptions, 'method'> & {
      readonly headers: Readonly<Record<string, string>>;
      readonly body?: string;
    },
    withinMs = timeout,
  ): Promise<Answer> => {
    let status: number;
    let retryAfter: number | undefined;
    let text: string;
    try {
      const [{ request }, dispatcher] = await Promise.all([import('undici'), agent()]);
      const reply = await request(new URL(route, base), {
        ...call,
        headers: { ...call.headers, ...NO_CODING },
        dispatcher,
        signal: AbortSignal.timeout(withinMs),
      });
      status = reply.statusCode;
      retryAfter = secondsOf(reply.headers['retry-after']);
      text = await readText(reply, MAX_BYTES);
    } catch (error) {
      const { connectionTrouble } = await import('./connection-trouble.ts');
      const { words, isOurs } = connectionTrouble(error, terms);
      throw new TemporaryTrouble(`${url.origin} ${words}`, { cause: error, isOurs });
    }
    return judge(url, status, retryAfter, text);
  };

  return {
    url,
    base: base.href,
    agent,
    post: (route, body, withinMs) =>
      ask(
        route,
        {
          method: 'POST',
          headers: { 'content-type': 'application/json', accept: 'application/json' },
          body: JSON.stringify(body),
        },
        withinMs,
      ),
    get: (route, accessToken) =>
      ask(route, {
        method: 'GET',
        headers: { authorization: `Bearer ${accessToken}`, accept: 'application/json' },
      }),
    close: async () => (await opened?.catch(() => undefined))?.close(),
  };
}

/** An address that tokens may be sent to. */
export function baseOf(given: string | URL): URL {
  const url = new URL(given);
  if (url.protocol !== 'https:' && !isLoopback(url))
    throw new TypeError(`${url.origin}: tokens are sent over https only (http is for loopback addresses)`);
  if (url.username !== '' || url.password !== '' || url.search !== '' || url.hash !== '')
    throw new TypeError(`${url.origin}: an address without user, query and fragment is needed`);
  return url;
}

const isLoopback = ({ protocol, hostname }: URL): boolean =>
  protocol === 'http:' && /^(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])$/.test(hostname);

/** A refusal counts only when it was the service's own word: not an error page of something in between. */
function judge(url: URL, status: number, retryAfter: number | undefined, text: string): Answer {
  const answer = objectIn(text);
  if (status === 200 && answer !== undefined) return answer;
  const code = answer === undefined ? '' : wordIn(answer, 'Error', 'error');
  const words = answer === undefined ? '' : wordIn(answer, 'Error_description', 'error_description');
  // The service answers its own failure with 400 and Retry-After where its specification knows no other status.
  const ours = status >= 500 || status === 429 || (code === 'invalid_request' && retryAfter !== undefined);
  if (ours || code === '')
    throw new TemporaryTrouble(`${url.origin} answered ${status}${words === '' ? '' : `: ${words}`}`, {
      retryAfter,
    });
  throw new ServiceRefusal(code, words, status);
}

function objectIn(text: string): Answer | undefined {
  try {
    const value = parseStrictJson(text);
    return isJsonObject(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

/** They become part of errors, and those are printed. */
const wordIn = (answer: Answer, ...names: readonly string[]): string => {
  const found = names.map((name) => answer[name]).find((value) => typeof value === 'string') ?? '';
  return printable(found.slice(0, 500));
};

const secondsOf = (header: string | string[] | undefined): number | undefined =>
  typeof header === 'string' && /^\d{1,6}$/.test(header) ? Number(header) : undefined;
