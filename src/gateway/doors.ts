import { hash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { Settings } from '../config/schema.ts';
import { exposition, joinSnapshots } from '../observability/exposition.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import type { Snapshot } from '../observability/metric-registry.ts';
import { type AdminListener, type AdminTls, openAdmin } from '../ops/admin.ts';
import { type AdministrationDeps, administer } from '../ops/administration.ts';
import { Fault } from '../ports/fault.ts';
import type { CertificateFiles } from '../tls/certificate-files.ts';
import {
  openPublicListener,
  type PublicListener,
  type PublicListenerOptions,
  type TlsMaterial,
} from '../tls/listener.ts';
import type { Generation } from './generation.ts';
import type { OpenedStore } from './open-store.ts';
import { StartError } from './start-error.ts';

export const materialOf = (
  settings: Settings,
  files: CertificateFiles,
  ticketSecret: Buffer,
): TlsMaterial | undefined => {
  const { tls } = settings.listen;
  if (tls === undefined || files.server === undefined) return undefined;
  return {
    certificate: files.server.certificate,
    key: files.server.key,
    minVersion: tls.minVersion,
    issuers: tls.nameIssuers ? files.issuers.map(({ certificate }) => certificate.toString()) : [],
    ...(tls.sessionTickets !== 'off' && {
      tickets: { secret: ticketSecret, scope: ticketScope(settings, files) },
    }),
  };
};

/**
 * What a ticket must not outlive: who we are and by which certificate we prove it, whom we believe about clients, and where
 * we ask them. Whoever comes back after a change of these makes a whole handshake.
 */
function ticketScope(
  { publicUrl, listen: { tls } }: Settings,
  { server, issuers }: CertificateFiles,
): string {
  const trusted = issuers.map(({ certificate }) => certificate.fingerprint256).toSorted();
  const facts = [publicUrl, server?.certificate, tls?.minVersion, tls?.askCertificate, trusted];
  return hash('sha256', JSON.stringify(facts), 'base64url');
}

/** The door for clients. */
export async function openPublic(
  { settings, files }: Generation,
  log: Logger,
  now: () => number,
  ticketSecret: Buffer,
  hooks: Pick<
    PublicListenerOptions,
    'onCall' | 'onBegin' | 'onDone' | 'onSecured' | 'onTurnedAway' | 'trustedProxies' | 'firstReader'
  >,
): Promise<PublicListener> {
  const { host, port, tls, http2, proxyProtocol } = settings.listen;
  const material = materialOf(settings, files, ticketSecret);
  try {
    return await openPublicListener({
      host,
      port,
      ...(material !== undefined &&
        tls !== undefined && { tls: { ...material, askCertificate: tls.askCertificate, http2 } }),
      limits: settings.limits,
      proxyProtocol,
      ...hooks,
      log,
      now,
    });
  } catch (error) {
    throw portProblem('listen', host, port, error);
  }
}

/** The door for probes and operators. */
export async function openAdminFor(
  settings: Settings,
  store: () => OpenedStore | undefined,
  isDraining: () => boolean,
  checks: readonly { name: string; check(): Promise<void> }[],
  snapshots: () => Promise<readonly Snapshot[]>,
  /** Where grants are looked at and ended; left out while nobody can. */
  administration: () => AdministrationDeps | undefined,
  log: Logger,
): Promise<AdminListener> {
  const { host, port, hostNames, tokenFile } = settings.admin;
  try {
    return await openAdmin({
      host,
      port,
      hostNames,
      tokenFile,
      tls: adminTlsOf(settings),
      log,
      async administer(asked) {
        const deps = administration();
        if (deps === undefined) throw new Fault('store_unavailable', 'has not been reached yet');
        return administer(deps, asked);
      },
      checks: [
        {
          name: 'accepting',
          check: async () => {
            if (isDraining()) throw new Error('is shutting down');
          },
        },
        {
          name: 'store',
          check: async () => {
            const opened = store();
            if (opened === undefined) throw new Error('has not been reached yet');
            await opened.probe();
          },
        },
        ...checks,
      ],
      async metrics(found) {
        const isWell = (name?: string): 0 | 1 =>
          found.some((check) => check.problem !== undefined && (name ?? check.name) === check.name) ? 0 : 1;
        return exposition(
          joinSnapshots([
            ...(await snapshots()),
            { gatehouse_ready: [['', isWell()]], gatehouse_store_up: [['', isWell('store')]] },
          ]),
        );
      },
    });
  } catch (error) {
    throw portProblem('admin', host, port, error);
  }
}

/** The certificate files of the admin listener, read anew. */
function adminTlsOf({ admin: { tls } }: Settings): AdminTls | undefined {
  if (tls === undefined) return undefined;
  const read = (setting: string, file: string): string => {
    try {
      return readFileSync(file, 'utf8');
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      throw new StartError([`admin.tls.${setting}: ${file} cannot be read (${code})`], { cause: error });
    }
  };
  return {
    certificate: read('certificate', tls.certificate),
    key: read('key', tls.key),
    ...(tls.clientCa !== undefined && { clientCa: read('clientCa', tls.clientCa) }),
  };
}

/** Certificates of the admin listener that are renewed are used; those that cannot be used are told, and the old ones stay. */
export function renewAdminTls(admin: AdminListener | undefined, settings: Settings, log: Logger): void {
  try {
    const tls = adminTlsOf(settings);
    if (tls !== undefined) admin?.setTls(tls);
  } catch (error) {
    log.error('admin_tls_not_renewed', errorFields(error));
  }
}

export const adminFiles = ({ admin: { tls } }: Settings): string[] =>
  [tls?.certificate, tls?.key, tls?.clientCa].filter((file) => file !== undefined);

/** Row "event loop lag" of the failure policy: whoever balances the load should send it elsewhere for a moment. */
export const keepsUp = (isPressed: () => boolean) => ({
  name: 'event loop',
  check: async () => {
    if (isPressed()) throw new Error('does not keep up');
  },
});

/** What the operating system says about a port, and the setting that changes it. */
const PORT_PROBLEMS: Readonly<Record<string, (setting: string, address: string) => string>> = {
  EADDRINUSE: (setting, address) =>
    `${setting}.port: ${address} is taken by another program; end it, or change ${setting}.port`,
  EACCES: (setting, address) =>
    `${setting}.port: not allowed to listen on ${address}; choose a port above 1023, or give the right to`,
  EADDRNOTAVAIL: (setting, address) => `${setting}.host: ${address} is not an address of this machine`,
};

function portProblem(setting: 'listen' | 'admin', host: string, port: number, error: unknown): unknown {
  const problem = PORT_PROBLEMS[(error as NodeJS.ErrnoException).code ?? ''];
  return problem === undefined ? error : new StartError([problem(setting, `${host}:${port}`)]);
}
