import { expect, test } from 'vitest';
import { fuzz } from './requests.ts';

/** Also uses Go's parser if Go is installed. */
test('H29 25,000 malformed requests cause no error and are forwarded only if authorized', async () => {
  const { sent, read, forwarded } = await fuzz({ count: 25_000, seed: 1, tls: false, go: true });
  expect(sent).toBeGreaterThanOrEqual(25_000);
  expect(read).toBeGreaterThan(7_500);
  expect(forwarded).toBeGreaterThan(3_000);
}, 1_800_000);

test('H29 2,000 malformed requests over TLS cause no error and are forwarded only if authorized', async () => {
  const { read, forwarded } = await fuzz({ count: 2_000, seed: 2, tls: true, go: true });
  expect(read).toBeGreaterThan(600);
  expect(forwarded).toBeGreaterThan(200);
}, 1_800_000);
