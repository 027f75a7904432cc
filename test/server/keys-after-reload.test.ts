import { writeFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readKeyringFile, rotateKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';

let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway.close());

test('key warnings after a reload describe the loaded keys, even if the file has changed since', async () => {
  const { file } = gateway.server.settings().keys;
  const rotation = { alg: 'EdDSA', now: gateway.clock.now(), publishBefore: 0, keep: 1 } as const;
  writeKeyringFile(file, rotateKeyring(readKeyringFile(file), rotation), { replace: true });
  const reloading = gateway.server.reload(gateway.server.settings());
  // At this point the file has been read, and the store is being queried for its key ids.
  writeFileSync(file, 'being written');
  await reloading;
  const warnings = gateway.log.filter(({ event }) => event === 'key_warning').map((line) => line['warning']);
  expect(warnings).toEqual(Array(2).fill(expect.stringMatching(/retires before its longest grant/)));
  expect(gateway.auditEvents('keys_changed')).toHaveLength(1);
  expect((await gateway.grant()).token_type).toBe('Bearer');
});
