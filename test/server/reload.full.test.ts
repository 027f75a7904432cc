import { test } from 'vitest';
import { reloadUnderLoad, renewCertificatesUnderLoad, rotateKeysUnderLoad } from './reload-under-load.ts';

test(
  'O06 no request fails during a hundred reloads under load, half of them invalid, and each is served by one configuration',
  () => reloadUnderLoad(50),
  240_000,
);

test(
  'O07 no handshake fails while the server certificate is replaced fifty times, with incomplete files in between',
  () => renewCertificatesUnderLoad(50),
  240_000,
);

const ROTATIONS = Number(process.env['KEY_ROTATIONS'] ?? 10);

test(
  `O06 no request fails and no token becomes invalid during ${ROTATIONS} key rotations under load`,
  () => rotateKeysUnderLoad(ROTATIONS),
  60_000 + ROTATIONS * 10_000,
);
