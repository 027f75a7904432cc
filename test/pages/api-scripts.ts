import { createServer } from 'node:http';
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect } from 'vitest';
import { type BrowserWindow, openChromium, openWindow } from '../support/chromium.ts';
import { getHeading, signIn, submitUserCode } from '../support/page-states.ts';
import { BASE, type PagesHarness, type PendingRequest, startPagesHarness } from '../support/pages-harness.ts';
import { listenTcp, type TcpServer } from '../support/tcp-server.ts';
import { until } from '../support/until.ts';

const WORKER = `addEventListener('install', () => skipWaiting());
addEventListener('activate', (event) => event.waitUntil(clients.claim()));
addEventListener('fetch', (event) => event.respondWith(fetch(event.request).then(async (response) => {
  const copy = await response.clone().text();
  for (const client of await clients.matchAll({ includeUncontrolled: true })) client.postMessage({ url: event.request.url, copy });
  return response;
})));`;

/** An API that serves documents and scripts. `?coop` and `?coep` set the corresponding headers. */
const listen = (): Promise<TcpServer> =>
  listenTcp(
    createServer((request, response) => {
      const { pathname, searchParams } = new URL(request.url ?? '', 'http://api');
      const isScript = pathname.endsWith('.js');
      response.writeHead(200, {
        'content-type': isScript ? 'text/javascript' : 'text/html',
        'service-worker-allowed': '/',
        ...(searchParams.has('coop') && { 'cross-origin-opener-policy': 'same-origin' }),
        ...(searchParams.has('coep') && { 'cross-origin-embedder-policy': 'require-corp' }),
      });
      response.end(isScript ? WORKER : '<!doctype html><title>API</title><h1>API</h1>');
    }),
  );

export interface AttackSetup {
  readonly pages: PagesHarness;
  /** Origin of the pages. */
  readonly own: string;
  readonly victim: Page;
  /** Serves the pages on their own host, on the same site as the API. */
  readonly separate: () => Promise<void>;
  /** Opens a document of the API in another tab of the same browser. */
  readonly openApi: (query?: string) => Promise<Page>;
  /** Signs in and opens the review page. */
  readonly reviewing: () => Promise<PendingRequest>;
}

/** A gateway in front of an API that serves scripts, and a browser that resolves their host names. */
export function startAttackSetup(): () => AttackSetup {
  let upstream: TcpServer;
  let pages: PagesHarness;
  let browser: Browser;
  let window: BrowserWindow;
  let attack: AttackSetup;
  beforeAll(async () => {
    upstream = await listen();
    [browser, pages] = await Promise.all([
      // Service workers need a valid certificate or a browser that ignores errors.
      openChromium('--ignore-certificate-errors', '--host-resolver-rules=MAP *.example.test 127.0.0.1'),
      startPagesHarness((settings) => ({
        ...settings,
        publicUrl: `https://api.example.test:${new URL(settings.publicUrl ?? '').port}`,
        upstreams: { default: { url: `http://127.0.0.1:${upstream.port}` } },
        routes: [{ path: '/app/**', public: true }],
      })),
    ]);
  });
  afterAll(async () => {
    await browser?.close();
    await pages?.close();
    await upstream?.close();
  });
  beforeEach(async () => {
    await pages.reset();
    window = await openWindow(browser);
    const { page: victim, context } = window;
    const settings = () => pages.gateway.server.settings();
    attack = {
      pages,
      victim,
      get own() {
        return settings().pages.url ?? settings().publicUrl;
      },
      separate: () =>
        pages.reconfigure((current) => ({
          ...current,
          pages: { url: (current.publicUrl ?? '').replace('//api.', '//login.') },
        })),
      async openApi(query = '') {
        const tab = await context.newPage();
        await tab.goto(`${settings().publicUrl}/app/${query}`);
        expect(await getHeading(tab)).toBe('API');
        return tab;
      },
      async reviewing() {
        const pending = await pages.requestCodes();
        const stage = { pages: { ...pages, url: attack.own }, page: victim };
        await submitUserCode(stage, pending.user_code);
        await signIn(stage);
        expect(await getHeading(victim)).toBe('Approve this request?');
        return pending;
      },
    };
  });
  afterEach(() => window.close());
  return () => attack;
}

/** Attacks by scripts in a document of the API, and the result of each. */
export async function runScripts(page: Page, own: string): Promise<Readonly<Record<string, string>>> {
  const url = `${own}${BASE}`;
  const results = {
    fetch: await page.evaluate(tryFetch, url),
    XMLHttpRequest: await page.evaluate(tryXmlHttpRequest, url),
    iframe: await page.evaluate(tryFrame, { url: `${url}/review`, element: 'iframe' }),
    object: await page.evaluate(tryFrame, { url: `${url}/review`, element: 'object' }),
    embed: await page.evaluate(tryFrame, { url: `${url}/review`, element: 'embed' }),
  };
  // Must be last, because it navigates away.
  const sent = page.waitForResponse(`${url}/approve`);
  await page.evaluate(submitForm, `${url}/approve`);
  return { ...results, form: String((await sent).status()) };
}

// The functions below run in the browser and use DOM APIs that Node's types lack.
interface Dom {
  querySelector(selector: string): { value: string; click(): void; submit(): void } | null;
}
interface Element {
  src: string;
  data: string;
  method: string;
  action: string;
  contentDocument: Dom | null;
  addEventListener(event: string, listener: () => void): void;
  submit(): void;
}
interface BrowserGlobals {
  readonly document: Dom & {
    createElement(name: string): Element;
    readonly body: { append(element: Element): void };
  };
}

async function tryFetch(base: string): Promise<string> {
  try {
    const review = await fetch(`${base}/review`, { credentials: 'include' });
    const token = / action="[^"]*\/approve"><input[^>]* value="([^"]+)"/.exec(await review.text())?.[1];
    const body = new URLSearchParams({ form_token: token ?? '' });
    const { status } = await fetch(`${base}/approve`, { method: 'POST', body, credentials: 'include' });
    return `${review.status} ${token === undefined ? 'no token' : 'token'} ${status}`;
  } catch (error) {
    return String(error);
  }
}

function tryXmlHttpRequest(base: string): Promise<string> {
  const { XMLHttpRequest } = globalThis as unknown as {
    XMLHttpRequest: new () => {
      status: number;
      responseText: string;
      withCredentials: boolean;
      onloadend: () => void;
      open(method: string, url: string): void;
      setRequestHeader(name: string, value: string): void;
      send(body?: string): void;
    };
  };
  const send = (method: string, url: string, body?: string): Promise<{ status: number; text: string }> =>
    new Promise((resolve) => {
      const request = new XMLHttpRequest();
      request.open(method, url);
      request.withCredentials = true;
      if (body !== undefined) request.setRequestHeader('content-type', 'application/x-www-form-urlencoded');
      request.onloadend = () => resolve({ status: request.status, text: request.responseText });
      request.send(body);
    });
  return send('GET', `${base}/review`).then(async ({ status, text }) => {
    const token = / action="[^"]*\/approve"><input[^>]* value="([^"]+)"/.exec(text)?.[1];
    const sent = await send('POST', `${base}/approve`, `form_token=${token ?? ''}`);
    return `${status} ${token === undefined ? 'no token' : 'token'} ${sent.status}`;
  });
}

function tryFrame({ url, element }: { url: string; element: string }): Promise<string> {
  const { document } = globalThis as unknown as BrowserGlobals;
  return new Promise((resolve) => {
    const frame = document.createElement(element);
    const look = (): void => {
      let found = 'nothing';
      try {
        const button = frame.contentDocument?.querySelector('form[action$="/approve"] button');
        button?.click();
        if (button) found = 'clicked';
      } catch (error) {
        found = String(error);
      }
      resolve(found);
    };
    frame.addEventListener('load', look);
    frame.addEventListener('error', look);
    if (element === 'object') frame.data = url;
    else frame.src = url;
    document.body.append(frame);
  });
}

function submitForm(action: string): void {
  const { document } = globalThis as unknown as BrowserGlobals;
  const form = document.createElement('form');
  form.method = 'post';
  form.action = action;
  document.body.append(form);
  form.submit();
}

/** Opens the review page in a popup from a script, and tries to click Approve in it. */
export async function openAndClick(page: Page, own: string): Promise<string> {
  const popupOpened = page.context().waitForEvent('page');
  await page.evaluate((url) => {
    const scope = globalThis as unknown as { open(url: string): unknown; opened: unknown };
    scope.opened = scope.open(url);
  }, `${own}${BASE}/review`);
  const popup = await popupOpened;
  expect(await getHeading(popup)).toBe('Approve this request?');
  const tryClick = (): Promise<string> =>
    page.evaluate(() => {
      const { opened: window } = globalThis as unknown as {
        opened: { closed: boolean; document: Dom } | null;
      };
      if (window === null || window.closed) return 'severed';
      try {
        const button = window.document.querySelector('form[action$="/approve"] button');
        button?.click();
        return button ? 'clicked' : 'nothing';
      } catch {
        return 'blocked';
      }
    });
  // The opener's process is notified later than the popup that they no longer share a browsing context group. Until then,
  // it may still access the empty document that the popup had first.
  const outcome = await until('the opener has clicked or lost access to the popup', async () => {
    const attempt = await tryClick();
    return (attempt === 'clicked' || attempt === 'severed') && attempt;
  });
  if (outcome === 'clicked') await popup.getByRole('heading', { name: 'Approved' }).waitFor();
  await popup.close();
  return outcome;
}

/** Registers a service worker for the entire origin, which then handles every navigation and the requests of this page. */
export const registerWorker = (page: Page): Promise<string> =>
  page.evaluate(async () => {
    const { navigator } = globalThis as unknown as {
      navigator: {
        serviceWorker: {
          readonly controller: unknown;
          addEventListener(name: 'controllerchange', listener: () => void): void;
          register(url: string, options: { scope: string }): Promise<unknown>;
        };
      };
    };
    try {
      const { serviceWorker } = navigator;
      const controlled = new Promise<void>((resolve) => serviceWorker.addEventListener('controllerchange', resolve));
      await serviceWorker.register('/app/worker.js', { scope: '/' });
      if (serviceWorker.controller === null) await controlled;
      return 'registered';
    } catch (error) {
      return String(error);
    }
  });
