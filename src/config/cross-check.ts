import type { z } from 'zod';
import type { Settings } from './schema.ts';
import type { SettingPath } from './setting-path.ts';

export type ReportProblem = (path: SettingPath, message: string) => void;

/** For `superRefine`: checks settings of one section against each other. */
export const checkWith =
  <T>(check: (value: T, report: ReportProblem) => void) =>
  (value: T, context: z.RefinementCtx<T>): void =>
    check(value, (path, message) => context.addIssue({ code: 'custom', path: [...path], message }));

type SectionName = keyof Settings;

/** A section in which invalid entries of a list or record are undefined, so that indexes and names keep their meaning. */
type WithGaps<T> = T extends readonly (infer Entry)[]
  ? readonly (Entry | undefined)[]
  : T extends object
    ? string extends keyof T
      ? Readonly<Record<string, T[string] | undefined>>
      : T
    : T;

export type ParsedSections = { readonly [Name in SectionName]: WithGaps<Settings[Name]> };

/** A rule about several sections; it can read only those it declares. */
export interface CrossCheck {
  readonly sections: readonly SectionName[];
  readonly run: (settings: Partial<ParsedSections>, report: ReportProblem) => void;
}

/** Declares a rule. It does not run while one of its sections is invalid. */
export const crossCheck = <const Name extends SectionName>(
  sections: readonly Name[],
  check: (settings: Pick<ParsedSections, Name>, report: ReportProblem) => void,
): CrossCheck => ({
  sections,
  run(settings, report) {
    if (sections.every((name) => settings[name] !== undefined)) check(settings as Pick<ParsedSections, Name>, report);
  },
});

/** For messages about an unknown name. */
export function formatKnownNames(names: Iterable<string>): string {
  const known = [...names];
  return known.length === 0 || known.length > 8 ? '' : `; known: ${known.join(', ')}`;
}
