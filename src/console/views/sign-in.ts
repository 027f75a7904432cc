import { html, type Markup, sanitizeText } from '../../pages/views/html.ts';
import { type ConsolePage, type ConsolePath, urlFor } from '../context.ts';

interface SignInView {
  readonly renderFormToken: (path: ConsolePath) => Markup;
  /** The page to open afterwards. */
  readonly next: string;
  /** Name of the certificate that the browser presented. */
  readonly certificate: string | undefined;
  readonly acceptsCertificates: boolean;
  readonly problem: string | undefined;
}

export function signInPage(view: SignInView): ConsolePage {
  const { renderFormToken, next, certificate, acceptsCertificates, problem } = view;
  const hidden = (path: ConsolePath): Markup =>
    html`${renderFormToken(path)}<input type="hidden" name="next" value="${next}">`;
  return {
    title: 'Sign in',
    body: html`<div class="card narrow">
<h1>Sign in</h1>
${problem !== undefined && html`<p class="note bad" role="alert" id="problem">${problem}</p>`}
${
  certificate !== undefined &&
  html`<form method="post" action="${urlFor('/certificate')}">
${hidden('/certificate')}<p>Your browser presented the ${sanitizeText(certificate, 120)}.</p>
<button type="submit">Sign in with this certificate</button>
</form>
<p class="or">or</p>`
}
<form method="post" action="${urlFor('/sign-in')}">
${hidden('/sign-in')}<label for="token">Admin token</label>
<input type="password" id="token" name="token" autocomplete="off" autofocus spellcheck="false" required maxlength="4096" aria-describedby="${problem !== undefined && 'problem '}hint"${problem !== undefined && { markup: ' aria-invalid="true"' }}>
<p class="hint" id="hint">The content of <code>admin.tokenFile</code>, or of <code>admin.readOnlyTokenFile</code> to view only.</p>
<button type="submit"${certificate !== undefined && { markup: ' class="second"' }}>Sign in</button>
</form>
${acceptsCertificates && certificate === undefined && html`<p class="hint">To sign in without the token, open this page with a client certificate of <code>admin.tls.clientCa</code>.</p>`}
</div>`,
  };
}
