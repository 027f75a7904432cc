import type { SettingsInput } from '../../src/config/schema.ts';
import type { SettingsChange } from '../support/test-gateway.ts';

/** The authority of `publicUrl`. */
export const OWN = 'localhost:8443';

const routes = [
  { path: '/public/**', public: true },
  { path: '/files/**', requires: 'files:read' },
  { path: '/admin/**', requires: 'admin:manage' },
  { path: '/packages/*', requires: 'any-token', encodedSlash: true },
  { path: '/socket', requires: 'files:read', websocket: true },
  { path: '/keeps/**', requires: 'any-token', forwardAuthorization: true },
] as const satisfies SettingsInput['routes'];

/** The routes of the catalogue in test/README.md, with one upstream. */
export const matrixSettings =
  (upstreamUrl: string, change: SettingsChange = (settings) => settings): SettingsChange =>
  (settings) =>
    change({
      ...settings,
      upstreams: { default: { url: upstreamUrl, timeouts: { headers: '5s', idle: '5s' } } },
      routes: routes.map((route) => ({ ...route })),
    });
