import { expect, onTestFinished, test } from 'vitest';
import { splitRefreshToken } from '../support/forged-tokens.ts';
import { connect, createServeFolder, startServe, until } from '../support/serve-process.ts';
import { stallFlush } from '../support/stalled-flush.ts';

test('S16 R15 a disk that does not flush for 10 s is a temporary failure, and a retry after it gets the single successor', async (context) => {
  const folder = await createServeFolder();
  onTestFinished(() => folder.remove());
  const server = await startServe(folder);
  const client = connect(folder, server.port, folder.alice);
  onTestFinished(() => client.close());
  const { refresh_token: token } = await client.grant();
  const stall = await stallFlush(server.pid);
  if (stall === undefined) return context.skip('this user may not trace processes');
  onTestFinished(() => stall.resume());
  // The first write waits for the disk; further ones are refused at once.
  for (let count = 0; count < 3; count += 1) {
    const refused = await client.refresh(token);
    expect(refused).toMatchObject({ status: 400, json: { Error: 'invalid_request' } });
    expect(Number(refused.headers['retry-after'])).toBeGreaterThan(0);
  }
  await stall.resume();
  const retried = await until('the disk flushes', async () => {
    const reply = await client.refresh(token);
    return reply.json['Error'] !== 'invalid_request' && reply;
  });
  expect(retried.status).toBe(200);
  expect(splitRefreshToken(String(retried.json['refresh_token'])).generation).toBe(2);
  expect(server.log.some(({ event }) => event === 'refresh_reuse')).toBe(false);
});
