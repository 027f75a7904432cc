import { pathToFileURL } from 'node:url';
import type { Page } from 'playwright-core';

interface Box {
  readonly left: number;
  readonly top: number;
  readonly right: number;
  readonly bottom: number;
}

interface DrawnText extends Box {
  readonly content: string;
  readonly fill: string;
  /** Position in the document: later elements cover earlier ones. */
  readonly order: number;
}

interface DrawnRectangle extends Box {
  readonly fill: string;
  readonly order: number;
}

/** What Chromium shows of an SVG file, in the coordinates of its viewBox. */
interface Drawing {
  readonly root: string;
  readonly parserError: string;
  readonly title: string;
  readonly description: string;
  /** Ids in `aria-labelledby` that no element has. */
  readonly missingLabels: readonly string[];
  readonly viewBox: Box | undefined;
  readonly texts: readonly DrawnText[];
  readonly rectangles: readonly DrawnRectangle[];
}

// The sources are compiled without the DOM library.
interface DomElement {
  readonly localName: string;
  readonly textContent: string;
  getAttribute(name: string): string | null;
  getBoundingClientRect(): Box;
  closest(selector: string): DomElement | null;
}
interface SvgRoot extends DomElement {
  readonly viewBox?: {
    readonly baseVal: {
      readonly x: number;
      readonly y: number;
      readonly width: number;
      readonly height: number;
    } | null;
  };
  getScreenCTM(): { readonly a: number; readonly e: number; readonly f: number };
}
interface DomWindow {
  readonly document: {
    readonly documentElement: SvgRoot;
    querySelector(selector: string): DomElement | null;
    querySelectorAll(selector: string): Iterable<DomElement>;
    getElementById(id: string): DomElement | null;
  };
  readonly getComputedStyle: (element: DomElement) => { readonly fill: string };
}

const measure = (page: Page): Promise<Drawing> =>
  page.evaluate(() => {
    const { document, getComputedStyle } = globalThis as unknown as DomWindow;
    const root = document.documentElement;
    const textOf = (selector: string): string => document.querySelector(selector)?.textContent.trim() ?? '';
    const frame = root.viewBox?.baseVal;
    const labels = root.getAttribute('aria-labelledby')?.split(' ') ?? [];
    const drawing = {
      root: root.localName,
      parserError: textOf('parsererror'),
      title: textOf('svg > title'),
      description: textOf('svg > desc'),
      missingLabels: labels.filter((id) => document.getElementById(id) === null),
      viewBox: undefined,
      texts: [] as DrawnText[],
      rectangles: [] as DrawnRectangle[],
    };
    if (root.localName !== 'svg' || !frame || root.getAttribute('viewBox') === null) return drawing;
    const scale = root.getScreenCTM();
    for (const [order, element] of [...document.querySelectorAll('text, rect')].entries()) {
      if (element.closest('defs') !== null) continue;
      const { left, top, right, bottom } = element.getBoundingClientRect();
      const drawn = {
        left: (left - scale.e) / scale.a,
        top: (top - scale.f) / scale.a,
        right: (right - scale.e) / scale.a,
        bottom: (bottom - scale.f) / scale.a,
        fill: getComputedStyle(element).fill,
        order,
      };
      if (element.localName === 'rect') drawing.rectangles.push(drawn);
      else drawing.texts.push({ ...drawn, content: element.textContent.trim() });
    }
    const viewBox = {
      left: frame.x,
      top: frame.y,
      right: frame.x + frame.width,
      bottom: frame.y + frame.height,
    };
    return { ...drawing, viewBox };
  });

/** The line box of a text is taller than its letters. */
const trim = (text: DrawnText): Box => ({ ...text, top: text.top + 2, bottom: text.bottom - 2 });

const isInside = (inner: Box, outer: Box, margin = 0): boolean =>
  inner.left >= outer.left + margin &&
  inner.right <= outer.right - margin &&
  inner.top >= outer.top &&
  inner.bottom <= outer.bottom;

const overlaps = (one: Box, other: Box): boolean =>
  one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;

/** Between a text and the border of its box, in units of the viewBox. */
const MIN_MARGIN = 4;

function findLayoutFaults({ viewBox, texts, rectangles }: Drawing): string[] {
  if (viewBox === undefined) return ['it has no viewBox'];
  return texts.flatMap((text, index) => {
    const box = trim(text);
    const faults: string[] = [];
    if (!isInside(box, viewBox)) faults.push(`"${text.content}" exceeds the viewBox`);
    if (rectangles.some((rectangle) => overlaps(box, rectangle) && !isInside(box, rectangle, MIN_MARGIN)))
      faults.push(`"${text.content}" exceeds its box`);
    for (const other of texts.slice(index + 1))
      if (overlaps(box, trim(other))) faults.push(`"${text.content}" overlaps "${other.content}"`);
    if (rectangles.some((rectangle) => rectangle.order > text.order && overlaps(box, rectangle)))
      faults.push(`"${text.content}" is covered by a box`);
    return faults;
  });
}

const MIN_CONTRAST = 4.5;

/** Undefined for a colour that is not opaque. */
function parseColour(css: string): readonly number[] | undefined {
  const parts = /^rgb\((\d+), (\d+), (\d+)\)$/.exec(css);
  return parts === null ? undefined : parts.slice(1).map(Number);
}

/** WCAG 2.2, relative luminance. */
function computeLuminance(colour: readonly number[]): number {
  const [red = 0, green = 0, blue = 0] = colour.map((value) => {
    const part = value / 255;
    return part <= 0.040_45 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function computeContrast(one: readonly number[], other: readonly number[]): number {
  const [darker = 0, lighter = 0] = [computeLuminance(one), computeLuminance(other)].sort((a, b) => a - b);
  return (lighter + 0.05) / (darker + 0.05);
}

function findContrastFaults({ texts, rectangles }: Drawing, mode: string): string[] {
  return texts.flatMap((text) => {
    const background = rectangles.findLast(
      (rectangle) => rectangle.order < text.order && overlaps(trim(text), rectangle),
    );
    const colours = [text.fill, background?.fill ?? 'none'].map(parseColour);
    const [foreground, behind] = colours;
    // The page around the picture may have another colour scheme than the browser.
    if (foreground === undefined || behind === undefined)
      return [`"${text.content}" has no opaque background in ${mode} mode`];
    const contrast = computeContrast(foreground, behind);
    return contrast >= MIN_CONTRAST
      ? []
      : [`"${text.content}" has a contrast of ${contrast.toFixed(1)} in ${mode} mode`];
  });
}

/** What is wrong with an SVG file, as Chromium shows it. */
export async function findPictureFaults(page: Page, file: string): Promise<readonly string[]> {
  const faults: string[] = [];
  const requests: string[] = [];
  const onRequest = (request: { url(): string }): number => requests.push(request.url());
  page.on('request', onRequest);
  try {
    for (const colorScheme of ['light', 'dark'] as const) {
      await page.emulateMedia({ colorScheme });
      await page.goto(pathToFileURL(file).href);
      const drawing = await measure(page);
      if (drawing.root !== 'svg' || drawing.parserError !== '')
        return [`it is not well-formed: ${drawing.parserError || drawing.root}`];
      if (colorScheme === 'light') {
        if (drawing.title === '') faults.push('it has no title');
        if (drawing.description === '') faults.push('it has no desc');
        faults.push(...drawing.missingLabels.map((id) => `aria-labelledby names "${id}", which does not exist`));
        faults.push(...findLayoutFaults(drawing));
      }
      faults.push(...findContrastFaults(drawing, colorScheme));
    }
  } finally {
    page.off('request', onRequest);
  }
  // An <img> loads nothing else, so the picture would be incomplete on a page.
  const others = requests.filter((url) => url !== pathToFileURL(file).href);
  return [...faults, ...new Set(others.map((url) => `it loads ${url}`))];
}
