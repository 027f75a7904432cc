import { randomUUID } from 'node:crypto';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { json } from 'node:stream/consumers';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { z } from 'zod';
import { listenTcp } from '../support/tcp-server.ts';

/** An MCP server as the documentation of the SDK describes it: sessions, event streams, and nothing about authorization. */
export interface McpTestServer {
  readonly port: number;
  close(): Promise<void>;
}

/** Between two steps of `count`, until `next` is called. */
let continueCounting: () => void = () => {};

function createTools(): McpServer {
  const server = new McpServer({ name: 'tools', version: '1.0.0' });
  const text = (value: string) => ({ content: [{ type: 'text' as const, text: value }] });
  server.registerTool(
    'add',
    { description: 'Adds two numbers', inputSchema: { a: z.number(), b: z.number() } },
    async ({ a, b }) => text(String(a + b)),
  );
  server.registerTool('whoami', { description: 'Who calls' }, async ({ requestInfo }) =>
    text(String(requestInfo?.headers['x-forwarded-preferred-username'])),
  );
  server.registerTool(
    'count',
    { description: 'Reports each step, and waits for next', inputSchema: { to: z.number() } },
    async ({ to }, { _meta, sendNotification }) => {
      for (let progress = 1; progress <= to; progress += 1) {
        const { promise, resolve } = Promise.withResolvers<void>();
        continueCounting = resolve;
        const progressToken = _meta?.progressToken ?? '';
        const params = { progressToken, progress, total: to };
        await sendNotification({ method: 'notifications/progress', params });
        await promise;
      }
      return text('done');
    },
  );
  server.registerTool('next', { description: 'Continues count' }, async () => {
    continueCounting();
    return text('ok');
  });
  return server;
}

export async function startTypeScriptServer(): Promise<McpTestServer> {
  const transports = new Map<string, StreamableHTTPServerTransport>();
  const handle = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const sessionId = request.headers['mcp-session-id'];
    let transport = typeof sessionId === 'string' ? transports.get(sessionId) : undefined;
    if (transport === undefined && sessionId === undefined) {
      const created = new StreamableHTTPServerTransport({
        sessionIdGenerator: () => randomUUID(),
        onsessioninitialized: (id) => void transports.set(id, created),
        onsessionclosed: (id) => void transports.delete(id),
      });
      transport = created;
      await createTools().connect(created);
    }
    if (transport === undefined) return void response.writeHead(404).end();
    await transport.handleRequest(request, response, request.method === 'POST' ? await json(request) : undefined);
  };
  const { port, close } = await listenTcp(
    createServer((request, response) => {
      handle(request, response).catch((error: unknown) => response.writeHead(500).end(String(error)));
    }),
  );
  return {
    port,
    async close() {
      for (const transport of transports.values()) await transport.close();
      await close();
    },
  };
}
