import type { Endpoint, EndpointService } from '../grants/endpoint.ts';

type EndpointName = 'token' | 'certificate' | 'device' | 'revoke' | 'verify';

export type TokenApiService = EndpointService<EndpointName>;
export type TokenApiEndpoint = Endpoint<EndpointName, TokenApiService>;
