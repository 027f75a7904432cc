import { createServer } from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { runGatehouse } from '../support/command-line.ts';
import { withTrustedIssuer } from '../support/foreign-issuer-server.ts';
import { LDAP_SETTINGS } from '../support/ldap-server.ts';
import { createProviderSettings } from '../support/openid-provider.ts';
import { createServeFolder } from '../support/serve-process.ts';
import { listenTcp } from '../support/tcp-server.ts';

test('check --connect reports dependencies that accept connections and never respond, each within 10 s, and exits', async () => {
  const silent = await listenTcp(createServer((socket) => void socket.on('error', () => {})));
  onTestFinished(() => silent.close());
  const address = `127.0.0.1:${silent.port}`;
  const folder = await createServeFolder((settings) => ({
    ...withTrustedIssuer({ url: `http://${address}` }, { timeout: '30s' })(settings),
    store: { type: 'redis', url: `redis://${address}` },
    keys: { file: 'keys.json' },
    directories: {
      ...settings.directories,
      people: {
        label: 'people',
        ldap: { ...LDAP_SETTINGS, url: [`ldap://${address}`], timeout: '30s', cacheLifetime: '1s' },
      },
    },
    signIn: { openid: { login: createProviderSettings(`https://${address}`) } },
    upstreams: { default: { url: `https://${address}` } },
  }));
  onTestFinished(() => folder.remove());
  writeKeyringFile(folder.file('keys.json'), createKeyringFile('EdDSA'), { replace: false });
  const { code, stdout, stderr } = await runGatehouse([
    'check',
    '--connect',
    '--output',
    'json',
    '--config',
    folder.file('gatehouse.yaml'),
  ]);
  expect({ code, stderr }).toEqual({ code: 78, stderr: '' });
  const { connections } = JSON.parse(stdout) as {
    connections: { ok: boolean; duration_ms: number; problem: string }[];
  };
  expect(connections.map(({ ok }) => ok)).toEqual([false, false, false, false, false]);
  for (const { duration_ms: duration, problem } of connections) {
    expect(problem).not.toBe('');
    expect(duration).toBeLessThan(11_000);
  }
});
