import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { stringify } from 'yaml';
import { type ConfigProblem, loadSettings } from '../../src/config/load.ts';
import type { SettingsInput } from '../../src/config/schema.ts';
import { withSettings } from '../support/reconfigure.ts';
import { type SettingsChange, startGateway, type TestGateway } from '../support/test-gateway.ts';

describe('a reload', () => {
  let gateway: TestGateway;
  beforeAll(async () => {
    gateway = await startGateway();
  });
  afterAll(() => gateway.close());
  beforeEach(() => gateway.clearLog());

  const withLimits =
    (changed: NonNullable<SettingsInput['limits']>): SettingsChange =>
    (settings) => ({ ...settings, limits: { ...settings.limits, ...changed } });
  const getRestartSettings = (): unknown[] =>
    gateway.log.filter(({ event }) => event === 'restart_needed').map((line) => line['setting']);

  test('logs which settings of the listener need a restart', () =>
    withSettings(
      gateway,
      (settings) => ({
        ...withLimits({ connections: 5, headerTimeout: '3s', headers: '8KiB' })(settings),
        listen: { ...settings.listen, proxyProtocol: ['10.0.0.0/8'] },
      }),
      async () =>
        expect(getRestartSettings()).toEqual([
          'listen.proxyProtocol',
          'limits.headers',
          'limits.headerTimeout',
          'limits.connections',
        ]),
    ));

  test('logs that changed credentials of the admin API need a restart', () =>
    withSettings(
      gateway,
      (settings) => ({
        ...settings,
        admin: {
          port: 0,
          tokenFile: 'another-token',
          tls: { certificate: 'server.pem', key: 'server-key.pem', clientCa: 'ca.pem' },
        },
      }),
      async () => expect(getRestartSettings()).toEqual(['admin.tokenFile', 'admin.tls']),
    ));

  test('logs at every reload which settings still need a restart', async () => {
    const both = ['listen.http2', 'admin.hostNames'];
    await withSettings(
      gateway,
      (settings) => ({
        ...settings,
        admin: { ...settings.admin, hostNames: ['metrics.example.test'] },
        listen: { ...settings.listen, http2: false },
      }),
      async () => {
        await gateway.reload((settings) => settings);
        expect(getRestartSettings()).toEqual([...both, ...both]);
      },
    );
    expect(getRestartSettings()).toHaveLength(4);
  });

  test('that restores the current value needs no restart', async () => {
    await gateway.reload(withLimits({ streams: 5 }));
    expect(getRestartSettings()).toEqual(['limits.streams']);
    await gateway.reload(withLimits({ streams: 100 }));
    expect(getRestartSettings()).toEqual(['limits.streams']);
  });

  test('that changes publicUrl logs it, since it invalidates every access token', () =>
    withSettings(
      gateway,
      (settings) => ({ ...settings, publicUrl: 'https://other.example.test' }),
      async () => expect(gateway.log.filter(({ event }) => event === 'public_url_changed')).toHaveLength(1),
    ));
});

/** Loads a configuration and returns the reported problems. */
function loadProblems(given: SettingsInput): readonly ConfigProblem[] {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-settings-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const file = join(folder, 'gatehouse.yaml');
  writeFileSync(file, stringify({ listen: { behindTls: true }, ...given }));
  const loaded = loadSettings({ file, env: {} });
  return loaded.ok ? [] : loaded.problems;
}
const loadProblemPaths = (given: SettingsInput): string[] => loadProblems(given).map(({ path }) => path);

describe('the configuration is refused', () => {
  test('when an identity header could be set by a client', () => {
    expect(loadProblemPaths({ headers: { user: 'Cookie' } })).toEqual(['headers.user']);
    expect(loadProblemPaths({ headers: { scope: 'X-Forwarded-For' } })).toEqual(['headers.scope']);
  });

  test('when a part of an upstream URL would be ignored', () => {
    for (const url of ['http://127.0.0.1:9000/base', 'http://u:p@127.0.0.1:9000', 'http://127.0.0.1:9000/?a'])
      expect(loadProblemPaths({ upstreams: { default: { url } } })).toEqual(['upstreams.default.url']);
    expect(loadProblemPaths({ upstreams: { default: { url: 'http://127.0.0.1:9000/' } } })).toEqual([]);
  });

  test('when an OpenID issuer is not limited to one tenant', () => {
    const problems = (path: string): string =>
      JSON.stringify(
        loadProblems({
          directories: { staff: { label: 'local', users: [] } },
          signIn: {
            openid: {
              works: {
                title: 'Works',
                issuer: `https://login.microsoftonline.com${path}`,
                clientId: 'x',
                directory: 'staff',
                claim: 'oid',
                means: 'id',
              },
            },
          },
        }),
      );
    for (const path of ['/common/v2.0', '/organizations/v2.0', '//COMMON/v2.0', ':443/consumers'])
      expect(problems(path), path).toContain('must name your tenant');
    expect(problems('/5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11/v2.0')).toBe('[]');
  });
});
