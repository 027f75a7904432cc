import type { Settings } from '../../config/schema.ts';
import type { IssuerStatus } from '../../observability/gateway-status.ts';
import { Fault } from '../../ports/fault.ts';
import type { ConsoleHandler, ConsoleRequest } from '../context.ts';
import { selectProblems } from '../rejected-reload.ts';
import { type Figures, parseRange, renderFigures, renderOverview } from '../views/overview.ts';

export const showOverview: ConsoleHandler = async (request) => {
  const range = parseRange(request.query.get('range'));
  return {
    title: 'Overview',
    body: renderOverview(range, renderFigures(range, await readFigures(request))),
  };
};

/** The part that the script refreshes. */
export const showFigures: ConsoleHandler = async (request) => ({
  fragment: renderFigures(parseRange(request.query.get('range')), await readFigures(request)),
});

async function readFigures({ deps, identity, history, runChecks }: ConsoleRequest): Promise<Figures> {
  const settings = deps.getSettings();
  const [checks, replicas, status] = await Promise.all([runChecks(), readReplicas(deps), deps.getStatus()]);
  return {
    now: deps.now(),
    history,
    checks,
    replicas,
    configuration: {
      rejectedReload: selectProblems(status.rejectedReload, identity),
      pendingRestart: deps.findPendingRestart(settings),
    },
    issuers: listShownIssuers(settings, status.issuers),
    introspection: status.introspection,
  };
}

/** All trusted issuers, and integrations whose keys cannot be fetched: there may be many of them. */
const listShownIssuers = ({ trustedIssuers }: Settings, statuses: readonly IssuerStatus[]): Figures['issuers'] => [
  ...statuses.filter(({ name, state }) => Object.hasOwn(trustedIssuers, name) || state !== 'available'),
  ...Object.entries(trustedIssuers)
    .filter(([, { jwksFile }]) => jwksFile !== undefined)
    .map(([name]) => ({ name, state: 'in file' as const })),
];

async function readReplicas({ listReplicas }: ConsoleRequest['deps']): Promise<Figures['replicas']> {
  try {
    return await listReplicas();
  } catch (error) {
    if (error instanceof Fault) return 'unavailable';
    throw error;
  }
}
