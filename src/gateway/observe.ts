import { readFileSync } from 'node:fs';
import type { Settings } from '../config/schema.ts';
import { openAuditFile } from '../observability/audit-file.ts';
import { type AuditLog, type AuditSink, openAuditLog } from '../observability/audit-log.ts';
import { openAuditSyslog } from '../observability/audit-syslog.ts';
import { openAuditWebhook } from '../observability/audit-webhook.ts';
import { packageVersion } from '../observability/build.ts';
import type { Logger } from '../observability/logger.ts';
import type { Metrics } from '../observability/metrics.ts';
import { watchProcess } from '../observability/process-metrics.ts';
import { openTracer, type Tracer } from '../observability/tracing.ts';
import { StartError } from './start-error.ts';

/** Who watches what this process does. */
export interface Observers {
  /** As it was given, but for its audit events: these go where the settings say. */
  readonly log: Logger;
  readonly metrics: Metrics;
  readonly audit: AuditLog;
  readonly tracer: Tracer | undefined;
  close(): Promise<void>;
}

const openAudit = async (settings: Settings, log: Logger, metrics: Metrics): Promise<AuditLog> =>
  openAuditLog({ sink: await openSink(settings), buffer: settings.audit.buffer, log, metrics });

export async function openObservers(settings: Settings, log: Logger, metrics: Metrics): Promise<Observers> {
  const audit = await openAudit(settings, log, metrics);
  const tracer = openTracing(settings, log, metrics);
  const unwatch = watchProcess(metrics);
  return {
    log: { ...log, audit: (event, fields) => audit.audit(event, fields) },
    metrics,
    audit,
    tracer,
    async close() {
      unwatch();
      await Promise.all([audit.close(), tracer?.close()]);
    },
  };
}

/** Where a process that is not replaced by another writes its audit events: it follows the settings by itself. */
export interface FollowingAudit {
  readonly log: Logger;
  /** Moves to the sink of these settings. One that cannot be opened is told, and the old one stays. */
  follow(settings: Settings): void;
  reopen(): void;
  /** Hands over what is left. */
  close(): Promise<void>;
}

/**
 * The supervisor's: it says what operators do. It has a connection and a file handle of its own to the workers' sink;
 * files are only added to, whole lines at once, and each delivery to a webhook has an id of its own.
 */
export async function openFollowingAudit(
  settings: Settings,
  log: Logger,
  metrics: Metrics,
): Promise<FollowingAudit> {
  const keyOf = ({ audit }: Settings): string => JSON.stringify(audit);
  let key = keyOf(settings);
  let audit = await openAudit(settings, log, metrics);
  let moves: Promise<unknown> = Promise.resolve();
  let left: Promise<unknown> = Promise.resolve();
  let closed = false;
  const move = async (wanted: Settings): Promise<void> => {
    if (closed || keyOf(wanted) === key) return;
    try {
      const opened = await openAudit(wanted, log, metrics);
      left = Promise.all([left, audit.close()]);
      audit = opened;
      key = keyOf(wanted);
    } catch (error) {
      const problems = error instanceof StartError ? error.problems : [(error as Error).message];
      log.error('audit_sink_not_changed', { problems, note: 'the old one stays in use' });
    }
  };
  return {
    log: { ...log, audit: (event, fields) => audit.audit(event, fields) },
    follow(wanted) {
      moves = moves.then(() => move(wanted));
    },
    reopen: () => audit.reopen(),
    async close() {
      closed = true;
      await moves;
      await Promise.all([left, audit.close()]);
    },
  };
}

async function openSink({ audit }: Settings): Promise<AuditSink | undefined> {
  const { sink, file, syslog, webhook, failClosed } = audit;
  if (sink === 'file' && file !== undefined)
    try {
      return await openAuditFile(file, { sync: failClosed });
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      throw new StartError([`audit.file: ${file} cannot be written (${code})`], { cause: error });
    }
  if (sink === 'syslog' && syslog !== undefined) {
    const { url, facility, ca, certificate, key } = syslog;
    return openAuditSyslog({
      url,
      facility,
      ca: read('audit.syslog.ca', ca),
      certificate: read('audit.syslog.certificate', certificate),
      key: read('audit.syslog.key', key),
    });
  }
  if (sink === 'webhook' && webhook?.secret !== undefined) {
    const { url, secret, batch, ca } = webhook;
    return openAuditWebhook({ url, secret, batch, ca: read('audit.webhook.ca', ca) });
  }
  return undefined;
}

function openTracing({ tracing }: Settings, log: Logger, metrics: Metrics): Tracer | undefined {
  const { otlp: url, ratio, token, service, ca } = tracing;
  if (url === undefined || ratio === 0) return undefined;
  const version = packageVersion();
  return openTracer({ url, ratio, token, service, version, ca: read('tracing.ca', ca), log, metrics });
}

function read(setting: string, file: string | undefined): string | undefined {
  if (file === undefined) return undefined;
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw new StartError([`${setting}: ${file} cannot be read (${code})`], { cause: error });
  }
}
