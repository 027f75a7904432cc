import type { Settings } from '../config/schema.ts';
import { readPackageVersion } from '../lib/package-version.ts';
import { readSettingFile } from '../lib/read-file.ts';
import { StartError } from '../lib/start-error.ts';
import { type AuditLog, type AuditSink, openAuditLog } from '../observability/audit-log.ts';
import { openAuditFile, openAuditWebhook } from '../observability/audit-sinks.ts';
import type { Logger } from '../observability/logger.ts';
import type { Metrics } from '../observability/metrics.ts';
import { collectProcessMetrics } from '../observability/process-metrics.ts';
import type { RecentEvents } from '../observability/recent-events.ts';
import { openTracer, type Tracer } from '../observability/tracing.ts';

const openConfiguredAuditLog = async (settings: Settings, log: Logger, metrics: Metrics): Promise<AuditLog> =>
  openAuditLog({ sink: await openAuditSink(settings), log, metrics });

export async function openObservability(
  settings: Settings,
  log: Logger,
  metrics: Metrics,
  recentEvents?: RecentEvents,
) {
  const audit = await openConfiguredAuditLog(settings, log, metrics);
  const tracer = openConfiguredTracer(settings, log, metrics);
  const stopProcessMetrics = collectProcessMetrics(metrics);
  return {
    /** Writes audit events to the configured sink. */
    log: withAudit(log, () => audit, recentEvents),
    audit,
    tracer,
    async close(): Promise<void> {
      stopProcessMetrics();
      await Promise.all([audit.close(), tracer?.close()]);
    },
  };
}

const withAudit = (log: Logger, getAudit: () => AuditLog, recentEvents: RecentEvents | undefined): Logger => ({
  ...log,
  audit(event, fields) {
    recentEvents?.recordAudit(event, fields);
    getAudit().audit(event, fields);
  },
});

export type ReloadableAuditLog = Awaited<ReturnType<typeof openReloadableAuditLog>>;

/**
 * Opens the supervisor's audit log, which follows reloads. It shares the sink with the workers through its own connection or file handle: files are appended to in whole lines, and
 * each webhook delivery has a unique id.
 */
export async function openReloadableAuditLog(
  settings: Settings,
  log: Logger,
  metrics: Metrics,
  recentEvents?: RecentEvents,
) {
  const serializeAudit = ({ audit }: Settings): string => JSON.stringify(audit);
  let key = serializeAudit(settings);
  let audit = await openConfiguredAuditLog(settings, log, metrics);
  let pendingChanges: Promise<unknown> = Promise.resolve();
  let closingLogs: Promise<unknown> = Promise.resolve();
  let closed = false;
  const switchSink = async (newSettings: Settings): Promise<void> => {
    if (closed || serializeAudit(newSettings) === key) return;
    try {
      const opened = await openConfiguredAuditLog(newSettings, log, metrics);
      closingLogs = Promise.all([closingLogs, audit.close()]);
      audit = opened;
      key = serializeAudit(newSettings);
    } catch (error) {
      const problems = error instanceof StartError ? error.problems : [(error as Error).message];
      log.error('audit_sink_reload_failed', { problems, note: 'the old audit sink stays in use' });
    }
  };
  return {
    log: withAudit(log, () => audit, recentEvents),
    /** Switches to the sink of these settings. If it cannot be opened, the error is logged and the old one stays in use. */
    reload(newSettings: Settings): void {
      pendingChanges = pendingChanges.then(() => switchSink(newSettings));
    },
    reopen: () => audit.reopen(),
    async close(): Promise<void> {
      closed = true;
      await pendingChanges;
      await Promise.all([closingLogs, audit.close()]);
    },
  };
}

async function openAuditSink({ audit }: Settings): Promise<AuditSink | undefined> {
  const { sink, file, webhook, failClosed } = audit;
  if (sink === 'file' && file !== undefined)
    try {
      return await openAuditFile(file, { sync: failClosed });
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      throw new StartError([`audit.file: ${file} cannot be written (${code})`], { cause: error });
    }
  if (sink === 'webhook' && webhook?.secret !== undefined) {
    const { url, secret, ca } = webhook;
    return openAuditWebhook({ url, secret, ca: readSettingFile('audit.webhook.ca', ca) });
  }
  return undefined;
}

function openConfiguredTracer({ tracing }: Settings, log: Logger, metrics: Metrics): Tracer | undefined {
  const { otlp: url, ratio, token, service, ca } = tracing;
  if (url === undefined || ratio === 0) return undefined;
  const common = { url, ratio, token, service, log, metrics };
  return openTracer({ ...common, version: readPackageVersion(), ca: readSettingFile('tracing.ca', ca) });
}
