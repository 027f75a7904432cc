import {
  openPublicListener,
  type PublicListener,
  type PublicListenerOptions,
} from '../../src/listener/listener.ts';
import { createLogger } from '../../src/observability/logger.ts';

const NO_PEERS = { hasEntries: false, includes: () => false };

/** Opens only the gateway's public listener, on a free port. */
export const startTestListener = (
  options: Partial<PublicListenerOptions> & Pick<PublicListenerOptions, 'onRequest'>,
): Promise<PublicListener> =>
  openPublicListener({
    host: '127.0.0.1',
    port: 0,
    limits: { headers: 16_384, headerTimeout: 10, connections: 100 },
    proxyProtocol: NO_PEERS,
    trustedProxies: NO_PEERS,
    log: createLogger({ level: 'error', format: 'json', write() {} }),
    now: () => Date.now() / 1_000,
    ...options,
  });
