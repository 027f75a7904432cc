import { createServer } from 'node:http';
import { startTestListener } from '../support/listener.ts';
import { type ProxyHarness, RULES, rule, startProxyHarness } from '../support/proxy-harness.ts';
import { type RecordingUpstream, startRecordingUpstream } from '../support/recording-upstream.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { type CaseClient, createCaseClient } from './case-client.ts';
import { hasUpgrade, type ParsedRequest } from './parsed-request.ts';

/** A server that records the requests that it has read completely, and a client for it. */
export interface ParsingServer {
  readonly requests: ParsedRequest[];
  readonly client: CaseClient;
  close(): Promise<void>;
}

/** RFC 9112 §3.2. The proxy refuses others after the head was read. */
const TARGET = /^(?:\/|\*$|https?:\/\/[\w.:[\]-]+(?:[/?]|$))/i;
const MAX_BODY_BYTES = 1_048_576;
const BODY_SECONDS = 600;

/** gatehouse's listener. */
export async function openOwnListener(): Promise<ParsingServer> {
  const requests: ParsedRequest[] = [];
  let started = 0;
  const listener = await startTestListener({
    limits: { headers: 16_384, headerTimeout: BODY_SECONDS, connections: 1_000 },
    onRequestStart: () => (started += 1),
    async onRequest(context) {
      const { method, url: target, rawHeaders: fields } = context.request;
      if (!TARGET.test(target)) return { status: 400, headers: {}, close: true };
      const read = await context.readBody(MAX_BODY_BYTES, BODY_SECONDS);
      if (read.kind === 'complete') requests.push({ method, target, fields, body: read.bytes.toString('latin1') });
      const status = { complete: 200, too_large: 413, timeout: 408, aborted: 400 }[read.kind];
      return {
        status,
        headers: {},
        body: `${method} ${target}`,
        close: status !== 200 || hasUpgrade({ fields }),
      };
    },
  });
  const client = createCaseClient(listener.port, () => started + requests.length);
  return {
    requests,
    client,
    async close() {
      client.drop();
      await listener.close();
    },
  };
}

/** Node's own HTTP server, whose parser is llhttp. */
export async function openNodeServer(): Promise<ParsingServer> {
  const requests: ParsedRequest[] = [];
  let started = 0;
  // Its limits must not be lower than gatehouse's, and an upgrade must be an ordinary request.
  const options = { maxHeaderSize: 65_536, keepAliveTimeout: 600_000, shouldUpgradeCallback: () => false };
  const server = createServer(options, (request, response) => {
    started += 1;
    const { method = '', url: target = '', rawHeaders: fields } = request;
    const parts: Buffer[] = [];
    request.on('error', () => {}).on('data', (part: Buffer) => parts.push(part));
    request.on('end', () => {
      const body = Buffer.concat(parts).toString('latin1');
      requests.push({ method, target, fields, body });
      const text = `${method} ${target}`;
      if (hasUpgrade({ fields })) response.setHeader('connection', 'close');
      response.setHeader('content-length', text.length).end(method === 'HEAD' ? '' : text);
    });
  });
  const { port, close } = await listenTcp(server);
  const client = createCaseClient(port, () => started + requests.length);
  return {
    requests,
    client,
    async close() {
      client.drop();
      await close();
    },
  };
}

/** A complete proxy, and its upstream. */
export interface ProxyServer {
  readonly proxy: ProxyHarness;
  readonly upstream: RecordingUpstream;
  readonly client: CaseClient;
  close(): Promise<void>;
}

export async function openProxy(): Promise<ProxyServer> {
  const upstream = await startRecordingUpstream();
  const proxy = await startProxyHarness({
    upstream: upstream.url,
    publicUrl: 'https://localhost:8443',
    // A weaker rule that matches other spellings of protected paths.
    rules: [...RULES, rule('/*/1', 'public')],
    // Long timeouts, so that a busy machine does not look like an upstream failure.
    upstreamSettings: { timeouts: { connect: 60, headers: 60, idle: 60 } },
  });
  const client = createCaseClient(proxy.port, () => upstream.bytes().length);
  return {
    proxy,
    upstream,
    client,
    async close() {
      client.drop();
      await proxy.close();
      await upstream.close();
    },
  };
}
