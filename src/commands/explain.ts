import { isForwardableMethod } from '../domain/request-target.ts';
import { parseScope } from '../domain/scope.ts';
import { explain } from '../proxy/policy/explain.ts';
import { formatExplanation } from '../proxy/policy/explain-text.ts';
import { buildIntegrations } from '../server/build-from-settings.ts';
import { createExplainContext } from '../server/service-paths.ts';
import { COMMON_METHODS, CONFIG_OPTIONS, type Command, type CommandContext, UsageError, writeJson } from './command.ts';
import { loadCommandSettings } from './settings.ts';

export const command: Command = {
  name: 'explain',
  summary: 'shows which rule matches a request, what it requires, and whether a scope is sufficient',
  usage: ['gatehouse explain [--config FILE] METHOD PATH [--scope SCOPE] [--client CLIENT_ID]'],
  options: {
    ...CONFIG_OPTIONS,
    scope: { value: 'SCOPE', help: 'the scope of a hypothetical token, such as files:read' },
    client: { value: 'CLIENT_ID', help: 'the integration of a hypothetical token' },
    host: { value: 'HOST', help: 'the Host of the request (default: that of publicUrl)' },
  },
  positionals: { min: 2, max: 2, complete: [COMMON_METHODS] },
  notes: ['The exit code is 0 for every verdict; --output json includes the verdict.'],
  async run(context) {
    const { settings } = loadCommandSettings(context);
    const [method = '', path = ''] = context.positionals;
    if (!isForwardableMethod(method)) throw new UsageError('gatehouse explain: write METHOD in capitals, such as GET');
    const scope = parseScopeOption(context);
    const client = context.option('client');
    const integration = client === undefined ? undefined : buildIntegrations(settings, []).get(client);
    if (client !== undefined && integration === undefined)
      throw new UsageError(`gatehouse explain: there is no integration "${client}"`);
    const explanation = explain(createExplainContext(settings), {
      method,
      path,
      host: context.option('host') ?? new URL(settings.publicUrl).host,
      ...(scope !== undefined && { scope }),
      ...(client !== undefined && { client }),
      ...(integration !== undefined && { integration }),
    });
    const { rule, ...rest } = explanation;
    if (context.json)
      writeJson(context, { method, ...rest, rule: rule?.name ?? null, upstream: rule?.upstream ?? null });
    else context.stdout(`${[`${method} ${path}`, ...formatExplanation(explanation)].join('\n')}\n`);
  },
};

function parseScopeOption(context: CommandContext) {
  const text = context.option('scope');
  if (text === undefined) return undefined;
  const parsed = parseScope(text, { allowSpaces: true });
  if (parsed.ok) return parsed.value;
  throw new UsageError(`gatehouse explain: "${text}" is not a scope; write resource:permission,permission;resource`);
}
