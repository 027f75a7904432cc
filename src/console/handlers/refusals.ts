import type { GrantView } from '../../admin/grants-api.ts';
import { parseScope } from '../../domain/scope.ts';
import type { RecentRefusal } from '../../observability/recent-events.ts';
import { Fault } from '../../ports/fault.ts';
import { explain } from '../../proxy/policy/explain.ts';
import type { ConsoleHandler, ConsoleRequest } from '../context.ts';
import { type RefusalContext, refusalPage, refusalsPage, unknownRefusalPage } from '../views/refusals.ts';
import { findGrant } from './grants.ts';

const MAX_SHOWN = 100;
const MAX_TEXT = 256;

export const showRefusals: ConsoleHandler = async ({ deps, query }) => {
  const text = (query.get('q') ?? '').trim().slice(0, MAX_TEXT);
  const { refusals } = await deps.findRecent({
    kind: 'refusals',
    limit: MAX_SHOWN,
    ...(text !== '' && { text }),
  });
  return refusalsPage(text, refusals, refusals.length === MAX_SHOWN);
};

/** One refusal, with what the rule requires and what the grant allows now. */
export const showRefusal: ConsoleHandler = async (request) => {
  const id = (request.query.get('id') ?? '').slice(0, MAX_TEXT);
  const { refusals } = await request.deps.findRecent({ kind: 'refusals', limit: 1, id });
  const [refusal] = refusals;
  return refusal === undefined ? unknownRefusalPage(id) : refusalPage(refusal, await readContext(request, refusal));
};

async function readContext(request: ConsoleRequest, refusal: RecentRefusal): Promise<RefusalContext> {
  const grant = refusal.grant === undefined ? undefined : await readGrant(request, refusal.grant);
  const requirement = findRequirement(request, refusal, grant?.scope);
  return {
    ...(grant !== undefined && { grantScope: grant.scope, grantState: grant.state }),
    ...requirement,
  };
}

/** A refusal is shown even if the store is unreachable: that may be its cause. */
async function readGrant(request: ConsoleRequest, id: string): Promise<GrantView | undefined> {
  try {
    return await findGrant(request, id);
  } catch (error) {
    if (error instanceof Fault) return undefined;
    throw error;
  }
}

/** What the rule requires, if the current configuration still has it. */
function findRequirement(
  { deps }: ConsoleRequest,
  { method, path, rule, client }: RecentRefusal,
  scopeText: string | undefined,
): Pick<RefusalContext, 'requirement' | 'verdict'> {
  if (path === undefined || rule === undefined) return {};
  const settings = deps.getSettings();
  const parsed = scopeText === undefined ? undefined : parseScope(scopeText, { allowSpaces: true });
  const integration = client === undefined ? undefined : deps.listIntegrations(settings).get(client);
  const explanation = explain(deps.createExplainContext(settings), {
    method,
    path,
    host: new URL(settings.publicUrl).host,
    ...(parsed?.ok === true && { scope: parsed.value }),
    ...(client !== undefined && { client }),
    ...(integration !== undefined && { integration }),
  });
  if (explanation.rule?.name !== rule) return {};
  const { requirement, verdict, reason } = explanation;
  return {
    ...(requirement !== undefined && { requirement }),
    ...(verdict === 'forbidden' && { verdict: reason }),
  };
}
