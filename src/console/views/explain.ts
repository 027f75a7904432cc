import { html, type Markup } from '../../pages/views/html.ts';
import type { Explanation, Verdict } from '../../proxy/policy/explain.ts';
import { formatDetails, MISMATCH_TEXTS, VERDICT_TEXTS } from '../../proxy/policy/explain-text.ts';
import { type ConsolePage, urlFor } from '../context.ts';
import { renderBadge, renderFacts, renderText } from './format.ts';

export interface ExplainFields {
  readonly method: string;
  readonly path: string;
  readonly scope: string;
  readonly client: string;
  readonly host: string;
}

/** Fields of a request that is allowed. */
export type ExplainExample = Readonly<Record<'method' | 'path' | 'scope', string>> & {
  readonly client?: string;
};

export type ExplainResult = { readonly explanation: Explanation } | { readonly problem: string };

const METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS'];
const PASSING: ReadonlySet<Verdict> = new Set(['public', 'allowed', 'handled_by_gatehouse']);

export function explainPage(
  fields: ExplainFields,
  clients: readonly string[],
  result: ExplainResult | { readonly example: ExplainExample | undefined },
): ConsolePage {
  const methods = METHODS.includes(fields.method) ? METHODS : [...METHODS, fields.method];
  return {
    title: 'Explain',
    body: html`<h1>Explain a request</h1>
<p class="soft">Shows which rule matches, what it requires, and whether a token with this scope is sufficient. Nothing is sent.</p>
<form class="search" method="get" action="${urlFor('/explain')}">
<div class="small"><label for="method">Method</label>
<select id="method" name="method">${methods.map((method) => html`<option${method === fields.method && { markup: ' selected' }}>${method}</option>`)}</select></div>
<div><label for="path">Path</label>
<input type="text" id="path" name="path" value="${fields.path}" required maxlength="4096" spellcheck="false" autocomplete="off" placeholder="/files/1"></div>
<div><label for="scope">Scope of the token</label>
<input type="text" id="scope" name="scope" value="${fields.scope}" maxlength="4096" spellcheck="false" autocomplete="off"></div>
<div class="small"><label for="client">Client</label>
<select id="client" name="client"><option value="">any or none</option>${clients.map((client) => html`<option value="${client}"${client === fields.client && { markup: ' selected' }}>${client}</option>`)}</select></div>
<div class="small"><label for="host">Host</label>
<input type="text" id="host" name="host" value="${fields.host}" maxlength="259" spellcheck="false" autocomplete="off" placeholder="host of publicUrl"></div>
<button type="submit">Explain</button>
</form>
${renderResult(fields, result)}`,
  };
}

function renderResult(fields: ExplainFields, result: Parameters<typeof explainPage>[2]): Markup | undefined {
  if ('problem' in result) return html`<p class="note bad" role="alert">${result.problem}</p>`;
  if ('explanation' in result) return renderExplanation(fields, result.explanation);
  const { example } = result;
  return (
    example &&
    html`<p>Example: <a href="${urlFor('/explain', example)}">${renderText(example.method, 32)} ${renderText(example.path)} with the scope ${renderText(example.scope)}</a></p>`
  );
}

function renderExplanation({ method, path }: ExplainFields, explanation: Explanation): Markup {
  const { verdict, reason, rule, requirement, reportOnly, tried } = explanation;
  const isForwarded = reportOnly === true && !PASSING.has(verdict);
  const tone = PASSING.has(verdict) ? 'good' : verdict === 'token_required' || isForwarded ? 'warn' : 'bad';
  const details = formatDetails(explanation).map((line) => line.trim());
  return html`<section class="card wide" aria-labelledby="verdict">
<div class="line-up"><h2 id="verdict">${renderText(method, 32)} ${renderText(path)}</h2>${renderBadge(VERDICT_TEXTS[verdict], tone)}</div>
<p>${renderText(reason)}${isForwarded && ', but it is forwarded: the rule is report-only'}</p>
${renderFacts([
  ['Rule', rule && renderText(rule.name)],
  ['Requires', requirement === undefined ? undefined : html`<code>${renderText(requirement)}</code>`],
  ['Upstream', rule && renderText(rule.upstream)],
  [
    'Path as matched',
    explanation.path === undefined || explanation.path === path ? undefined : renderText(explanation.path),
  ],
])}
${details.length > 0 && html`<ul>${details.map((line) => html`<li>${renderText(line)}</li>`)}</ul>`}
${renderTried(tried)}
</section>`;
}

const MAX_TRIED = 200;

function renderTried(tried: Explanation['tried']): Markup {
  const others = tried.flatMap(({ rule, misfit }) => (misfit === undefined ? [] : [{ rule, misfit }]));
  if (others.length === 0) return html``;
  return html`<details><summary>${others.length === 1 ? '1 rule was' : `${others.length} rules were`} tried before</summary>
<ul>${others.slice(0, MAX_TRIED).map(({ rule, misfit }) => html`<li>${renderText(rule)}: ${MISMATCH_TEXTS[misfit]}</li>`)}</ul>
</details>`;
}
