import type { SettingsInput } from '../../src/config/schema.ts';
import type { SettingsChange, TestGateway } from './test-gateway.ts';

/** Runs `run` with changed settings, then restores the previous ones with another reload. */
export async function withSettings<T>(gateway: TestGateway, change: SettingsChange, run: () => Promise<T>): Promise<T> {
  let before: SettingsInput | undefined;
  await gateway.reload((settings) => {
    before = settings;
    return change(settings);
  });
  try {
    return await run();
  } finally {
    await gateway.reload((settings) => before ?? settings);
  }
}

type Integration = NonNullable<SettingsInput['integrations']>[number];
type User = NonNullable<NonNullable<SettingsInput['directories']>[string]['users']>[number];

export const withIntegration =
  (clientId: string, changes: Partial<Integration>): SettingsChange =>
  (settings) => ({
    ...settings,
    integrations: (settings.integrations ?? []).map((integration) =>
      integration.clientId === clientId ? { ...integration, ...changes } : integration,
    ),
  });

export const withoutIntegration =
  (clientId: string): SettingsChange =>
  (settings) => ({
    ...settings,
    integrations: (settings.integrations ?? []).filter((integration) => integration.clientId !== clientId),
    routes: (settings.routes ?? []).filter((route) => route.clients?.includes(clientId) !== true),
  });

export const withUser =
  (name: string, changes: Partial<User>): SettingsChange =>
  (settings) => {
    const staff = settings.directories?.['staff'];
    if (staff === undefined) throw new Error('the settings have no directory "staff"');
    const users = (staff.users ?? []).map((user) => (user.name === name ? { ...user, ...changes } : user));
    return { ...settings, directories: { ...settings.directories, staff: { ...staff, users } } };
  };

export const withTokens =
  (changes: NonNullable<SettingsInput['tokens']>): SettingsChange =>
  (settings) => ({ ...settings, tokens: { ...settings.tokens, ...changes } });

/** Adds an integration whose tokens are bound to the client certificate (RFC 8705 §3). */
export const withBoundApp: SettingsChange = (settings) => ({
  ...settings,
  integrations: [
    ...(settings.integrations ?? []),
    {
      clientId: 'bound-app',
      scope: 'files:read',
      bindToCertificate: true,
      access: [{ groups: ['operators'] }],
    },
  ],
});

type Certificates = NonNullable<SettingsInput['certificates']>;

/** A front proxy on this machine forwards the client certificate. */
export const withForwardedCertificates =
  (forwardedHeader: NonNullable<Certificates['forwardedHeader']> = 'client-cert'): SettingsChange =>
  (settings) => ({
    ...settings,
    certificates: { ...settings.certificates, forwardedFrom: ['127.0.0.1'], forwardedHeader },
  });
