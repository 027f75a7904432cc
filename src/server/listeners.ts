import { hash } from 'node:crypto';
import { availableParallelism } from 'node:os';
import type { Settings } from '../config/schema.ts';
import { StartError } from '../lib/start-error.ts';
import { clientAccounts, deriveClientLimits } from '../listener/client-accounts.ts';
import {
  checkTlsContext,
  openPublicListener,
  type PublicListener,
  type PublicListenerOptions,
  type TlsContextOptions,
} from '../listener/listener.ts';
import type { CertificateFiles } from '../x509/certificate-files.ts';

interface TlsContextSources {
  readonly settings: Settings;
  readonly files: CertificateFiles;
}

export function createTlsContextOptions(
  { settings, files }: TlsContextSources,
  ticketSecret: Buffer,
): TlsContextOptions | undefined {
  const { tls } = settings.listen;
  if (tls === undefined || files.server === undefined) return undefined;
  return {
    certificate: files.server.certificate,
    key: files.server.key,
    minVersion: tls.minVersion,
    issuers: files.issuers.map(({ certificate }) => certificate.toString()),
    ...(tls.sessionTickets !== 'off' && {
      tickets: { secret: ticketSecret, scope: computeTicketScope(settings, files) },
    }),
  };
}

/** Throws a `StartError` if the listener cannot use the certificate. */
export function checkListenerTls(settings: Settings, files: CertificateFiles): void {
  const options = createTlsContextOptions({ settings, files }, Buffer.alloc(0));
  try {
    if (options !== undefined) checkTlsContext(options);
  } catch (error) {
    throw new StartError([`listen.tls: ${(error as Error).message}`]);
  }
}

/** A session ticket is valid only while these stay the same; after a change clients make a full handshake. */
function computeTicketScope({ publicUrl, listen: { tls } }: Settings, { server, issuers }: CertificateFiles): string {
  const trusted = issuers.map(({ certificate }) => certificate.fingerprint256).toSorted();
  const inputs = [publicUrl, server?.certificate, tls?.minVersion, tls?.askCertificate, trusted];
  return hash('sha256', JSON.stringify(inputs), 'base64url');
}

type ListenerHooks = Omit<PublicListenerOptions, 'host' | 'port' | 'tls' | 'limits' | 'proxyProtocol'>;

export async function startPublicListener(
  sources: TlsContextSources,
  ticketSecret: Buffer,
  hooks: ListenerHooks,
): Promise<PublicListener> {
  const { limits, listen } = sources.settings;
  const { host, port, tls, http2, proxyProtocol } = listen;
  const tlsOptions = createTlsContextOptions(sources, ticketSecret);
  const derived = deriveClientLimits(listen.workers === 'auto' ? availableParallelism() : listen.workers);
  clientAccounts.limit = derived.bytes;
  try {
    return await openPublicListener({
      host,
      port,
      ...(tlsOptions !== undefined &&
        tls !== undefined && { tls: { ...tlsOptions, askCertificate: tls.askCertificate, http2 } }),
      limits:
        limits.connections === undefined ? { ...limits, ...derived } : { ...limits, connections: limits.connections },
      proxyProtocol,
      ...hooks,
    });
  } catch (error) {
    throw toListenError('listen', listen, error);
  }
}

/** Errors of listen(2), with the setting to change. */
const LISTEN_ERRORS: Readonly<Record<string, (setting: string, address: string) => string>> = {
  EADDRINUSE: (setting, address) =>
    `${setting}.port: ${address} is in use by another program; stop it, or change ${setting}.port`,
  EACCES: (setting, address) =>
    `${setting}.port: no permission to listen on ${address}; choose a port above 1023, or grant CAP_NET_BIND_SERVICE`,
  EADDRNOTAVAIL: (setting, address) => `${setting}.host: ${address} is not an address of this machine`,
};

export function toListenError(
  setting: 'listen' | 'admin',
  { host, port }: { readonly host: string; readonly port: number },
  error: unknown,
): unknown {
  const format = LISTEN_ERRORS[(error as NodeJS.ErrnoException).code ?? ''];
  return format === undefined ? error : new StartError([format(setting, `${host}:${port}`)]);
}
