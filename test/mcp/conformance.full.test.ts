import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, type TestContext, test } from 'vitest';
import { finish, spawnChild } from '../support/child-process.ts';
import { freePort } from '../support/ports.ts';
import { type McpGateway, REGISTERED, startMcpGateway } from './mcp-gateway.ts';
import { startTypeScriptServer } from './typescript-server.ts';

/** The scenarios for authorization servers of the conformance suite of the Model Context Protocol. */
const PACKAGE = '@modelcontextprotocol/conformance';
const VERSION = '0.2.0-alpha.12';
const FOLDER = join(import.meta.dirname, '../../node_modules/.cache', `mcp-conformance-${VERSION}`);
const INSTALL_MS = 240_000;

/** Installs the suite once for all runs of a checkout; returns its program. Skips the test without a registry. */
async function installSuite(context: TestContext): Promise<string> {
  if (!existsSync(FOLDER)) {
    const newFolder = `${FOLDER}.${process.pid}`;
    mkdirSync(newFolder, { recursive: true });
    const options = ['--ignore-scripts', '--no-audit', '--no-fund', '--prefix', newFolder];
    try {
      await promisify(execFile)('npm', ['install', ...options, `${PACKAGE}@${VERSION}`], {
        timeout: INSTALL_MS,
      });
      renameSync(newFolder, FOLDER);
    } catch (error) {
      rmSync(newFolder, { recursive: true, force: true });
      context.skip(`npm cannot install ${PACKAGE} (is a registry reachable?): ${(error as Error).message}`);
    }
  }
  return join(FOLDER, 'node_modules', PACKAGE, 'dist/index.js');
}

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
  const program = await installSuite(context);
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
