import { formatDeprecations } from '../config/load.ts';
import type { Settings } from '../config/schema.ts';
import { checkCertificates, checkFiles, checkKeys, isNewStore } from './check/files.ts';
import {
  checkLikelyMistakes,
  checkMethods,
  checkPagesOrigin,
  checkPathVariants,
  checkReachability,
  checkRouteLimits,
  checkTokenSources,
} from './check/settings.ts';
import { CONFIG_OPTIONS, type Command, EXIT, writeJson } from './command.ts';
import { loadCommandSettings } from './settings.ts';

export interface CheckResult {
  readonly problems?: readonly string[];
  readonly warnings?: readonly string[];
  readonly notes?: readonly string[];
}

/** Inspects the settings, or files that they name, without changing anything and without network access. */
export type Check = (settings: Settings, now: number) => CheckResult | Promise<CheckResult>;

const CHECKS: readonly Check[] = [
  checkCertificates,
  checkKeys,
  checkFiles,
  checkLikelyMistakes,
  checkTokenSources,
  checkMethods,
  checkReachability,
  checkPagesOrigin,
  checkPathVariants,
  checkRouteLimits,
];

export const command: Command = {
  name: 'check',
  summary: 'validates the configuration and the files it names; reports all problems',
  usage: ['gatehouse check [--config FILE]'],
  options: CONFIG_OPTIONS,
  notes: [
    'Exit code 0 when gatehouse could start with it (there may be warnings), otherwise 78 with the list of problems.',
  ],
  async run(context) {
    const loaded = loadCommandSettings(context);
    const { settings, name } = loaded;
    const now = Date.now() / 1_000;
    const results = await Promise.all(CHECKS.map(async (check) => check(settings, now)));
    const problems = results.flatMap((result) => result.problems ?? []);
    const warnings = [...formatDeprecations(loaded), ...results.flatMap((result) => result.warnings ?? [])];
    const notes = [...listUnchecked(settings), ...results.flatMap((result) => result.notes ?? [])];
    const ok = problems.length === 0;
    if (context.json)
      writeJson(context, {
        ok,
        configuration: name,
        problems: problems.map((message) => ({ path: '', message })),
        warnings,
        ...(notes.length > 0 && { notes }),
      });
    else {
      const count = problems.length === 1 ? '1 problem' : `${problems.length} problems`;
      const lines = problems.map((problem) => `  ${problem}\n`).join('');
      if (ok) context.stdout([`${name}: valid`, ...notes.map((note) => `note: ${note}`), ''].join('\n'));
      else context.stderr(`gatehouse: ${count} with files of ${name}\n${lines}`);
      for (const warning of warnings) context.stderr(`warning: ${warning}\n`);
    }
    return ok ? EXIT.ok : EXIT.configuration;
  },
};

const listUnchecked = ({ store }: Settings): readonly string[] => [
  ...(store.type === 'redis'
    ? ['Redis was not contacted: gatehouse verifies at start that it is reachable and suitable']
    : []),
  ...(store.unauthenticatedRecords === 'accept' ? [explainUnauthenticatedRecords(store)] : []),
];

const explainUnauthenticatedRecords = (store: Settings['store']): string =>
  isNewStore(store)
    ? `store.unauthenticatedRecords: is accept, which only a store of an earlier release needs; there is no store in ${store.path} yet, so set it to refuse now`
    : 'store.unauthenticatedRecords: is accept, so records of earlier releases, which have no MAC, are accepted; set it to refuse once every replica runs this release and store_records_authenticated was logged (docs/storage.md)';
