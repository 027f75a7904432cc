import type { Client } from 'undici';
import { isHealthyOverHttp2 } from './http2/health-check.ts';
import type { Target, Targets, UpstreamSettings } from './targets.ts';
import { toTlsOptions, type UpstreamTlsFiles } from './tls-files.ts';

/** Checks in a row after which a target is healthy, or unhealthy. */
const HEALTHY_CHECKS = 2;
const UNHEALTHY_CHECKS = 3;

type HealthCheckSettings = NonNullable<UpstreamSettings['health']>;

interface HealthConnection {
  readonly isHttp2: boolean;
  readonly serverName: string | undefined;
  readonly tlsFiles: UpstreamTlsFiles;
}

/**
 * Sends health checks to each target. They decide only which target is chosen: whether gatehouse itself is ready never
 * depends on them.
 */
export function watchHealth(
  targets: Targets,
  terms: HealthCheckSettings,
  connection: HealthConnection,
): { stop(): void } {
  const stopped = new AbortController();
  const checks = targets.all.map((target) => ({ target, good: 0, bad: 0, isRunning: false }));
  const checkAll = (): void => {
    for (const check of checks) {
      // The timeout may be longer than the interval.
      if (check.isRunning) continue;
      check.isRunning = true;
      void isHealthy(check.target, terms, connection, stopped.signal).then((isGood) => {
        check.isRunning = false;
        if (stopped.signal.aborted) return;
        check.good = isGood ? check.good + 1 : 0;
        check.bad = isGood ? 0 : check.bad + 1;
        if (check.good >= HEALTHY_CHECKS) targets.reportHealth(check.target, true);
        if (check.bad >= UNHEALTHY_CHECKS) targets.reportHealth(check.target, false);
      });
    }
  };
  const timer = setInterval(checkAll, terms.interval * 1_000).unref();
  checkAll();
  return {
    stop() {
      clearInterval(timer);
      stopped.abort();
    },
  };
}

/** At most this much of the body of a health check is read; it decides nothing. */
const MAX_BODY = 1_048_576;

/** Any 2xx or 3xx within the timeout is good. Each check uses a connection of its own. */
async function isHealthy(
  target: Target,
  settings: HealthCheckSettings,
  connection: HealthConnection,
  stopped: AbortSignal,
): Promise<boolean> {
  const { path = '/', timeout } = settings;
  if (connection.isHttp2) return isHealthyOverHttp2(target.url, settings, connection, stopped);
  let client: Client | undefined;
  try {
    client = await openClient(target.url, timeout, connection);
    const { statusCode, body } = await client.request({
      method: 'GET',
      path,
      headers: { 'user-agent': 'gatehouse-health' },
      signal: AbortSignal.any([stopped, AbortSignal.timeout(timeout * 1_000)]),
    });
    await body.dump({ limit: MAX_BODY });
    return statusCode >= 200 && statusCode < 400;
  } catch {
    return false;
  } finally {
    await client?.destroy().catch(() => {});
  }
}

/** undici is loaded with the first health check: it takes 60 ms, and most configurations have none. */
async function openClient(url: string, timeout: number, { serverName, tlsFiles }: HealthConnection): Promise<Client> {
  const { Client: UndiciClient } = await import('undici');
  const isUnix = url.startsWith('unix:');
  return new UndiciClient(isUnix ? 'http://localhost' : new URL(url).origin, {
    ...(isUnix && { socketPath: url.slice('unix:'.length) }),
    allowH2: false,
    connect: {
      timeout: timeout * 1_000,
      rejectUnauthorized: true,
      ...(serverName !== undefined && { servername: serverName }),
      ...toTlsOptions(tlsFiles),
    },
  });
}
