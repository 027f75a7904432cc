import { readFile } from 'node:fs/promises';

/**
 * docs/trusted-issuers.md mounts the projected token here. The token for the Kubernetes API is another one, which must
 * not be sent to other services.
 */
export const SERVICE_ACCOUNT_TOKEN_FILE = '/var/run/secrets/tokens/gatehouse';

const MAX_LENGTH = 12_288;

/** Reads the projected service account token of a pod, as the `subjectToken` of `createClient`. */
export const serviceAccountToken =
  (file = SERVICE_ACCOUNT_TOKEN_FILE) =>
  async (): Promise<string> => {
    let token: string;
    try {
      token = (await readFile(file, 'utf8')).trim();
    } catch (error) {
      throw new TypeError(`${file} cannot be read (${(error as NodeJS.ErrnoException).code})`, { cause: error });
    }
    // The message omits the content, which may be another secret.
    if (token.length > MAX_LENGTH || !/^[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+){2}$/.test(token))
      throw new TypeError(`${file} does not contain a JWT`);
    return token;
  };
