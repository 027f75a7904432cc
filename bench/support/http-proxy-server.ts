/**
 * A server for comparison: node:https with http-proxy-3 and a keep-alive agent to the upstream.
 * No tokens, no rules, no forwarded headers, no log.
 *
 *   node http-proxy-server.ts <folder> <upstream port>      prints its port
 */
import { readFileSync } from 'node:fs';
import { Agent } from 'node:http';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { ProxyServer } from 'http-proxy-3';

const [folder = '', upstreamPort = ''] = process.argv.slice(2);
const proxy = new ProxyServer({
  target: `http://127.0.0.1:${upstreamPort}`,
  agent: new Agent({ keepAlive: true, maxSockets: 128 }),
});
proxy.on('error', (_error, _request, response) => void response?.destroy());

const server = createServer(
  {
    cert: readFileSync(join(folder, 'server.pem')),
    key: readFileSync(join(folder, 'server-key.pem')),
    keepAliveTimeout: 65_000,
  },
  (request, response) => proxy.web(request, response),
);
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`${JSON.stringify({ event: 'ready', port: (server.address() as AddressInfo).port })}\n`);
});
