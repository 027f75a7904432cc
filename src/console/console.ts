import type { IncomingMessage } from 'node:http';
import type { AdminIdentity } from '../admin/authenticate.ts';
import type { HandleConsole } from '../admin/listener.ts';
import { readMessageBody } from '../admin/node-request.ts';
import { singleFlight } from '../lib/promises.ts';
import { errorFields } from '../observability/logger.ts';
import { isNavigation } from '../pages/fetch-metadata.ts';
import { type FormFields, readForm } from '../pages/form.ts';
import { Fault } from '../ports/fault.ts';
import {
  type BrowserRequest,
  type BrowserRequestRefusal,
  getReturnUrl,
  isFromConsole,
  readBrowserRequest,
} from './browser-request.ts';
import {
  type ConsoleDeps,
  type ConsoleFormHandler,
  type ConsoleHandler,
  type ConsolePath,
  type ConsoleRequest,
  type ConsoleResponse,
  urlFor,
} from './context.ts';
import { showAudit } from './handlers/audit.ts';
import { showConfiguration } from './handlers/configuration.ts';
import { showExplanation } from './handlers/explain.ts';
import { confirmRevocation, getRevocationSubject, revoke, showGrant, showGrants } from './handlers/grants.ts';
import { showFigures, showOverview } from './handlers/overview.ts';
import { showRefusal, showRefusals } from './handlers/refusals.ts';
import { History } from './history.ts';
import { type ConsoleReply, sendReply } from './responses.ts';
import { ConsoleSignIn, type ConsoleSignInOptions } from './sign-in.ts';
import { noticePage, renderPage } from './views/layout.ts';
import { SCRIPT } from './views/script.ts';
import { createStylesheet } from './views/style.ts';

interface ConsoleOptions extends ConsoleDeps, ConsoleSignInOptions {
  /** The accent colour of the pages. */
  readonly accent: string | undefined;
}

interface Route {
  readonly get?: ConsoleHandler;
  /** For operators only. */
  readonly post?: ConsoleFormHandler;
  /** What a form is about: its token is valid for nothing else. */
  readonly getSubject?: (fields: FormFields) => string;
  /** Fetched by the script: neither a navigation nor an activity of the operator. */
  readonly isBackground?: true;
}

/** Pages of signed-in operators and viewers. */
const ROUTES: ReadonlyMap<ConsolePath, Route> = new Map<ConsolePath, Route>([
  ['', { get: showOverview }],
  ['/figures', { get: showFigures, isBackground: true }],
  ['/grants', { get: showGrants }],
  ['/grant', { get: showGrant }],
  ['/revoke', { get: confirmRevocation, post: revoke, getSubject: getRevocationSubject }],
  ['/refusals', { get: showRefusals }],
  ['/refusal', { get: showRefusal }],
  ['/explain', { get: showExplanation }],
  ['/configuration', { get: showConfiguration }],
  ['/audit', { get: showAudit }],
]);

const BODY_TIMEOUT_SECONDS = 5;
const SAMPLE_INTERVAL_MS = 10_000;
/** Bounds how often viewers cause a sample. */
const MIN_SAMPLE_SECONDS = 4;

/** The web console of the admin listener. */
export class Console {
  readonly #options: ConsoleOptions;
  readonly #signIn: ConsoleSignIn;
  readonly #history = new History();
  readonly #assets: ReadonlyMap<string, Pick<ConsoleReply, 'type' | 'text'>>;
  readonly #sample: (isWatched: boolean) => Promise<void>;
  readonly #timer: NodeJS.Timeout;

  constructor(options: ConsoleOptions) {
    const { getSnapshot, now } = options;
    this.#options = options;
    this.#signIn = new ConsoleSignIn(options);
    this.#assets = new Map([
      ['/console.css', { type: 'text/css', text: createStylesheet(options.accent) }],
      ['/console.js', { type: 'text/javascript', text: SCRIPT }],
    ]);
    this.#sample = singleFlight(async (isWatched: boolean) => this.#history.add(await getSnapshot(isWatched), now()));
    this.#sampleInBackground();
    this.#timer = setInterval(() => this.#sampleInBackground(), SAMPLE_INTERVAL_MS).unref();
  }

  readonly handle: HandleConsole = async (request, response, runChecks) => {
    const reply = await this.#respondOrReport(request, runChecks);
    sendReply(request, response, reply);
  };

  close(): void {
    clearInterval(this.#timer);
  }

  async #sampleIfDue(isWatched: boolean): Promise<void> {
    const { sampledAt = Number.NEGATIVE_INFINITY } = this.#history;
    if (Math.abs(this.#options.now() - sampledAt) >= MIN_SAMPLE_SECONDS) await this.#sample(isWatched);
  }

  #sampleInBackground(): void {
    this.#sampleIfDue(false).catch((error: unknown) => this.#options.log.error('console_failed', errorFields(error)));
  }

  async #respondOrReport(request: IncomingMessage, runChecks: ConsoleRequest['runChecks']): Promise<ConsoleReply> {
    try {
      const received = readBrowserRequest(request);
      if ('refused' in received) return REFUSALS[received.refused];
      return await this.#respond(received, runChecks);
    } catch (error) {
      this.#options.log.error('console_failed', errorFields(error));
      if (!(error instanceof Fault))
        return createNotice(500, 'Internal error', 'The log has the details: console_failed.');
      const text = 'The store or a directory is unreachable. Try again.';
      return { ...createNotice(503, 'Temporarily unavailable', text), retryAfter: error.retryAfter };
    }
  }

  async #respond(received: BrowserRequest, runChecks: ConsoleRequest['runChecks']): Promise<ConsoleReply> {
    const { path, method, request } = received;
    const asset = this.#assets.get(path);
    if (asset !== undefined) return isFromConsole(received) ? { status: 200, ...asset } : { status: 403 };
    const route = ROUTES.get(path) ?? {};
    const canGet = route.get !== undefined || path === '/sign-in';
    const canPost = route.post !== undefined || this.#signIn.hasForm(path);
    const isBackground = route.isBackground === true;
    if (!canGet && !canPost) return createNotice(404, 'Page not found', 'The console has no such page.');
    if (isBackground ? !isFromConsole(received) : !isNavigation(request.headers))
      return createNotice(403, 'Request not accepted', 'Open the console in its own browser window.');
    if (method === 'POST' && canPost) return this.#submitForm(received, route, runChecks);
    if ((method !== 'GET' && method !== 'HEAD') || !canGet) {
      const allow = [canGet && 'GET, HEAD', canPost && 'POST'].filter(Boolean).join(', ');
      return {
        ...createNotice(405, 'Method not allowed', 'Use the links and buttons of the console.'),
        allow,
      };
    }
    if (route.get === undefined) return this.#signIn.showPage(received);
    const identity = this.#signIn.findIdentity(received, !isBackground);
    if (identity === undefined)
      return isBackground
        ? { status: 401 }
        : { status: 303, location: urlFor('/sign-in', { next: getReturnUrl(received) }) };
    if (path === '' || isBackground) await this.#sampleIfDue(true);
    const consoleRequest = this.#createRequest(received, identity, runChecks);
    return toReply(consoleRequest, path, await route.get(consoleRequest));
  }

  async #submitForm(
    received: BrowserRequest,
    { post, getSubject }: Route,
    runChecks: ConsoleRequest['runChecks'],
  ): Promise<ConsoleReply> {
    // All browsers send it with forms; a client without it is not one.
    const { request: message, origin } = received;
    if (message.headers.origin === undefined) return FORM_REJECTED;
    const readBody = (maxBytes: number, seconds: number) => readMessageBody(message, maxBytes, seconds);
    const form = await readForm(message, readBody, origin, BODY_TIMEOUT_SECONDS);
    if (form.kind === 'unreadable')
      return createNotice(form.status, 'Form not readable', 'The form is too large or incomplete.');
    if (form.kind === 'rejected') return FORM_REJECTED;
    const { fields } = form;
    if (!this.#signIn.isValidFormToken(received, fields, getSubject?.(fields))) return FORM_REJECTED;
    const signInReply = this.#signIn.submit(received, fields);
    if (signInReply !== undefined) return signInReply;
    const identity = this.#signIn.findIdentity(received, true);
    if (identity === undefined || post === undefined) return { status: 303, location: urlFor('/sign-in') };
    if (identity.role !== 'operator')
      return createNotice(403, 'Read-only access', 'You signed in as a viewer: you cannot revoke grants.');
    const request = this.#createRequest(received, identity, runChecks);
    return toReply(request, received.path, await post(request, fields));
  }

  #createRequest(
    { query, peer, cookie = '' }: BrowserRequest,
    identity: AdminIdentity,
    runChecks: ConsoleRequest['runChecks'],
  ): ConsoleRequest {
    return {
      deps: this.#options,
      identity,
      peer,
      query,
      history: this.#history,
      runChecks,
      renderFormToken: (path, subject) => this.#signIn.renderFormToken(cookie, path, subject),
    };
  }
}

const createNotice = (status: number, title: string, text: string): ConsoleReply => ({
  status,
  type: 'text/html',
  text: renderPage(noticePage(title, text)),
});

const REFUSALS: Readonly<Record<BrowserRequestRefusal, ConsoleReply>> = {
  host_invalid: createNotice(403, 'Host not valid', 'The request names no valid host.'),
  not_encrypted: createNotice(
    403,
    'Connection not encrypted',
    'Without admin.tls, the console is served to connections from the same machine only. Configure admin.tls, or use kubectl port-forward or an SSH tunnel.',
  ),
};

const FORM_REJECTED = createNotice(
  403,
  'Form not accepted',
  'It was not submitted by this console, or the page was open for too long. Open the page again and retry.',
);

function toReply(request: ConsoleRequest, path: ConsolePath, response: ConsoleResponse): ConsoleReply {
  if ('redirect' in response) return { status: 303, location: response.redirect };
  if ('fragment' in response) return { status: 200, type: 'text/html', text: response.fragment.markup };
  return { status: response.status ?? 200, type: 'text/html', text: renderPage(response, { request, path }) };
}
