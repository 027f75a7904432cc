import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { afterEach } from 'vitest';
import { matrixSettings } from '../../attack/matrix-settings.ts';
import { type FrameClient, type FrameClientOptions, frameClient, requestFields } from '../../support/http2-frames.ts';
import { type RecordingUpstream, startRecordingUpstream } from '../../support/recording-upstream.ts';
import { listenTcp } from '../../support/tcp-server.ts';
import { type SettingsChange, startGateway, type TestGateway } from '../../support/test-gateway.ts';

export const GET = requestFields('/public/1');
export const POST = requestFields('/public/1', 'POST');

/** Gateways and HTTP/2 clients that are closed after each test. */
export interface StreamGateways {
  readonly setUp: (
    change?: SettingsChange,
  ) => Promise<{ readonly gateway: TestGateway; readonly upstream: RecordingUpstream }>;
  /** A gateway whose upstream handles each request in its own way, as its second segment says. */
  readonly setUpHandlers: (
    handlers: Record<string, (request: IncomingMessage, response: ServerResponse) => void>,
  ) => Promise<TestGateway>;
  readonly openClient: (gateway: TestGateway, options?: Omit<FrameClientOptions, 'ca'>) => Promise<FrameClient>;
}

export function useStreamGateways(): StreamGateways {
  const cleanups: (() => unknown)[] = [];
  afterEach(async () => {
    while (cleanups.length > 0) await cleanups.pop()?.();
  });
  return {
    async setUp(change) {
      const upstream = await startRecordingUpstream();
      cleanups.push(() => upstream.close());
      const gateway = await startGateway(matrixSettings(upstream.url, change));
      cleanups.push(() => gateway.close());
      return { gateway, upstream };
    },
    async setUpHandlers(handlers) {
      const server = await listenTcp(
        createServer((request, response) => {
          const handler = handlers[request.url?.split('/')[2] ?? ''];
          if (handler === undefined) response.end(`${request.method} ${request.url}`);
          else handler(request, response);
        }),
      );
      cleanups.push(() => server.close());
      const gateway = await startGateway(
        matrixSettings(`http://127.0.0.1:${server.port}`, (settings) => ({
          ...settings,
          upstreams: { default: { ...settings.upstreams?.['default'], bodyBuffer: 0 } },
        })),
      );
      cleanups.push(() => gateway.close());
      return gateway;
    },
    async openClient(gateway, options = {}) {
      const client = await frameClient(gateway.port, { ca: gateway.ca.pem, ...options });
      cleanups.push(() => client.destroy());
      return client;
    },
  };
}
