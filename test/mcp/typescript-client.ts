import { type OAuthClientProvider, UnauthorizedError } from '@modelcontextprotocol/sdk/client/auth.js';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { type McpGateway, REGISTERED } from './mcp-gateway.ts';

type ClientInformation = Awaited<ReturnType<OAuthClientProvider['clientInformation']>>;
type Tokens = Awaited<ReturnType<OAuthClientProvider['tokens']>>;

/** What a client remembers between runs, as the documentation of the SDK describes it. */
export class TestProvider implements OAuthClientProvider {
  readonly redirectUrl: string;
  readonly clientMetadataUrl?: string;
  readonly clientMetadata: OAuthClientProvider['clientMetadata'];
  /** URLs that the user was sent to. */
  readonly redirects: URL[] = [];
  /** The texts of the pages on which the user approved. */
  readonly approvals: string[] = [];
  readonly savedTokens: NonNullable<Tokens>[] = [];
  #client: ClientInformation;
  #tokens: Tokens;
  #verifier = '';

  constructor(redirectUrl: string, client: { readonly id: string } | { readonly documentUrl?: string }) {
    this.redirectUrl = redirectUrl;
    this.clientMetadata = {
      client_name: 'TypeScript client',
      redirect_uris: [redirectUrl],
      token_endpoint_auth_method: 'none',
    };
    // A client that is registered at gatehouse: dynamic registration is skipped.
    if ('id' in client) this.#client = { client_id: client.id };
    else if (client.documentUrl !== undefined) this.clientMetadataUrl = client.documentUrl;
  }

  state = (): string => 'state-of-the-test-client';
  clientInformation = (): ClientInformation => this.#client;
  saveClientInformation = (client: NonNullable<ClientInformation>): void => void (this.#client = client);
  tokens = (): Tokens => this.#tokens;
  saveTokens(tokens: NonNullable<Tokens>): void {
    this.#tokens = tokens;
    this.savedTokens.push(tokens);
  }
  redirectToAuthorization = (url: URL): void => void this.redirects.push(url);
  saveCodeVerifier = (verifier: string): void => void (this.#verifier = verifier);
  codeVerifier = (): string => this.#verifier;
  invalidateCredentials(scope: 'all' | 'client' | 'tokens' | 'verifier' | 'discovery'): void {
    if (scope === 'all' || scope === 'tokens') this.#tokens = undefined;
  }
}

export interface Connection extends AsyncDisposable {
  readonly client: Client;
  readonly transport: StreamableHTTPClientTransport;
  /** Errors of the transport, such as streams that were cut. */
  readonly errors: Error[];
  callTool(name: string, args?: Record<string, unknown>, onProgress?: (progress: number) => void): Promise<string>;
}

export async function connect({ at, url }: McpGateway, provider: TestProvider): Promise<Connection> {
  const transport = new StreamableHTTPClientTransport(new URL(url), {
    authProvider: provider,
    fetch: at.fetch(),
  });
  const errors: Error[] = [];
  const client = new Client({ name: 'test', version: '1.0.0' });
  // Not an EventTarget.
  Object.assign(client, { onerror: (error: Error) => errors.push(error) });
  await client.connect(transport);
  return {
    client,
    transport,
    errors,
    async callTool(name, args = {}, onProgress) {
      const options = onProgress && {
        onprogress: ({ progress }: { progress: number }) => onProgress(progress),
      };
      const result = await client.callTool({ name, arguments: args }, undefined, options);
      const [content] = result.content as readonly { readonly text: string }[];
      return content?.text ?? '';
    },
    [Symbol.asyncDispose]: () => client.close(),
  };
}

/** Connects, is sent to the browser, finishes the authorization and connects again. */
export async function authorizeAndConnect(gateway: McpGateway, provider: TestProvider): Promise<Connection> {
  const { at, url } = gateway;
  const transport = new StreamableHTTPClientTransport(new URL(url), {
    authProvider: provider,
    fetch: at.fetch(),
  });
  const client = new Client({ name: 'test', version: '1.0.0' });
  const refused = await client.connect(transport).catch((error: unknown) => error);
  if (!(refused instanceof UnauthorizedError)) throw refused;
  const { response, page } = await gateway.authorize(provider.redirects.at(-1)?.href ?? '');
  provider.approvals.push(page);
  await transport.finishAuth(response.searchParams.get('code') ?? '');
  await client.close();
  return connect(gateway, provider);
}

export const createProvider = ({ redirectUri }: McpGateway): TestProvider =>
  new TestProvider(redirectUri, { id: REGISTERED });
