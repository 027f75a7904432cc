/** Types for the parts of oidc-provider that the tests use; the package has none. */
declare module 'oidc-provider' {
  import type { IncomingMessage, ServerResponse } from 'node:http';

  export interface Configuration {
    readonly clients: readonly Readonly<Record<string, unknown>>[];
    readonly findAccount: (
      context: unknown,
      id: string,
    ) => { accountId: string; claims: () => Record<string, unknown> };
    readonly [setting: string]: unknown;
  }

  export class Provider {
    constructor(issuer: string, configuration: Configuration);
    callback(): (request: IncomingMessage, response: ServerResponse) => Promise<void>;
    on(event: string, listener: (...details: readonly unknown[]) => void): this;
  }
}
