import type { Settings } from '../../config/schema.ts';
import { isForwardableMethod } from '../../domain/method.ts';
import { formatScope, parseScope, type Scope } from '../../domain/scope.ts';
import { explain } from '../../proxy/policy/explain.ts';
import type { ConsoleHandler, ConsoleRequest } from '../context.ts';
import { type ExplainExample, type ExplainFields, type ExplainResult, explainPage } from '../views/explain.ts';

const MAX_LENGTHS = { method: 32, path: 4_096, scope: 4_096, client: 256, host: 259 } as const;

export const showExplanation: ConsoleHandler = async (request) => {
  const { query, deps } = request;
  const read = (name: keyof typeof MAX_LENGTHS): string => (query.get(name) ?? '').trim();
  const fields: ExplainFields = {
    method: read('method') || 'GET',
    path: read('path'),
    scope: read('scope'),
    client: read('client'),
    host: read('host'),
  };
  const clients = [...deps.listIntegrations(deps.getSettings()).keys()];
  const result = fields.path === '' ? undefined : explainFields(request, fields);
  return explainPage(fields, clients, result ?? { example: findExample(deps.getSettings()) });
};

/** A request that the first rule with a scope allows. */
function findExample({ routes }: Settings): ExplainExample | undefined {
  const route = routes.find(({ requires, host }) => requires instanceof Map && host === undefined);
  if (route === undefined) return undefined;
  const { path, methods, clients } = route;
  return {
    method: methods?.[0] ?? 'GET',
    path: path.replace(/\*\*$/, 'example').replaceAll('*', 'example'),
    scope: formatScope(route.requires as Scope),
    ...(clients?.[0] !== undefined && { client: clients[0] }),
  };
}

/** As `gatehouse explain`, with the configuration in use. */
function explainFields({ deps }: ConsoleRequest, fields: ExplainFields): ExplainResult {
  const { method, path, client, host } = fields;
  for (const [name, max] of Object.entries(MAX_LENGTHS))
    if (fields[name as keyof ExplainFields].length > max)
      return { problem: `${name} must have at most ${max} characters.` };
  if (!isForwardableMethod(method)) return { problem: 'Write the method in capitals, such as GET.' };
  const scope = fields.scope === '' ? undefined : parseScope(fields.scope, { allowSpaces: true });
  if (scope?.ok === false) return { problem: 'This is not a scope. Write resource:permission,permission;resource.' };
  const settings = deps.getSettings();
  const integration = client === '' ? undefined : deps.listIntegrations(settings).get(client);
  if (client !== '' && integration === undefined) return { problem: 'No integration has this client id.' };
  return {
    explanation: explain(deps.createExplainContext(settings), {
      method,
      path,
      host: host === '' ? new URL(settings.publicUrl).host : host,
      ...(scope !== undefined && { scope: scope.value }),
      ...(client !== '' && { client }),
      ...(integration !== undefined && { integration }),
    }),
  };
}
