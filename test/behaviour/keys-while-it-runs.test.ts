import { writeFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readKeyringFile, rotateKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { type House, openHouse } from '../support/house.ts';

let house: House;
beforeAll(async () => {
  house = await openHouse();
});
afterAll(() => house.close());

test('what is said about the keys after a reload is about those it has loaded, whatever the file holds by then', async () => {
  const { file } = house.gateway.settings().keys;
  const hasty = { alg: 'EdDSA', now: house.clock.now(), publishBefore: 0, keep: 1 } as const;
  writeKeyringFile(file, rotateKeyring(readKeyringFile(file), hasty), { replace: true });
  const reloading = house.gateway.reload(house.gateway.settings());
  // The file has been read; the store is being asked about its keys.
  writeFileSync(file, 'being written');
  await reloading;
  const warnings = house.log.filter(({ event }) => event === 'key_warning').map((line) => line['warning']);
  expect(warnings).toEqual(Array(2).fill(expect.stringMatching(/retires before the longest grant/)));
  expect(house.audits('keys_changed')).toHaveLength(1);
  expect((await house.grant()).token_type).toBe('Bearer');
});
