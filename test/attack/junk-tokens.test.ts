import { onTestFinished, test } from 'vitest';
import { startForeignIssuer } from '../support/foreign-issuer-server.ts';
import { sendJunkTokens, startFloodedGateway } from './junk-tokens.ts';

test('junk tokens that claim a trusted issuer are refused and cause three fetches, and valid tokens are accepted meanwhile', async () => {
  const issuer = await startForeignIssuer();
  onTestFinished(() => issuer.close());
  const gateway = await startFloodedGateway(issuer);
  onTestFinished(() => gateway.close());
  const { access_token: own } = await gateway.grant();
  await sendJunkTokens(gateway, issuer, own, 300);
});
