import { Agent, fetch, type Response } from 'undici';

/** A browser as far as several sites see it: their cookies, their redirects, their forms. Runs no script. */
export interface Visitor {
  /** Cookies by host and name. */
  readonly jar: Map<string, Map<string, string>>;
  open(
    url: string,
    more?: { readonly method?: string; readonly form?: Record<string, string> },
  ): Promise<Page>;
  /** Follows redirects until there are none, or until one leads to an address that `until` knows. */
  follow(page: Page, until?: (url: string) => boolean): Promise<Page>;
  /** Fills in the form with this in its opening tag. */
  submit(page: Page, which: string, fields?: Record<string, string>): Promise<Page>;
}

export interface Page {
  readonly url: string;
  readonly status: number;
  readonly text: string;
  readonly headers: Response['headers'];
  /** Where a redirect or a page that leads on by itself leads. */
  readonly leadsTo: string | undefined;
}

const unescape = (text: string): string =>
  text
    .replaceAll('&amp;', '&')
    .replaceAll('&quot;', '"')
    .replaceAll('&#39;', "'")
    .replaceAll('&lt;', '<')
    .replaceAll('&gt;', '>');

export function visitor(ca: string): Visitor {
  const agent = new Agent({ allowH2: false, connect: { ca } });
  const jar = new Map<string, Map<string, string>>();
  const cookiesOf = (host: string): Map<string, string> => {
    const known = jar.get(host) ?? new Map<string, string>();
    jar.set(host, known);
    return known;
  };

  const one: Visitor = {
    jar,
    async open(url, { method, form } = {}) {
      const at = new URL(url);
      // Cookies do not know ports; these tests' sites are told apart by them all the same.
      const cookies = cookiesOf(at.host);
      const response = await fetch(url, {
        method: method ?? (form === undefined ? 'GET' : 'POST'),
        redirect: 'manual',
        dispatcher: agent,
        headers: {
          cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join('; '),
          ...(form && { 'content-type': 'application/x-www-form-urlencoded', origin: at.origin }),
        },
        ...(form && { body: new URLSearchParams(form).toString() }),
      });
      for (const line of response.headers.getSetCookie()) {
        const [pair = ''] = line.split(';', 1);
        const [name = '', ...rest] = pair.split('=');
        const value = rest.join('=');
        if (value === '' || /max-age=0/i.test(line)) cookies.delete(name);
        else cookies.set(name, value);
      }
      const text = await response.text();
      const location = response.headers.get('location');
      const refresh = /http-equiv="refresh" content="0; url=([^"]*)"/.exec(text)?.[1];
      const to = location ?? (refresh && unescape(refresh));
      return {
        url,
        status: response.status,
        text,
        headers: response.headers,
        leadsTo: to ? new URL(to, url).href : undefined,
      };
    },
    async follow(page, until = () => false) {
      let here = page;
      for (let steps = 0; here.leadsTo !== undefined && steps < 20; steps += 1) {
        if (until(here.leadsTo)) return here;
        here = await one.open(here.leadsTo);
      }
      return here;
    },
    async submit(page, which, fields = {}) {
      const form = page.text.split('<form').find((part) => part.includes(which));
      if (form === undefined) throw new Error(`no form ${which} in:\n${page.text}`);
      const action = unescape(/action="([^"]*)"/.exec(form)?.[1] ?? page.url);
      const body = form.split('</form>')[0] ?? '';
      const hidden = [...body.matchAll(/<input type="hidden" name="([^"]*)" value="([^"]*)"/g)].map(
        ([, name = '', value = '']) => [name, unescape(value)] as const,
      );
      return one.open(new URL(action, page.url).href, { form: { ...Object.fromEntries(hidden), ...fields } });
    },
  };
  return one;
}
