import { expect, onTestFinished, test } from 'vitest';
import { openHouse } from '../support/house.ts';

test('O13 probes and metrics are on the admin listener only: their paths on the public port follow the routes', async () => {
  const house = await openHouse();
  onTestFinished(() => house.close());
  const { access_token: token } = await house.grant();
  for (const path of ['/metrics', '/readyz', '/ready', '/livez', '/healthz', '/ping', '/admin/grants'])
    expect([path, (await house.api(path)).status, (await house.api(path, token)).status]).toEqual([
      path,
      401,
      404,
    ]);
  for (const path of ['/health', '/files/1', '/authsvc/Authorize/Verify'])
    expect([path, (await fetch(`http://127.0.0.1:${house.adminPort}${path}`)).status]).toEqual([path, 404]);
});
