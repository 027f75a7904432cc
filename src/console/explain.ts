import type { Settings } from '../config/schema.ts';
import { isForwardableMethod } from '../domain/request-target.ts';
import { formatScope, parseScope, type Scope } from '../domain/scope.ts';
import { html, type Markup } from '../pages/views/html.ts';
import type { Explanation, Verdict } from '../proxy/policy/explain.ts';
import { formatExplanation, VERDICT_TEXTS } from '../proxy/policy/explain-text.ts';
import { type ConsoleHandler, type ConsoleRequest, explainRequest, urlFor } from './context.ts';
import { renderBadge, renderText } from './views/format.ts';

const MAX_LENGTHS = { method: 32, path: 4_096, scope: 4_096, client: 256, host: 259 } as const;
type FieldName = keyof typeof MAX_LENGTHS;
type Fields = Readonly<Record<FieldName, string>>;

const METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS'];
const PASSING: ReadonlySet<Verdict> = new Set(['public', 'allowed', 'handled_by_gatehouse']);

export const showExplanation: ConsoleHandler = async ({ query, deps }) => {
  const read = (name: FieldName): string => (query.get(name) ?? '').trim();
  const method = read('method') || 'GET';
  const fields: Fields = {
    method,
    path: read('path'),
    scope: read('scope'),
    client: read('client'),
    host: read('host'),
  };
  const methods = METHODS.includes(method) ? METHODS : [...METHODS, method];
  const clients = deps.listIntegrations(deps.getSettings()).keys();
  return {
    title: 'Explain',
    body: html`<h1>Explain a request</h1>
<p class="soft">Shows which rule matches, what it requires, and whether a token with this scope is sufficient. Nothing is sent.</p>
<form class="search" method="get" action="${urlFor('/explain')}">
<div class="small"><label for="method">Method</label>
<select id="method" name="method">${methods.map((name) => html`<option${name === method && { markup: ' selected' }}>${name}</option>`)}</select></div>
<div><label for="path">Path</label>
<input type="text" id="path" name="path" value="${fields.path}" required maxlength="4096" spellcheck="false" autocomplete="off" placeholder="/files/1"></div>
<div><label for="scope">Scope of the token</label>
<input type="text" id="scope" name="scope" value="${fields.scope}" maxlength="4096" spellcheck="false" autocomplete="off"></div>
<div class="small"><label for="client">Client</label>
<select id="client" name="client"><option value="">any or none</option>${Array.from(clients, (client) => html`<option value="${client}"${client === fields.client && { markup: ' selected' }}>${client}</option>`)}</select></div>
<div class="small"><label for="host">Host</label>
<input type="text" id="host" name="host" value="${fields.host}" maxlength="259" spellcheck="false" autocomplete="off" placeholder="host of publicUrl"></div>
<button type="submit">Explain</button>
</form>
${fields.path === '' ? renderExample(deps.getSettings()) : renderResult(fields, explainFields(deps, fields))}`,
  };
};

/** A request that the first rule with a scope allows. */
function renderExample({ routes }: Settings): Markup | undefined {
  const route = routes.find(({ requires, host }) => requires instanceof Map && host === undefined);
  if (route === undefined) return undefined;
  const { methods: [method = 'GET'] = [], clients: [client] = [] } = route;
  const path = route.path.replace(/\*\*$/, 'example').replaceAll('*', 'example');
  const scope = formatScope(route.requires as Scope);
  const url = urlFor('/explain', { method, path, scope, ...(client !== undefined && { client }) });
  return html`<p>Example: <a href="${url}">${renderText(method, 32)} ${renderText(path)} with the scope ${renderText(scope)}</a></p>`;
}

/** As `gatehouse explain`, with the configuration in use. Returns the problem of a field that cannot be used. */
function explainFields(deps: ConsoleRequest['deps'], fields: Fields): Explanation | string {
  const { method, path, client, host } = fields;
  for (const [name, max] of Object.entries(MAX_LENGTHS))
    if (fields[name as FieldName].length > max) return `${name} must have at most ${max} characters.`;
  if (!isForwardableMethod(method)) return 'Write the method in capitals, such as GET.';
  const scope = fields.scope === '' ? undefined : parseScope(fields.scope, { allowSpaces: true });
  if (scope?.ok === false) return 'This is not a scope. Write resource:permission,permission;resource.';
  if (client !== '' && !deps.listIntegrations(deps.getSettings()).has(client))
    return 'No integration has this client id.';
  return explainRequest(deps, { method, path, host, client: client || undefined, scope: scope?.value });
}

function renderResult({ method, path }: Fields, result: Explanation | string): Markup {
  if (typeof result === 'string') return html`<p class="note bad" role="alert">${result}</p>`;
  const { verdict, reportOnly } = result;
  const isForwarded = reportOnly === true && !PASSING.has(verdict);
  const tone = PASSING.has(verdict) ? 'good' : verdict === 'token_required' || isForwarded ? 'warn' : 'bad';
  const lines = formatExplanation(result).slice(-MAX_LINES);
  return html`<section class="card wide" aria-labelledby="verdict">
<div class="line-up"><h2 id="verdict">${renderText(method, 32)} ${renderText(path)}</h2>${renderBadge(VERDICT_TEXTS[verdict], tone)}</div>
<ul>
${lines.map((line) => html`<li>${renderText(line.trim())}</li>\n`)}</ul>
</section>`;
}

/** The last ones: there is one for each rule that was tried, and the verdict is at the end. */
const MAX_LINES = 200;
