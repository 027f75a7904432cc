import type { AdminIdentity } from '../admin/authenticate.ts';
import type { HandleConsole } from '../admin/listener.ts';
import type { Reply } from '../http/reply.ts';
import { singleFlight } from '../lib/promises.ts';
import { errorFields } from '../observability/logger.ts';
import { type FormFields, isNavigation, readForm } from '../pages/form.ts';
import { Fault } from '../ports/fault.ts';
import { showAudit } from './audit.ts';
import { showConfiguration } from './configuration.ts';
import {
  type ConsoleDeps,
  type ConsoleFormHandler,
  type ConsoleHandler,
  type ConsolePath,
  type ConsoleRequest,
  type ConsoleResponse,
  urlFor,
} from './context.ts';
import { showExplanation } from './explain.ts';
import { confirmRevocation, getRevocationSubject, READ_ONLY, revoke, showGrant, showGrants } from './grants.ts';
import { History } from './history.ts';
import { showOverview } from './overview.ts';
import { showRefusal, showRefusals } from './refusals.ts';
import { type BrowserRequest, getReturnUrl, isFromConsole, readBrowserRequest } from './sessions.ts';
import { ConsoleSignIn, type ConsoleSignInOptions } from './sign-in.ts';
import { createPageReply, createReply, createRetryHeaders, noticePage, SCRIPT } from './views/layout.ts';
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
}

/** Pages of signed-in operators and viewers. */
const ROUTES: ReadonlyMap<ConsolePath, Route> = new Map<ConsolePath, Route>([
  ['', { get: showOverview }],
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
  readonly #assets: ReadonlyMap<string, Reply>;
  readonly #sample: (isWatched: boolean) => Promise<void>;
  readonly #timer: NodeJS.Timeout;

  constructor(options: ConsoleOptions) {
    const { getSnapshot, now } = options;
    this.#options = options;
    this.#signIn = new ConsoleSignIn(options);
    this.#assets = new Map([
      ['/console.css', createAsset('text/css', createStylesheet(options.accent))],
      ['/console.js', createAsset('text/javascript', SCRIPT)],
    ]);
    this.#sample = singleFlight(async (isWatched: boolean) => this.#history.add(await getSnapshot(isWatched), now()));
    this.#sampleInBackground();
    this.#timer = setInterval(() => this.#sampleInBackground(), SAMPLE_INTERVAL_MS).unref();
  }

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

  readonly handle: HandleConsole = async (request, runChecks) => {
    try {
      const received = readBrowserRequest(request, runChecks);
      return 'refused' in received ? REFUSALS[received.refused] : await this.#respond(received);
    } catch (error) {
      this.#options.log.error('console_failed', errorFields(error));
      if (!(error instanceof Fault))
        return createNotice(500, 'Internal error', 'The log has the details: console_failed.');
      const text = 'The store or a directory is unreachable. Try again.';
      return createNotice(503, 'Temporarily unavailable', text, createRetryHeaders(error.retryAfter));
    }
  };

  async #respond(received: BrowserRequest): Promise<Reply> {
    const { path, method, headers } = received;
    const asset = this.#assets.get(path);
    if (asset !== undefined) return isFromConsole(received) ? asset : createReply(403);
    const route = ROUTES.get(path) ?? {};
    const canGet = route.get !== undefined || path === '/sign-in';
    const canPost = route.post !== undefined || this.#signIn.hasForm(path);
    if (!canGet && !canPost) return createNotice(404, 'Page not found', 'The console has no such page.');
    if (!isNavigation(headers))
      return createNotice(403, 'Request not accepted', 'Open the console in its own browser window.');
    if (method === 'POST' && canPost) return this.#submitForm(received, route);
    if ((method !== 'GET' && method !== 'HEAD') || !canGet) {
      const allow = [canGet && 'GET, HEAD', canPost && 'POST'].filter(Boolean).join(', ');
      return createNotice(405, 'Method not allowed', 'Use the links and buttons of the console.', { allow });
    }
    if (route.get === undefined) return this.#signIn.showPage(received);
    const identity = this.#signIn.findIdentity(received);
    if (identity === undefined)
      return createReply(303, { location: urlFor('/sign-in', { next: getReturnUrl(received) }) });
    if (path === '') await this.#sampleIfDue(true);
    const consoleRequest = this.#createRequest(received, identity);
    return toReply(consoleRequest, path, await route.get(consoleRequest));
  }

  async #submitForm(received: BrowserRequest, { post, getSubject }: Route): Promise<Reply> {
    // All browsers send it with forms; a client without it is not one.
    const { headers, readBody, origin } = received;
    if (headers['origin'] === undefined) return FORM_REJECTED;
    const form = await readForm(received, readBody, origin, BODY_TIMEOUT_SECONDS);
    if (form.kind === 'unreadable')
      return createNotice(form.status, 'Form not readable', 'The form is too large or incomplete.');
    if (form.kind === 'rejected') return FORM_REJECTED;
    const { fields } = form;
    if (!this.#signIn.isValidFormToken(received, fields, getSubject?.(fields))) return FORM_REJECTED;
    const signInReply = this.#signIn.submit(received, fields);
    if (signInReply !== undefined) return signInReply;
    const identity = this.#signIn.findIdentity(received);
    if (identity === undefined || post === undefined) return createReply(303, { location: urlFor('/sign-in') });
    if (identity.role !== 'operator') return createPageReply(READ_ONLY);
    const request = this.#createRequest(received, identity);
    return toReply(request, received.path, await post(request, fields));
  }

  #createRequest({ query, peer, runChecks, cookie = '' }: BrowserRequest, identity: AdminIdentity): ConsoleRequest {
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

const createAsset = (type: string, text: string): Reply =>
  createReply(200, { 'content-type': `${type}; charset=utf-8` }, text);

const createNotice = (status: number, title: string, text: string, headers?: Reply['headers']): Reply =>
  createPageReply(noticePage(title, text, status), headers);

const REFUSALS = {
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

function toReply(request: ConsoleRequest, path: ConsolePath, response: ConsoleResponse): Reply {
  if ('redirect' in response) return createReply(303, { location: response.redirect });
  return createPageReply(response, {}, { request, path });
}
