import {
  type AdminCredentials,
  type AdminIdentity,
  authenticateCertificate,
  authenticateToken,
  findToken,
} from '../admin/authenticate.ts';
import { createExposedTokenReporter } from '../admin/listener.ts';
import type { Reply } from '../http/reply.ts';
import { createRateLimiter, getRateLimitKey } from '../lib/rate-limiter.ts';
import type { Logger } from '../observability/logger.ts';
import type { FormFields } from '../pages/form.ts';
import { html, type Markup, sanitizeText } from '../pages/views/html.ts';
import { type ConsolePath, urlFor } from './context.ts';
import { type BrowserRequest, ConsoleSessions, formatSessionCookie, getReturnUrl, parseReturnUrl } from './sessions.ts';
import { createPageReply, createReply, createRetryHeaders } from './views/layout.ts';

export interface ConsoleSignInOptions {
  readonly credentials: AdminCredentials;
  /** Are client certificates requested in the handshake? */
  readonly acceptsCertificates: boolean;
  /** Seconds. */
  readonly sessionLifetime: number;
  readonly log: Logger;
  readonly now: () => number;
}

/** Wrong tokens within these rates get an audit event each. */
const FAILURE_RATES = {
  byAddress: { burst: 10, perSecond: 1 / 6 },
  total: { burst: 100, perSecond: 1 },
} as const;

/** Who is signed in: the sign-in page, its forms, and the sessions. */
export class ConsoleSignIn {
  readonly #options: ConsoleSignInOptions;
  readonly #sessions: ConsoleSessions;
  readonly #failuresByAddress;
  readonly #failuresInTotal;
  readonly #reportExposedToken: (file: string) => void;
  /** Forms that need no session. */
  readonly #forms: ReadonlyMap<ConsolePath, (received: BrowserRequest, fields: FormFields) => Reply> = new Map([
    ['/sign-in', (received, fields) => this.#signInWithToken(received, fields)],
    ['/certificate', (received, fields) => this.#signInWithCertificate(received, fields)],
    ['/sign-out', (received) => this.#signOut(received)],
  ]);

  constructor(options: ConsoleSignInOptions) {
    const { sessionLifetime: lifetime, log, now } = options;
    this.#options = options;
    this.#sessions = new ConsoleSessions({ lifetime, now });
    this.#failuresByAddress = createRateLimiter(FAILURE_RATES.byAddress, now);
    this.#failuresInTotal = createRateLimiter(FAILURE_RATES.total, now);
    this.#reportExposedToken = createExposedTokenReporter(log);
  }

  /** The credential is checked for every request: it may have been replaced since the sign-in. */
  findIdentity(received: BrowserRequest): AdminIdentity | undefined {
    const { credentials } = this.#options;
    const credential = received.cookie === undefined ? undefined : this.#sessions.find(received.cookie);
    if (credential === undefined) return undefined;
    const certificate = authenticateCertificate(received, credentials);
    if (certificate?.credential === credential) return certificate;
    return findToken(credential, credentials, this.#reportExposedToken);
  }

  renderFormToken(cookie: string, path: ConsolePath, subject?: string): Markup {
    const token = this.#sessions.createFormToken(cookie, path, subject);
    return html`<input type="hidden" name="form_token" value="${token}">`;
  }

  isValidFormToken({ cookie, path }: BrowserRequest, fields: FormFields, subject: string | undefined): boolean {
    const token = fields.get('form_token') ?? '';
    return cookie !== undefined && this.#sessions.isValidFormToken(token, cookie, path, subject);
  }

  hasForm(path: ConsolePath): boolean {
    return this.#forms.has(path);
  }

  /** Handles a form whose token is valid. */
  submit(received: BrowserRequest, fields: FormFields): Reply | undefined {
    return this.#forms.get(received.path)?.(received, fields);
  }

  showPage(received: BrowserRequest, status = 200, problem?: string, headers?: Reply['headers']): Reply {
    const { credentials, acceptsCertificates, sessionLifetime } = this.#options;
    const cookie = received.cookie ?? this.#sessions.createCookieValue();
    const next = getReturnUrl(received);
    const renderHidden = (path: ConsolePath): Markup =>
      html`${this.renderFormToken(cookie, path)}<input type="hidden" name="next" value="${next}">`;
    const certificate = authenticateCertificate(received, credentials)?.name;
    const body = html`<div class="card narrow">
<h1>Sign in</h1>
${problem !== undefined && html`<p class="note bad" role="alert" id="problem">${problem}</p>`}
${
  certificate !== undefined &&
  html`<form method="post" action="${urlFor('/certificate')}">
${renderHidden('/certificate')}<p>Your browser presented the ${sanitizeText(certificate, 120)}.</p>
<button type="submit">Sign in with this certificate</button>
</form>
<p class="or">or</p>`
}
<form method="post" action="${urlFor('/sign-in')}">
${renderHidden('/sign-in')}<label for="token">Admin token</label>
<input type="password" id="token" name="token" autocomplete="off" autofocus spellcheck="false" required maxlength="4096" aria-describedby="${problem !== undefined && 'problem '}hint"${problem !== undefined && { markup: ' aria-invalid="true"' }}>
<p class="hint" id="hint">The content of <code>admin.tokenFile</code>, or of <code>admin.readOnlyTokenFile</code> to view only.</p>
<button type="submit"${certificate !== undefined && { markup: ' class="second"' }}>Sign in</button>
</form>
${acceptsCertificates && certificate === undefined && html`<p class="hint">To sign in without the token, open this page with a client certificate of <code>admin.tls.clientCa</code>.</p>`}
</div>`;
    return createPageReply(
      { title: 'Sign in', status, body },
      {
        ...(received.cookie === undefined && { 'set-cookie': formatSessionCookie(received, cookie, sessionLifetime) }),
        ...headers,
      },
    );
  }

  #signInWithToken(received: BrowserRequest, fields: FormFields): Reply {
    const { credentials, log } = this.#options;
    const token = (fields.get('token') ?? '').trim();
    const identity = authenticateToken(token, credentials, this.#reportExposedToken);
    // Also beyond the limits: anyone who reaches the console could keep operators out otherwise, since the users of one
    // tunnel or pod share an address. Nor would it stop guessing: the admin API has no limit.
    if (identity !== undefined) return this.#start(received, identity, fields);
    const wait = Math.max(this.#failuresByAddress.take(getRateLimitKey(received.peer)), this.#failuresInTotal.take(''));
    if (wait > 0)
      return this.showPage(
        received,
        429,
        'Too many wrong tokens. The correct token is still accepted.',
        createRetryHeaders(wait),
      );
    log.audit('admin_sign_in_failed', { from: received.peer });
    return this.showPage(received, 401, 'This is not the admin token, or other users can read its file.');
  }

  #signInWithCertificate(received: BrowserRequest, fields: FormFields): Reply {
    const identity = authenticateCertificate(received, this.#options.credentials);
    return identity === undefined
      ? this.showPage(received, 401, 'The browser presented no certificate issued by admin.tls.clientCa.')
      : this.#start(received, identity, fields);
  }

  /** With a new cookie: the previous one may have been chosen by someone else (session fixation). */
  #start(received: BrowserRequest, identity: AdminIdentity, fields: FormFields): Reply {
    if (received.cookie !== undefined) this.#sessions.end(received.cookie);
    this.#recordAction('console_sign_in', received, identity);
    const cookie = this.#sessions.start(identity.credential);
    return createReply(303, {
      location: parseReturnUrl(fields.get('next')),
      'set-cookie': formatSessionCookie(received, cookie, this.#options.sessionLifetime),
    });
  }

  #recordAction(act: string, { peer }: BrowserRequest, { name, role }: AdminIdentity): void {
    this.#options.log.audit('admin_action', { act, by: name, role, from: peer });
  }

  #signOut(received: BrowserRequest): Reply {
    const identity = this.findIdentity(received);
    if (received.cookie !== undefined) this.#sessions.end(received.cookie);
    if (identity !== undefined) this.#recordAction('console_sign_out', received, identity);
    return createReply(303, { location: urlFor('/sign-in'), 'set-cookie': formatSessionCookie(received, '', 0) });
  }
}
