import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { BlockList, connect, type Socket } from 'node:net';
import { type ConnectionOptions, type TLSSocket, connect as tlsConnect } from 'node:tls';
import { afterEach, beforeAll } from 'vitest';
import type { Reply } from '../../src/http/reply.ts';
import type { RequestContext } from '../../src/http/request-context.ts';
import type { PeerList } from '../../src/listener/client-address.ts';
import type { PublicListener } from '../../src/listener/listener.ts';
import { type RequestParams, sendRequest } from '../support/https-client.ts';
import { startTestListener, type TestListenerOptions } from '../support/listener.ts';
import { createCa, type IssuedCertificate, issue, issueServer } from '../support/pki.ts';

export const GET = 'GET / HTTP/1.1\r\nHost: localhost\r\n\r\n';

export const LOCAL: PeerList = {
  hasEntries: true,
  includes: (address) => /^(?:::ffff:)?127\.0\.0\.1$/.test(address),
};

export const createPeerList = (...networks: readonly (readonly [string, number])[]): PeerList => {
  const list = new BlockList();
  for (const [address, bits] of networks) list.addSubnet(address, bits);
  return { hasEntries: true, includes: (address) => list.check(address.replace('::ffff:', '')) };
};

/** Reads from a connection until it is closed or the text matches. */
export async function readUntil(socket: Socket, until?: RegExp): Promise<string> {
  let text = '';
  return new Promise((resolve) => {
    const done = (): void => {
      socket.off('data', onData);
      resolve(text);
    };
    const onData = (part: Buffer): void => {
      text += part.toString('latin1');
      if (until?.test(text) === true) done();
    };
    socket.on('data', onData).once('close', done);
  });
}

const TICKET_SECRET = randomBytes(32);

export interface ListenOptions extends Partial<TestListenerOptions> {
  readonly ask?: 'always' | 'never' | readonly string[];
  readonly plain?: boolean;
}

export interface ListenerReply {
  readonly status: number;
  readonly body: { certificate?: string; peer?: string; client?: string; id?: string; error?: string };
  readonly headers: IncomingMessage['headers'];
}

const createTlsMaterial = (ca: IssuedCertificate, identity: IssuedCertificate) => ({
  certificate: identity.pem,
  key: identity.keyPem,
  minVersion: 'TLSv1.2' as const,
  issuers: [ca.pem],
  tickets: { secret: TICKET_SECRET, scope: 'here' },
});

/** Listeners and connections that are closed after each test. It is usable only inside hooks and tests. */
export interface TestListeners {
  readonly ca: IssuedCertificate;
  readonly server: IssuedCertificate;
  readonly alice: IssuedCertificate;
  /** Destroyed after the test. */
  readonly sockets: Socket[];
  readonly createTlsMaterial: (identity?: IssuedCertificate) => ReturnType<typeof createTlsMaterial>;
  /** Responds with the properties of the request context. */
  readonly describeRequest: (context: RequestContext) => Reply;
  readonly listen: (options?: ListenOptions) => Promise<PublicListener>;
  /** Sends one request on a new connection. */
  readonly call: (port: number, options?: Partial<RequestParams>) => Promise<ListenerReply>;
  readonly withAlice: () => { readonly cert: string; readonly key: string };
  readonly connectTls: (
    port: number,
    options?: ConnectionOptions,
  ) => Promise<TLSSocket & { readonly sessions: Buffer[] }>;
  readonly connectPlain: (port: number) => Promise<Socket>;
}

export function useListeners(): TestListeners {
  let ca: IssuedCertificate;
  let server: IssuedCertificate;
  let alice: IssuedCertificate;
  beforeAll(async () => {
    ca = await createCa();
    server = await issueServer(ca);
    alice = await issue(ca);
  });
  const openListeners: PublicListener[] = [];
  const sockets: Socket[] = [];
  afterEach(async () => {
    for (const socket of sockets.splice(0)) socket.destroy();
    await Promise.all(openListeners.splice(0).map((listener) => listener.close()));
  });
  const describeRequest = (context: RequestContext): Reply => ({
    status: 200,
    headers: {},
    body: JSON.stringify({
      certificate: context.certificate()?.equals(alice.der) === true ? 'alice' : context.certificate() && 'other',
      peer: context.peer,
      client: context.clientAddress,
      id: context.id,
    }),
  });
  return {
    get ca() {
      return ca;
    },
    get server() {
      return server;
    },
    get alice() {
      return alice;
    },
    sockets,
    createTlsMaterial: (identity = server) => createTlsMaterial(ca, identity),
    describeRequest,
    async listen({ ask = 'always', plain = false, ...rest } = {}) {
      const listener = await startTestListener({
        ...(!plain && { tls: { ...createTlsMaterial(ca, server), askCertificate: ask } }),
        onRequest: describeRequest,
        ...rest,
      });
      openListeners.push(listener);
      return listener;
    },
    async call(port, options = {}) {
      const { status, json, headers } = await sendRequest({ port, path: '/', ca: ca.pem, ...options });
      return { status, body: json, headers };
    },
    withAlice: () => ({ cert: alice.pem, key: alice.keyPem }),
    async connectTls(port, options = {}) {
      const sessions: Buffer[] = [];
      const socket = tlsConnect({ host: '127.0.0.1', port, ca: ca.pem, servername: 'localhost', ...options });
      sockets.push(socket);
      socket.on('error', () => {});
      socket.on('session', (session: Buffer) => sessions.push(session));
      await once(socket, 'secureConnect');
      return Object.assign(socket, { sessions });
    },
    async connectPlain(port) {
      const socket = connect(port, '127.0.0.1');
      sockets.push(socket);
      socket.on('error', () => {});
      await once(socket, 'connect');
      return socket;
    },
  };
}
