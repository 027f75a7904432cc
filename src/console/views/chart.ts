import { largest } from '../../lib/extremes.ts';
import { html, type Markup } from '../../pages/views/html.ts';

export interface Series {
  readonly name: string;
  /** One per point in time; undefined where nothing is known. */
  readonly values: readonly (number | undefined)[];
  /** In the legend: a value, and what it is, such as `2` and `in the last minute`. */
  readonly legend?: readonly [value: string, text: string] | undefined;
}

export interface Chart {
  readonly id: string;
  readonly title: string;
  /** At most six. */
  readonly series: readonly Series[];
  readonly format: (value: number) => string;
  /** Text at the left end of the time axis. */
  readonly start: string;
  /** Instead of the chart while there are no values. */
  readonly empty: string;
}

const WIDTH = 600;
const HEIGHT = 150;

/** A line chart. Everything that it shows is also in the text of its legend. */
export function renderChart({ id, title, series, format, start, empty }: Chart): Markup {
  const known = series.flatMap(({ values }) => values.filter((value) => value !== undefined));
  const top = roundUp(largest(known, 0));
  return html`<figure class="card chart" aria-labelledby="${id}">
<figcaption id="${id}">${title}</figcaption>
${
  known.length === 0
    ? html`<p class="empty">${empty}</p>`
    : html`<div class="plot" aria-hidden="true">
<div class="axis"><span>${format(top)}</span><span>${format(top / 2)}</span><span>0</span></div>
<svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" focusable="false">
<path class="grid" d="M0 0.5H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT - 0.5}H${WIDTH}"/>
${series.map(({ values }, index) => html`<path class="line s${index + 1}" d="${renderLine(values, top)}"/>\n`)}</svg>
<div class="times"><span>${start}</span><span>now</span></div>
</div>`
}
<ul class="legend">
${series.map(renderLegend)}</ul>
</figure>`;
}

const renderLegend = ({ name, legend }: Series, index: number): Markup =>
  html`<li><i class="s${index + 1}"></i>${name}${legend !== undefined && html` <b>${legend[0]}</b> <span class="soft">${legend[1]}</span>`}</li>\n`;

function renderLine(values: Series['values'], top: number): string {
  const step = WIDTH / Math.max(1, values.length - 1);
  let isConnected = false;
  return values
    .map((value, at) => {
      if (value === undefined) {
        isConnected = false;
        return '';
      }
      const y = HEIGHT - 1 - (value / top) * (HEIGHT - 2);
      const command = isConnected ? 'L' : 'M';
      isConnected = true;
      // A single point is a line of no length, which round caps make visible.
      const point = `${round(at * step)} ${round(y)}`;
      return command === 'M' ? `M${point}L${point}` : `L${point}`;
    })
    .join('');
}

const round = (value: number): number => Math.round(value * 10) / 10;

/** To 1, 2 or 5 times a power of ten. */
function roundUp(value: number): number {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const digit = [1, 2, 5, 10].find((step) => value <= step * power * 1.000_001) ?? 10;
  return digit * power;
}
