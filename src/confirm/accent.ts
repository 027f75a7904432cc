/** One colour of the operator's, made readable: WCAG 2.2 asks for a contrast of 4.5 between text and what it stands on. */
export interface Accent {
  readonly main: string;
  readonly hover: string;
  /** Text on the main colour. */
  readonly onMain: string;
}

export const ENOUGH = 4.5;

type Rgb = readonly [number, number, number];

const read = (hex: string): Rgb => {
  const value = Number.parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
};

const write = (colour: Rgb): string =>
  `#${colour.map((part) => Math.round(part).toString(16).padStart(2, '0')).join('')}`;

/** WCAG 2.2, "relative luminance". */
function luminance(colour: Rgb): number {
  const [r, g, b] = colour.map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

export function contrast(one: string, other: string): number {
  const [a, b] = [luminance(read(one)), luminance(read(other))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}

const mixed = (colour: Rgb, towards: Rgb, share: number): Rgb =>
  colour.map((part, at) => part + ((towards[at] ?? 0) - part) * share) as unknown as Rgb;

const STEPS = 50;

/** The colour itself, or as little darker (lighter) as is needed to be read on each of these. */
function readable(colour: string, grounds: readonly string[], towards: '#000000' | '#ffffff'): string {
  for (let step = 0; step <= STEPS; step += 1) {
    const tried = write(mixed(read(colour), read(towards), step / STEPS));
    if (grounds.every((ground) => contrast(tried, ground) >= ENOUGH)) return tried;
  }
  return towards;
}

/** `grounds`: what links and labels in this colour stand on. */
export function accentOn(colour: string, grounds: readonly string[], scheme: 'light' | 'dark'): Accent {
  const towards = scheme === 'light' ? '#000000' : '#ffffff';
  const main = readable(colour, grounds, towards);
  // Further the same way: what could be read on it before can be read on it still.
  const hover = write(mixed(read(main), read(towards), 0.18));
  // What stands out from a white (near-black) ground carries white (near-black) text as well.
  return { main, hover, onMain: scheme === 'light' ? '#ffffff' : '#0b1220' };
}
