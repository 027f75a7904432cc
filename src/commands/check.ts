import { type ConfigProblem, formatProblem, formatProblems, type Inspection } from '../config/load.ts';
import type { Settings } from '../config/schema.ts';
import { wrapText } from '../lib/wrap-text.ts';
import { type ConnectionResult, connectToAll } from './check/connect.ts';
import { checkCertificates, checkFiles, checkKeys, findMissingFiles } from './check/files.ts';
import { SETTINGS_CHECKS } from './check/settings.ts';
import { CONFIG_OPTIONS, type Command, type CommandContext, EXIT, writeJson } from './command.ts';
import { inspectConfig } from './settings.ts';
import { getColumns, getErrorColumns } from './style.ts';

export interface CheckResult {
  readonly problems?: readonly string[];
  readonly warnings?: readonly string[];
  readonly notes?: readonly string[];
}

/** Inspects the settings, or files that they name, without changing anything and without network access; `--connect` uses the network in addition. */
export type Check = (settings: Settings, now: number) => CheckResult | Promise<CheckResult>;

/** These run even if some settings are invalid. */
const FILE_CHECKS: readonly Check[] = [checkCertificates, checkKeys, checkFiles];

type Report = Awaited<ReturnType<typeof createReport>>;

export const command: Command = {
  name: 'check',
  summary: 'validates the configuration and the files it names; reports all problems',
  usage: ['gatehouse check [--config FILE] [--strict] [--connect]'],
  options: {
    ...CONFIG_OPTIONS,
    strict: { help: 'exit code 78 also if there are only warnings' },
    connect: { help: 'also connect to Redis, trusted issuers, LDAP servers, OpenID providers and upstreams' },
  },
  notes: [
    'Exit code 0 when gatehouse could start with it (there may be warnings), otherwise 78 with the list of problems.',
  ],
  async run(context) {
    const report = await createReport(inspectConfig(context), context.flag('connect'));
    const isValid = report.problems.length === 0;
    const ok = isValid && !(context.flag('strict') && report.warnings.length > 0);
    if (context.json) {
      const { notes, unchecked, ...rest } = report;
      writeJson(context, { ok, ...rest, ...(isValid ? notes.length > 0 && { notes } : { unchecked }) });
    } else printReport(context, report);
    return ok ? EXIT.ok : EXIT.configuration;
  },
};

async function createReport({ result, parseUsable, fileSettings, locate }: Inspection, isConnecting: boolean) {
  const known = result.ok ? [] : result.problems;
  const settings = parseUsable();
  const results = settings === undefined ? [] : await runChecks(settings, known);
  const missing = (settings === undefined ? [] : findMissingFiles(settings, fileSettings)).map(locate);
  const knownPaths = new Set(known.map(({ path }) => path));
  const reported = new Set([...knownPaths, ...missing.map(({ path }) => path)].filter(Boolean));
  const connections = isConnecting && result.ok ? await connectToAll(result.settings) : undefined;
  const unreachable = (connections ?? []).flatMap(({ setting, address, problem }) =>
    problem === undefined ? [] : [`${setting}: ${address}: ${problem}`],
  );
  const found = [...results.flatMap(({ problems = [] }) => problems), ...unreachable].map(locate);
  return {
    configuration: result.name,
    problems: [
      ...known,
      ...missing.filter(({ path }) => !knownPaths.has(path)),
      ...found.filter(({ path }) => !reported.has(path)),
    ],
    warnings: results.flatMap(({ warnings = [] }) => warnings).map((warning) => formatProblem(locate(warning))),
    notes: [
      ...(result.ok ? listUnchecked(result.settings, isConnecting) : []),
      ...results.flatMap(({ notes = [] }) => notes),
    ],
    unchecked: result.ok ? [] : result.unchecked,
    /** With `--connect`. */
    ...(connections !== undefined && { connections }),
  };
}

function runChecks(settings: Settings, known: readonly ConfigProblem[]): Promise<readonly CheckResult[]> {
  const now = Date.now() / 1_000;
  // With another store or key file than the configured one, the result would mislead.
  const hasStore = !known.some(({ path }) => /^(?:store|keys)\b/.test(path));
  const checks =
    known.length === 0
      ? [...FILE_CHECKS, ...SETTINGS_CHECKS]
      : FILE_CHECKS.filter((check) => check !== checkKeys || hasStore);
  return Promise.all(checks.map(async (check) => check(settings, now)));
}

function printReport(context: CommandContext, report: Report): void {
  const { configuration: name, problems, warnings, notes, unchecked, connections = [] } = report;
  const { stdout, stderr, isTerminal = false, errorColumns } = context;
  for (const connection of connections) stdout(`${formatConnection(connection)}\n`);
  if (problems.length > 0) stderr(formatProblems({ name, problems, unchecked }, getErrorColumns(context)));
  else {
    stdout(`${name}: valid\n`);
    for (const note of notes) stdout(formatMessage('note', note, getColumns(isTerminal, errorColumns)));
  }
  for (const warning of warnings) stderr(formatMessage('warning', warning, getErrorColumns(context)));
}

const formatMessage = (kind: string, message: string, columns: number): string =>
  `${wrapText('', `${kind}: ${message}`, columns, '  ').join('\n')}\n`;

const formatConnection = ({ setting, address, ok, duration_ms: ms, found, problem }: ConnectionResult) =>
  `${ok ? 'ok' : 'failed'}: ${setting}: ${address}: ${problem ?? `connected in ${ms} ms${found === undefined ? '' : ` (${found})`}`}`;

const listUnchecked = ({ store, trustedIssuers }: Settings, isConnecting: boolean): readonly string[] => [
  ...(store.type === 'redis' && !isConnecting
    ? ['Redis was not contacted: gatehouse verifies at startup that it is reachable and suitable']
    : []),
  ...(!isConnecting && Object.values(trustedIssuers).some(({ jwksFile }) => jwksFile === undefined)
    ? ['the trusted issuers were not contacted: gatehouse logs issuer_unavailable if their keys cannot be fetched']
    : []),
];
