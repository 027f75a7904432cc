import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { UnauthorizedError } from '@modelcontextprotocol/sdk/client/auth.js';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { installPythonTools, runPython } from '../clients/python.ts';
import { type Child, startChild } from '../support/child-process.ts';
import { recordFigures } from '../support/figures.ts';
import { freePort, waitForPort } from '../support/ports.ts';
import { withSettings } from '../support/reconfigure.ts';
import { until } from '../support/until.ts';
import { type McpGateway, REGISTERED, SCOPE, startMcpGateway } from './mcp-gateway.ts';
import { authorizeAndConnect, connect, createProvider, TestProvider } from './typescript-client.ts';
import { startTypeScriptServer } from './typescript-server.ts';

/** The official SDKs of the Model Context Protocol, as clients and as servers that know nothing about authorization. */
const FOLDER = dirname(fileURLToPath(import.meta.url));
const REQUIREMENTS = join(FOLDER, 'requirements.txt');
const TOOLS = ['add', 'count', 'next', 'whoami'];
const ACCESS_SECONDS = 3_600;

async function startPythonServer() {
  const bin = await installPythonTools(REQUIREMENTS);
  const port = await freePort();
  const child: Child = await startChild([join(bin, 'python'), join(FOLDER, 'python_server.py'), String(port)], {
    env: { ...process.env, PYTHONDONTWRITEBYTECODE: '1' },
  });
  await waitForPort(port, child.isRunning);
  return { port, close: async () => void (await child.stop('SIGINT')) };
}

/** Milliseconds from the click on *Revoke* until the stream had ended. */
const figures: Record<string, number> = {};
afterAll(() => {
  if (Object.keys(figures).length > 0) recordFigures('mcp-revocation', figures);
});

describe.each([
  ['TypeScript', startTypeScriptServer],
  ['Python', startPythonServer],
] as const)('a server of the %s SDK', (language, startServer) => {
  let server: { readonly port: number; close(): Promise<void> };
  let gateway: McpGateway;
  beforeAll(async () => {
    server = await startServer();
    gateway = await startMcpGateway(server.port);
  }, 300_000);
  afterAll(async () => {
    await gateway?.close();
    await server?.close();
  });

  describe('TypeScript client', () => {
    test('a registered client discovers everything from the 401, calls tools, and gets each progress notification at once', async () => {
      const provider = createProvider(gateway);
      await using connection = await authorizeAndConnect(gateway, provider);
      const [redirect] = provider.redirects;
      expect(Object.fromEntries(redirect?.searchParams ?? [])).toMatchObject({
        client_id: REGISTERED,
        redirect_uri: gateway.redirectUri,
        resource: gateway.url,
        scope: SCOPE,
        code_challenge_method: 'S256',
      });
      const { tools } = await connection.client.listTools();
      expect(tools.map(({ name }) => name).toSorted()).toEqual(TOOLS);
      expect(await connection.callTool('add', { a: 2, b: 3 })).toBe('5');
      expect(await connection.callTool('whoami')).toBe('alice');
      const steps: number[] = [];
      const counted = connection.callTool('count', { to: 3 }, (progress) => {
        steps.push(progress);
        // The server sends the next one after this: nothing is held back.
        void connection.callTool('next');
      });
      expect(await counted).toBe('done');
      expect(steps).toEqual([1, 2, 3]);
    });

    test('refreshes after its access token has expired, without a user', async () => {
      const provider = createProvider(gateway);
      await using connection = await authorizeAndConnect(gateway, provider);
      gateway.at.gateway.clock.advance(ACCESS_SECONDS + 1);
      expect(await connection.callTool('add', { a: 4, b: 5 })).toBe('9');
      expect(provider.savedTokens.length).toBeGreaterThan(1);
      expect(provider.redirects).toHaveLength(1);
    });

    test('a revocation by the user cuts the open stream, and the client has to ask for approval again', async () => {
      const provider = createProvider(gateway);
      await using connection = await authorizeAndConnect(gateway, provider);
      let isStreaming = false;
      connection.callTool('count', { to: 9 }, () => (isStreaming = true)).catch(() => {});
      await until('the stream has begun', () => isStreaming);
      connection.errors.length = 0;
      const cut = until('the client sees that its stream was cut', () => connection.errors.length > 0);
      const cutAt = cut.then(() => performance.now());
      const clickedAt = await gateway.revokeInBrowser();
      figures[`TypeScript client, ${language} server, ms`] = Math.round((await cutAt) - clickedAt);
      await expect(connection.callTool('add', { a: 1, b: 1 })).rejects.toThrow(UnauthorizedError);
      expect(provider.redirects.length).toBeGreaterThan(1);
    });

    test('version 1 of the SDK refreshes instead of asking for a wider scope, and asks once its tokens are discarded', async () => {
      const provider = createProvider(gateway);
      await using connection = await authorizeAndConnect(gateway, provider);
      const requireMore = (settings: SettingsInput): SettingsInput => ({
        ...settings,
        integrations: (settings.integrations ?? []).map((app) => ({ ...app, scope: 'mcp:use,admin' })),
        routes: [{ path: '/mcp', requires: 'mcp:admin' }],
      });
      await withSettings(gateway.at.gateway, requireMore, async () => {
        await expect(connection.callTool('whoami')).rejects.toThrow('403 after trying upscoping');
        expect(provider.savedTokens.length).toBeGreaterThan(1);
        expect(provider.redirects).toHaveLength(1);
        provider.invalidateCredentials('tokens');
        await using again = await authorizeAndConnect(gateway, provider);
        expect(provider.redirects.at(-1)?.searchParams.get('scope')).toContain('mcp:admin');
        expect(await again.callTool('whoami')).toBe('alice');
      });
    });

    test('a client that is not registered is known by its metadata document, and the page names its host', async () => {
      const provider = new TestProvider(gateway.redirectUri, { documentUrl: gateway.documentUrl });
      await using connection = await authorizeAndConnect(gateway, provider);
      expect(provider.redirects[0]?.searchParams.get('client_id')).toBe(gateway.documentUrl);
      const { host } = new URL(gateway.documentUrl);
      // The name is isolated from the direction of the text around it.
      const page = provider.approvals[0]?.replaceAll(/[\u2068\u2069]/g, '');
      expect(page).toContain(`${host} calls itself “Test agent” and is not registered here.`);
      expect(await connection.callTool('add', { a: 1, b: 1 })).toBe('2');
    });

    test('a client without an id gets an error of the SDK: there is no dynamic registration', async () => {
      const provider = new TestProvider(gateway.redirectUri, {});
      await expect(connect(gateway, provider)).rejects.toThrow(/dynamic client registration/i);
      expect(provider.redirects).toEqual([]);
    });
  });

  describe('Python client', () => {
    interface Step {
      readonly step: string;
      readonly [name: string]: unknown;
    }

    async function runClient(env: Readonly<Record<string, string>>) {
      const bin = await installPythonTools(REQUIREMENTS);
      const steps: Step[] = [];
      const authorized: string[] = [];
      const { code, output } = await runPython(join(bin, 'python'), [join(FOLDER, 'python_client.py')], {
        env: {
          MCP_URL: gateway.url,
          REDIRECT_URI: gateway.redirectUri,
          CA_FILE: gateway.at.files.ca,
          PYTHONDONTWRITEBYTECODE: '1',
          ...env,
        },
        onLine: async (line) => {
          if (!line.startsWith('{')) return undefined;
          const step = JSON.parse(line) as Step;
          steps.push(step);
          if (step.step === 'authorize') {
            authorized.push(String(step['url']));
            return (await gateway.authorize(String(step['url']))).response.href;
          }
          if (step.step === 'wait for expiry') {
            gateway.at.gateway.clock.advance(ACCESS_SECONDS + 1);
            return String(ACCESS_SECONDS + 1);
          }
          if (step.step === 'wait for revocation') {
            const { log } = gateway.at.gateway;
            const countEnded = (): number =>
              log.filter(({ event, reason }) => event === 'stream_ended' && reason === 'revoked').length;
            const before = countEnded();
            const ended = until('the stream is cut', () => countEnded() > before);
            const endedAt = ended.then(() => performance.now());
            const clickedAt = await gateway.revokeInBrowser();
            figures[`Python client, ${language} server, ms`] = Math.round((await endedAt) - clickedAt);
            return 'revoked';
          }
          return undefined;
        },
      });
      expect(code, output).toBe(0);
      return { steps, authorized };
    }

    test.each([
      ['registered', { CLIENT_ID: REGISTERED }],
      ['known by its metadata document', {}],
    ])('%s: discovery, tools, progress, refresh and revocation', async (kind, env) => {
      const document = kind === 'registered' ? {} : { CLIENT_METADATA_URL: gateway.documentUrl };
      const { steps, authorized } = await runClient({ ...env, ...document });
      expect(authorized).toHaveLength(1);
      const [url] = authorized.map((one) => new URL(one));
      expect(url?.searchParams.get('client_id')).toBe(kind === 'registered' ? REGISTERED : gateway.documentUrl);
      expect(url?.searchParams.get('resource')).toBe(gateway.url);
      const find = (name: string) => steps.find(({ step }) => step === name);
      expect(find('connected')).toMatchObject({
        version: language === 'Python' ? '2026-07-28' : '2025-11-25',
      });
      expect(find('tools')).toMatchObject({ names: TOOLS });
      expect(find('added')).toMatchObject({ text: '5' });
      expect(find('caller')).toMatchObject({ text: 'alice' });
      expect(steps.filter(({ step }) => step === 'progress')).toMatchObject([{ value: 1 }, { value: 2 }, { value: 3 }]);
      expect(find('counted')).toMatchObject({ text: 'done' });
      expect(find('after expiry')).toMatchObject({ text: '9' });
      expect(steps.filter(({ step }) => step === 'tokens')).toHaveLength(2);
      expect(steps.map(({ step }) => step)).toEqual(expect.arrayContaining(['cut', 'approval needed', 'refused']));
    });
  });
});
