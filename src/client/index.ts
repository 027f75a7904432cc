/** `gatehouse/client`: obtains, stores, renews and sends tokens. */
export { type Client, type ClientOptions, createClient, type LoginOptions } from './client.ts';
export { type CredentialStore, memoryCredentialStore } from './credential-store.ts';
export type { DevicePrompt } from './device.ts';
export { LoginRequiredError, OAuthError, ServiceUnavailableError } from './errors.ts';
export { fileCredentialStore } from './file-credential-store.ts';
export type { StoredGrant } from './grant.ts';
export { SERVICE_ACCOUNT_TOKEN_FILE, serviceAccountToken } from './service-account-token.ts';
