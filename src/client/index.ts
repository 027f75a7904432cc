/** `gatehouse/client`: a token for programs, obtained, kept, renewed and sent. */
export { type Client, type ClientOptions, createClient, type LoginTerms } from './client.ts';
export type { DevicePrompt } from './device.ts';
export { ServiceRefusal, SignInNeeded, TemporaryTrouble } from './errors.ts';
export { fileKeep } from './file-keep.ts';
export type { KeptGrant } from './grant.ts';
export { bearer } from './interceptor.ts';
export { memoryKeep, type TokenKeep } from './keep.ts';
