/** The operator's accent colour, adjusted to the contrast that WCAG 2.2 requires (1.4.3). */
export interface Accent {
  readonly main: string;
  readonly hover: string;
  /** Colour of text on `main`. */
  readonly onMain: string;
  /** Background of what is to be noticed. */
  readonly tint: string;
}

export const MIN_CONTRAST = 4.5;

type Rgb = readonly [number, number, number];

const parseHexColour = (hex: string): Rgb => {
  const value = Number.parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
};

const formatHexColour = (colour: Rgb): string =>
  `#${colour.map((part) => Math.round(part).toString(16).padStart(2, '0')).join('')}`;

/** WCAG 2.2, "relative luminance". */
function luminance(colour: Rgb): number {
  const [r, g, b] = colour.map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

export function contrastRatio(one: string, other: string): number {
  const [a, b] = [luminance(parseHexColour(one)), luminance(parseHexColour(other))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}

const mixColours = (colour: Rgb, towards: Rgb, share: number): Rgb =>
  colour.map((part, index) => part + ((towards[index] ?? 0) - part) * share) as unknown as Rgb;

const MIX_STEPS = 50;

/** Mixes in as little of `towards` as gives enough contrast to all backgrounds. */
function ensureContrast(colour: string, backgrounds: readonly string[], towards: '#000000' | '#ffffff'): string {
  for (let step = 0; step <= MIX_STEPS; step += 1) {
    const candidate = formatHexColour(mixColours(parseHexColour(colour), parseHexColour(towards), step / MIX_STEPS));
    if (backgrounds.every((background) => contrastRatio(candidate, background) >= MIN_CONTRAST)) return candidate;
  }
  return towards;
}

const TINT_SHARE = { light: 0.08, dark: 0.1 } as const;

/** `backgrounds`: those of text in this colour. The first one is that of the tinted parts as well. */
export function createAccent(
  colour: string,
  backgrounds: readonly [string, ...string[]],
  scheme: 'light' | 'dark',
): Accent {
  const towards = scheme === 'light' ? '#000000' : '#ffffff';
  const tint = formatHexColour(mixColours(parseHexColour(backgrounds[0]), parseHexColour(colour), TINT_SHARE[scheme]));
  const main = ensureContrast(colour, [...backgrounds, tint], towards);
  // Further in the same direction, so the contrast only grows.
  const hover = formatHexColour(mixColours(parseHexColour(main), parseHexColour(towards), 0.18));
  // A colour that contrasts with white (near-black) backgrounds contrasts with white (near-black) text as well.
  return { main, hover, onMain: scheme === 'light' ? '#ffffff' : '#0b1220', tint };
}
