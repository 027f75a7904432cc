import { expect, onTestFinished, test } from 'vitest';
import { rates } from '../../support/gateway-fleet.ts';
import { jsonPostInit, sendRequest } from '../../support/https-client.ts';
import { createServeFolder, startServe } from '../../support/serve-process.ts';

test('the workers of one machine share one limit', async () => {
  const folder = await createServeFolder((settings) => ({
    ...settings,
    ...rates({ token: '20/h' }),
    trustedProxies: ['127.0.0.1'],
  }));
  onTestFinished(() => folder.remove());
  const serving = await startServe(folder, { set: ['listen.workers=3'] });
  expect(serving.workers).toHaveLength(3);
  const isWorkerRequestLimited = async (from: string): Promise<boolean> => {
    const body = jsonPostInit('/Authorize/Token', { client_id: 'report-runner', refresh_token: 'none' });
    const headers = { ...body.headers, host: 'localhost', 'x-forwarded-for': from };
    const reply = await sendRequest({ ...body, port: serving.port, ca: folder.ca.pem, headers });
    // The token API returns 400 for every error; only rate limits have a long `Retry-After`.
    return Number(reply.headers['retry-after'] ?? 0) > 60;
  };
  const rejected: boolean[] = [];
  for (let index = 0; index < 45; index += 1) rejected.push(await isWorkerRequestLimited('203.0.113.7'));
  expect(rejected).toEqual(rejected.map((_, index) => index >= 20));
  expect(await isWorkerRequestLimited('203.0.113.8')).toBe(false);
  expect(await serving.stop()).toBe(0);
});
