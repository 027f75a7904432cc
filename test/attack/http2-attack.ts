import { afterEach, expect } from 'vitest';
import {
  CODE,
  type FrameClient,
  type FrameClientOptions,
  frameClient,
  headerBlock,
  headersFrame,
  requestFields,
} from '../support/http2-frames.ts';
import { type AttackGateway, useAttackGateway } from './attack-gateway.ts';

export const GET = headerBlock(requestFields('/public/1'));
export const get = (stream: number): Buffer => headersFrame(stream, GET);
export const post = (stream: number): Buffer =>
  headersFrame(stream, requestFields('/public/1', 'POST'), { end: false });

export interface Http2Attack {
  readonly attack: AttackGateway;
  /** Destroyed after the test. */
  readonly resources: { destroy(): void }[];
  readonly openClient: (options?: Omit<FrameClientOptions, 'ca'>) => Promise<FrameClient>;
  /** Opens the stream of a request whose response does not come, so that it stays open in both directions. */
  readonly openStream: (client: FrameClient) => Promise<number>;
  /** Why connections were closed for abuse, from the log. */
  readonly getCloseReasons: () => readonly unknown[];
  /** Expects that the connection is closed for abuse; without the bound, the PING after the attack would be acknowledged. */
  readonly expectClosedForAbuse: (client: FrameClient, bytes: Buffer) => Promise<void>;
  /** Expects that the connection is still open and in step: a request on it is served. */
  readonly expectServed: (client: FrameClient, stream?: number) => Promise<void>;
}

/**
 * X07: what the tests of the bounds on HTTP/2 clients need (docs/decisions/0038-http2-server.md). Each attack exceeds one
 * bound so far that its refill over some seconds does not matter, and stays below all others. Next to it is a legitimate
 * client that stays just below the bound.
 */
export function useHttp2Attack(): Http2Attack {
  const attack = useAttackGateway((settings) => ({ ...settings, log: { level: 'info' } }));
  const resources: { destroy(): void }[] = [];
  afterEach(() => {
    for (const resource of resources.splice(0)) resource.destroy();
  });
  const getCloseReasons = (): readonly unknown[] =>
    attack.gateway.log.filter(({ event }) => event === 'http2_connection_closed').map(({ why }) => why);
  return {
    attack,
    resources,
    getCloseReasons,
    async openClient(options = {}) {
      const { gateway } = attack;
      const client = await frameClient(gateway.port, { ca: gateway.ca.pem, ...options });
      resources.push(client);
      return client;
    },
    async openStream(client) {
      attack.upstream.respondWith((socket, { target }) => {
        if (target === '/public/1') socket.write('HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nGET /public/1');
      });
      return client.request([...requestFields('/public/held', 'POST'), ['content-length', '1000']], {
        end: false,
      });
    },
    async expectClosedForAbuse(client, bytes) {
      const before = getCloseReasons().length;
      client.send(bytes);
      await client.waitForPong();
      expect([client.isOver(), client.goAway()]).toEqual([true, CODE.enhanceYourCalm]);
      await client.until(() => client.closed());
      const reasons = getCloseReasons().slice(before);
      expect(reasons).toEqual([expect.stringMatching(/\w/)]);
      expect(attack.upstream.requests.length).toBeLessThanOrEqual(250);
      attack.upstream.reset();
      await attack.expectHealthy();
    },
    async expectServed(client, stream) {
      await client.waitForPong();
      expect([client.isOver(), client.goAway()]).toEqual([false, undefined]);
      const last = client.request(GET, stream === undefined ? {} : { stream });
      expect(await client.waitForEnd(last)).toEqual({ status: 200 });
      expect(client.body(last)).toBe('GET /public/1');
    },
  };
}
