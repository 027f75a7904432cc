import { stripVTControlCharacters } from 'node:util';
import { expect, onTestFinished, test } from 'vitest';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { startChild } from '../support/child-process.ts';
import { parseJson } from '../support/https-client.ts';
import { freePort } from '../support/ports.ts';
import { startRedis } from '../support/redis-server.ts';
import { createServeFolder, until } from '../support/serve-process.ts';
import type { LogLine } from '../support/test-gateway.ts';

test.each([1, 2])(
  'with %d worker(s), a start without Redis logs that it retries, is alive and not ready, and serves once Redis is reachable',
  async (workers) => {
    const [redisPort, adminPort] = [await freePort(), await freePort()];
    const folder = await createServeFolder((settings) => ({
      ...settings,
      listen: { ...settings.listen, workers },
      admin: { port: adminPort },
      store: { type: 'redis', url: `redis://:secret-of-redis@127.0.0.1:${redisPort}` },
      keys: { file: 'keys.json' },
    }));
    onTestFinished(() => folder.remove());
    writeKeyringFile(folder.file('keys.json'), createKeyringFile('EdDSA'), { replace: false });
    const log: LogLine[] = [];
    const server = await startChild(
      [process.execPath, 'src/main.ts', 'serve', '--config', folder.file('gatehouse.yaml')],
      {
        onLine: (line) => void log.push(parseJson(stripVTControlCharacters(line)) as LogLine),
        ready: (line) => line.includes('store_unreachable'),
      },
    );
    onTestFinished(async () => void (await server.stop('SIGKILL')));
    expect(log.find(({ event }) => event === 'store_unreachable')).toMatchObject({
      level: 'error',
      address: `127.0.0.1:${redisPort}`,
      reason: 'connection refused',
      note: 'retrying until Redis is reachable; no request is served before',
    });
    const probe = async (path: string): Promise<readonly [number, string]> => {
      const response = await fetch(`http://127.0.0.1:${adminPort}${path}`);
      return [response.status, await response.text()];
    };
    const [liveStatus] = await until('the admin listener is open', () => probe('/livez').catch(() => undefined));
    expect(liveStatus).toBe(200);
    const [status, text] = await probe('/readyz?verbose');
    expect(status).toBe(503);
    expect(text).toContain('"problem":"has not been reached yet: Redis: connection refused"');
    expect(JSON.stringify(log)).not.toContain('secret-of-redis');

    const redis = await startRedis(['--requirepass', 'secret-of-redis'], { port: redisPort });
    onTestFinished(() => redis.stop());
    await until('it is ready', async () => (await probe('/readyz'))[0] === 200, 60);
    expect(log.map(({ event }) => event)).toContain('store_reachable');
  },
);
