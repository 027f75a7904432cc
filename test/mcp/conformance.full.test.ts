import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { finish, spawnChild } from '../support/child-process.ts';
import { installNpmPackage } from '../support/npm-package.ts';
import { freePort } from '../support/ports.ts';
import { type McpGateway, REGISTERED, startMcpGateway } from './mcp-gateway.ts';
import { startTypeScriptServer } from './typescript-server.ts';

/** The scenarios for authorization servers of the conformance suite of the Model Context Protocol. */
const PACKAGE = '@modelcontextprotocol/conformance';
const VERSION = '0.2.0-alpha.12';
let server: Awaited<ReturnType<typeof startTypeScriptServer>>;
let gateway: McpGateway;
beforeAll(async () => {
  server = await startTypeScriptServer();
  gateway = await startMcpGateway(server.port);
});
afterAll(async () => {
  await gateway?.close();
  await server?.close();
});

test(`${PACKAGE}: metadata and authorization code grant`, async (context) => {
  const program = join(await installNpmPackage(context, PACKAGE, VERSION), 'dist/index.js');
  const port = await freePort();
  let opened: Promise<unknown> | undefined;
  const openInBrowser = async (url: string): Promise<void> => {
    const response = await fetch(await gateway.at.authorize(url));
    await response.text();
  };
  const { url } = gateway.at;
  const args = ['--url', url, '--client-id', REGISTERED, '--resource', gateway.url, '--port', String(port)];
  const child = spawnChild([process.execPath, program, 'authorization', ...args], {
    env: { ...process.env, NODE_EXTRA_CA_CERTS: gateway.at.files.ca },
    onLine(line) {
      if (line.startsWith(`${url}/authsvc/oauth2/authorize?`)) opened ??= openInBrowser(line);
    },
  });
  const { code, output } = await finish(child, 120);
  await opened;
  expect(code, output).toBe(0);
  expect(output).toMatch(/^Total: 3 passed, 0 failed/m);
}, 400_000);
