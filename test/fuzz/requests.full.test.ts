import { expect, test } from 'vitest';
import { fuzz } from './requests.ts';

/** Also uses Go's parser if Go is installed. */
test('H29 50,000 malformed requests cause no error and are forwarded only if authorized', async () => {
  const { sent, read, forwarded } = await fuzz({ count: 50_000, seed: 1, tls: false, go: true });
  expect(sent).toBeGreaterThanOrEqual(50_000);
  expect(read).toBeGreaterThan(15_000);
  expect(forwarded).toBeGreaterThan(6_000);
}, 1_800_000);

test('H29 2,000 malformed requests over TLS cause no error and are forwarded only if authorized', async () => {
  const { read, forwarded } = await fuzz({ count: 2_000, seed: 2, tls: true, go: true });
  expect(read).toBeGreaterThan(600);
  expect(forwarded).toBeGreaterThan(200);
}, 1_800_000);
