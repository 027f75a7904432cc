import { fileURLToPath } from 'node:url';
import { goProgram } from '../support/go-program.ts';

/** A client program with golang.org/x/oauth2. */
const program = goProgram(fileURLToPath(new URL('./go', import.meta.url)), 'oauth-client');

export const missingGo: string | undefined = program.missing;
export const buildGoClient = (): Promise<string> => program.build();

/** A resource server with github.com/zitadel/oidc. */
export const goResourceServer = goProgram(
  fileURLToPath(new URL('./go-resource-server', import.meta.url)),
  'oauth-resource-server',
);
