import { test } from 'vitest';
import { reloadUnderLoad, renewCertificatesUnderLoad } from './reload-under-load.ts';

test(
  'O06 a hundred reloads under load, half of them invalid: no request fails, and each sees one configuration',
  () => reloadUnderLoad(50),
  240_000,
);

test(
  'O07 fifty server certificates one after the other, incomplete ones between them, and no handshake fails',
  () => renewCertificatesUnderLoad(50),
  240_000,
);
