import type { SettingsInput } from '../../src/config/schema.ts';
import type { SettingsChange, TestGateway } from './test-gateway.ts';

/** Runs something under changed settings, and puts the former ones back by another reload. */
export async function withSettings<T>(
  gateway: TestGateway,
  change: SettingsChange,
  run: () => Promise<T>,
): Promise<T> {
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
    integrations: (settings.integrations ?? []).map((one) =>
      one.clientId === clientId ? { ...one, ...changes } : one,
    ),
  });

export const withoutIntegration =
  (clientId: string): SettingsChange =>
  (settings) => ({
    ...settings,
    integrations: (settings.integrations ?? []).filter((one) => one.clientId !== clientId),
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

/** One more integration, whose tokens work only with the certificate they were got with. */
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

/** A front proxy on this machine forwards the certificate of its client. */
export const withForwardedCertificates =
  (forwardedHeader: NonNullable<Certificates['forwardedHeader']> = 'client-cert'): SettingsChange =>
  (settings) => ({
    ...settings,
    certificates: { ...settings.certificates, forwardedFrom: ['127.0.0.1'], forwardedHeader },
  });
