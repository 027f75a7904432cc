/** An OAuth error of the token service. */
export class OAuthError extends Error {
  readonly code: string;
  readonly status: number;

  constructor(code: string, description: string, status: number) {
    super(description === '' ? code : `${description} (${code})`);
    this.name = 'OAuthError';
    this.code = code;
    this.status = status;
  }
}

/** The service is unreachable or failing. A retry may succeed. */
export class ServiceUnavailableError extends Error {
  /** Seconds, from Retry-After. */
  readonly retryAfter: number | undefined;
  /** A local file cannot be used, such as a key that does not belong to the certificate: a retry does not help. */
  readonly isLocal: boolean;

  constructor(
    message: string,
    options: ErrorOptions & { readonly retryAfter?: number | undefined; readonly isLocal?: boolean } = {},
  ) {
    super(message, options);
    this.name = 'ServiceUnavailableError';
    this.retryAfter = options.retryAfter;
    this.isLocal = options.isLocal ?? false;
  }
}

/** There is no valid grant, and a user has to sign in. */
export class LoginRequiredError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'LoginRequiredError';
  }
}
