import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type ClientGateway, startClientGateway } from '../support/client-gateway.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { withTokens } from '../support/reconfigure.ts';
import { installPythonTools, runPython } from './python.ts';

/** Third-party Python libraries, used as documented, with a running gateway over TLS. */
let at: ClientGateway;
freezeClock();
let bin: string;
beforeAll(async () => {
  bin = await installPythonTools();
  at = await startClientGateway();
}, 300_000);
afterAll(() => at.close());

const FOLDER = dirname(fileURLToPath(import.meta.url));
const STEPS = [
  'discovery',
  'authorization_pending',
  'slow_down',
  'approve',
  'granted',
  'called',
  'refreshed',
  'introspected',
  'replayed',
  'approve',
  'revoked',
];

interface Step {
  readonly step: string;
  readonly user_code?: string;
  readonly seconds?: number;
  readonly token?: string;
}

async function runWalkthrough(name: string): Promise<readonly Step[]> {
  const steps: Step[] = [];
  const { code, output } = await runPython(join(bin, 'python'), [join(FOLDER, name)], {
    env: {
      GATEHOUSE_URL: at.url,
      REQUESTS_CA_BUNDLE: at.files.ca,
      CLIENT_CERTIFICATE: at.files.certificate,
      CLIENT_KEY: at.files.key,
      PYTHONDONTWRITEBYTECODE: '1',
    },
    onLine: async (line) => {
      const step = JSON.parse(line) as Step;
      steps.push(step);
      if (step.step !== 'approve') return undefined;
      await at.approve(String(step.user_code));
      at.gateway.clock.advance(Number(step.seconds));
      return 'done';
    },
  });
  expect(code, output).toBe(0);
  return steps;
}

describe.each(['jwt', 'opaque'] as const)('with %s tokens', (format) => {
  beforeAll(() => at.gateway.reload(withTokens({ format })));

  test('requests-oauthlib: discovery, device flow with pending and slow_down, a call, refresh, introspection, replay, revocation', async () => {
    const steps = await runWalkthrough('requests_oauthlib_walkthrough.py');
    expect(steps.map(({ step }) => step)).toEqual(STEPS);
    expect(steps.find(({ token }) => token)?.token).toMatch(format === 'jwt' ? /^eyJ/ : /==$/);
  });

  test('Authlib: the same, and client_credentials with a certificate', async () => {
    const steps = await runWalkthrough('authlib_walkthrough.py');
    expect(steps.map(({ step }) => step)).toEqual([...STEPS, 'certified']);
  });
});
