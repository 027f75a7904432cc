import type { SettingsInput } from '../../src/config/schema.ts';
import type { Change, House } from './house.ts';

/** Runs something under changed settings, and puts the former ones back by another reload. */
export async function under<T>(house: House, change: Change, run: () => Promise<T>): Promise<T> {
  let before: SettingsInput | undefined;
  await house.reload((settings) => {
    before = settings;
    return change(settings);
  });
  try {
    return await run();
  } finally {
    await house.reload((settings) => before ?? settings);
  }
}

type Integration = NonNullable<SettingsInput['integrations']>[number];
type User = NonNullable<NonNullable<SettingsInput['directories']>[string]['users']>[number];

export const withIntegration =
  (clientId: string, changed: Partial<Integration>): Change =>
  (settings) => ({
    ...settings,
    integrations: (settings.integrations ?? []).map((one) =>
      one.clientId === clientId ? { ...one, ...changed } : one,
    ),
  });

export const withoutIntegration =
  (clientId: string): Change =>
  (settings) => ({
    ...settings,
    integrations: (settings.integrations ?? []).filter((one) => one.clientId !== clientId),
    routes: (settings.routes ?? []).filter((route) => route.clients?.includes(clientId) !== true),
  });

export const withUser =
  (name: string, changed: Partial<User>): Change =>
  (settings) => {
    const staff = settings.directories?.['staff'];
    if (staff === undefined) throw new Error('the house has no staff');
    const users = (staff.users ?? []).map((user) => (user.name === name ? { ...user, ...changed } : user));
    return { ...settings, directories: { ...settings.directories, staff: { ...staff, users } } };
  };

export const withTokens =
  (changed: NonNullable<SettingsInput['tokens']>): Change =>
  (settings) => ({ ...settings, tokens: { ...settings.tokens, ...changed } });

/** One more integration, whose tokens work only with the certificate they were got with. */
export const withBoundApp: Change = (settings) => ({
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
  (forwardedHeader: NonNullable<Certificates['forwardedHeader']> = 'client-cert'): Change =>
  (settings) => ({
    ...settings,
    certificates: { ...settings.certificates, forwardedFrom: ['127.0.0.1'], forwardedHeader },
  });
