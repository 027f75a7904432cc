import { html, type Markup, sanitizeText } from '../../pages/views/html.ts';
import { type ConsolePath, urlFor } from '../context.ts';

/** Created for the first page: it takes 20 ms. */
let numberFormat: Intl.NumberFormat | undefined;
export function formatNumber(value: number): string {
  numberFormat ??= new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 });
  return numberFormat.format(value);
}

export function formatSeconds(seconds: number): string {
  if (seconds >= 1) return `${Number(seconds.toPrecision(2))} s`;
  return `${Number((seconds * 1_000).toPrecision(2))} ms`;
}

const UNITS = [
  ['day', 86_400],
  ['hour', 3_600],
  ['minute', 60],
  ['second', 1],
] as const;

/** `3 days`, rounded down. */
export function formatDuration(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const [name, length] = UNITS.find(([, unit]) => whole >= unit) ?? ['second', 1];
  return formatCount(Math.floor(whole / length), name);
}

/** `1 request`, `2 requests`. */
export const formatCount = (count: number, noun: string): string => `${count} ${noun}${count === 1 ? '' : 's'}`;

/** UTC; the script adds the local time. `time`: seconds since 1970. */
export function renderTime(time: number): Markup {
  const date = new Date(time * 1_000);
  if (!Number.isFinite(date.getTime())) return html`–`;
  const text = date.toISOString();
  return html`<time datetime="${text}">${text.slice(0, 10)} ${text.slice(11, 19)} UTC</time>`;
}

/** Text of a client, a certificate or a directory. */
export const renderText = (text: string, maxLength = 512): Markup => html`<bdi>${sanitizeText(text, maxLength)}</bdi>`;

export type Tone = 'good' | 'warn' | 'bad' | 'neutral';

/** The text has the same meaning as the tone: colour is never the only difference. */
export const renderBadge = (text: string, tone: Tone = 'neutral'): Markup =>
  html`<span class="badge ${tone}">${text}</span>`;

/** Pairs of a name and a value, which may be text of a client. Those without a value are omitted. */
export const renderFacts = (
  facts: readonly (readonly [name: string, value: Markup | string | undefined])[],
): Markup => html`<dl>
${facts
  .filter(([, value]) => value !== undefined && value !== '')
  .map(
    ([name, value]) =>
      html`<div><dt>${name}</dt><dd>${typeof value === 'string' ? renderText(value) : value}</dd></div>\n`,
  )}</dl>`;

export const renderCode = (text: string | undefined): Markup | undefined =>
  text === undefined ? undefined : html`<code>${renderText(text)}</code>`;

/** A form whose field `q` is the text to search for. */
export const renderSearch = (
  path: ConsolePath,
  label: string,
  text: string,
  { filter, button = 'Search' }: { readonly filter?: Markup; readonly button?: string } = {},
): Markup => html`<form class="search" method="get" action="${urlFor(path)}" role="search">
<div><label for="q">${label}</label>
<input type="search" id="q" name="q" value="${text}" maxlength="256" spellcheck="false" autocomplete="off"></div>
${filter}<button type="submit">${button}</button>
</form>`;
