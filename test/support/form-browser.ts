import type { IncomingHttpHeaders } from 'node:http';
import { Agent, buildConnector, request } from 'undici';
import type { IssuedCertificate } from './pki.ts';

export interface Page {
  readonly url: string;
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
  /** The target of a redirect or of an immediate refresh. */
  readonly redirectTo: string | undefined;
}

export interface TlsTrust {
  readonly ca: string;
  readonly certificate?: IssuedCertificate | undefined;
  /** Connects to this port on 127.0.0.1 instead of the host and port of the URL. */
  readonly port?: number;
}

/** A connection pool for one or more browsers. The test that creates it must destroy it. */
export function createAgent({ ca, certificate, port }: TlsTrust): Agent {
  const identity = certificate && { cert: certificate.pem, key: certificate.keyPem };
  const options = { ca, timeout: 30_000, ...identity };
  if (port === undefined) return new Agent({ allowH2: false, connect: options });
  const connect = buildConnector({ ...options, allowH2: false });
  const address = { hostname: '127.0.0.1', port: String(port) };
  return new Agent({
    allowH2: false,
    connect: (target, done) => connect({ ...target, servername: target.hostname, ...address }, done),
  });
}

export interface FormBrowserOptions {
  readonly agent: Agent;
  /** Base for relative URLs. */
  readonly base?: string;
  /** Sent with every request. */
  readonly headers?: Readonly<Record<string, string>>;
}

const ENTITIES: Readonly<Record<string, string>> = { amp: '&', quot: '"', '#39': "'", lt: '<', gt: '>' };
const unescape = (text: string): string =>
  text.replace(/&(amp|quot|#39|lt|gt);/g, (_, name: string) => ENTITIES[name] ?? '');
const attribute = (tag: string, name: string): string | undefined => {
  const value = new RegExp(` ${name}="([^"]*)"`).exec(tag)?.[1];
  return value === undefined ? undefined : unescape(value);
};

/** The markup of each form of a page. */
const findForms = (text: string): readonly string[] =>
  text
    .split(/<form(?= )/)
    .slice(1)
    .map((part) => part.slice(0, part.indexOf('</form>')));

const findForm = (text: string, action: string): string | undefined =>
  findForms(text).find((form) => attribute(form, 'action')?.split('?')[0]?.endsWith(action));

/** The CSRF token of the form with this action; empty if there is none. */
export const formToken = (text: string, action: string): string =>
  / name="form_token" value="([^"]*)"/.exec(findForm(text, action) ?? '')?.[1] ?? '';

/** A browser without scripts: cookies, forms, redirects, and the `Origin` and `Sec-Fetch-*` headers. */
export class FormBrowser {
  /** Cookies by host and port. Browsers ignore the port, but the sites of a test differ in nothing else. */
  readonly jar = new Map<string, ReadonlyMap<string, string>>();
  readonly #options: FormBrowserOptions;
  #currentPage: Page | undefined;

  constructor(options: FormBrowserOptions) {
    this.#options = options;
  }

  /** The `Cookie` header for the base URL. */
  get cookie(): string {
    return this.#cookieFor(new URL(this.#options.base ?? ''));
  }
  set cookie(text: string) {
    const pairs = text
      .split('; ')
      .map((pair) => [pair.slice(0, pair.indexOf('=')), pair.slice(pair.indexOf('=') + 1)] as const);
    this.jar.set(new URL(this.#options.base ?? '').host, new Map(pairs));
  }
  #cookieFor({ host }: URL): string {
    return [...(this.jar.get(host) ?? [])].map((pair) => pair.join('=')).join('; ');
  }

  /** Sends one request without following redirects. */
  async send(
    method: string,
    target: string,
    body?: string,
    headers: Readonly<Record<string, string>> = {},
  ): Promise<Page> {
    const url = new URL(target, this.#options.base);
    const cookie = this.#cookieFor(url);
    const response = await request(url, {
      method,
      dispatcher: this.#options.agent,
      headers: {
        ...(cookie !== '' && { cookie }),
        ...(body !== undefined && { 'content-type': 'application/x-www-form-urlencoded' }),
        'sec-fetch-mode': 'navigate',
        'sec-fetch-dest': 'document',
        ...this.#options.headers,
        ...headers,
      },
      ...(body !== undefined && { body }),
    });
    const text = await response.body.text();
    this.#storeCookies(url, [response.headers['set-cookie'] ?? []].flat());
    const refresh = /http-equiv="refresh" content="0; url=([^"]*)"/.exec(text)?.[1];
    const location = response.headers['location'] ?? (refresh && unescape(refresh));
    const page: Page = {
      url: url.href,
      status: response.statusCode,
      headers: response.headers,
      text,
      redirectTo: typeof location === 'string' ? new URL(location, url).href : undefined,
    };
    if (page.headers.location === undefined) this.#currentPage = page;
    return page;
  }

  #storeCookies({ host }: URL, lines: readonly string[]): void {
    const cookies = new Map(this.jar.get(host));
    for (const line of lines) {
      const [, name = '', value = ''] = /^([^=]+)=([^;]*)/.exec(line) ?? [];
      if (value === '' || /max-age=0/i.test(line)) cookies.delete(name);
      else cookies.set(name, value);
    }
    this.jar.set(host, cookies);
  }

  get(target: string, headers?: Readonly<Record<string, string>>): Promise<Page> {
    return this.send('GET', target, undefined, headers);
  }

  /** Follows redirects until there are no more or `isEnd` accepts the next URL. */
  async follow(page: Page, isEnd: (url: string) => boolean = () => false): Promise<Page> {
    let current = page;
    for (let steps = 0; current.redirectTo !== undefined && !isEnd(current.redirectTo); steps += 1) {
      if (steps > 20) throw new Error(`too many redirects, at ${current.redirectTo}`);
      current = await this.get(current.redirectTo);
    }
    return current;
  }

  async open(target: string): Promise<Page> {
    return this.follow(await this.get(target));
  }

  /** Submits the form whose action ends with `action`, including hidden and prefilled fields. */
  post(action: string, fields: Readonly<Record<string, string>> = {}): Promise<Page> {
    const { url = '', status, text = '' } = this.#currentPage ?? {};
    const form = findForm(text, action);
    if (form === undefined) throw new Error(`no form for "${action}" on the page: ${status} ${text}`);
    const body = new URLSearchParams();
    for (const [input] of form.matchAll(/<input [^>]*>/g)) {
      const name = attribute(input, 'name');
      if (name !== undefined) body.set(name, attribute(input, 'value') ?? '');
    }
    for (const [name, value] of Object.entries(fields)) body.set(name, value);
    const actionUrl = new URL(attribute(form, 'action') ?? '', url);
    const { origin } = new URL(url);
    return this.send('POST', actionUrl.href, body.toString(), {
      origin,
      'sec-fetch-site': origin === actionUrl.origin ? 'same-origin' : 'cross-site',
    });
  }

  async submit(action: string, fields?: Readonly<Record<string, string>>): Promise<Page> {
    return this.follow(await this.post(action, fields));
  }
}
