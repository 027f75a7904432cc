/** What the token service said no to, in its own words. */
export class ServiceRefusal extends Error {
  readonly code: string;
  readonly status: number;

  constructor(code: string, description: string, status: number) {
    super(description === '' ? code : `${description} (${code})`);
    this.name = 'ServiceRefusal';
    this.code = code;
    this.status = status;
  }
}

/** Nobody is to blame who calls: the service is away, slow or in trouble. The same again later may work. */
export class TemporaryTrouble extends Error {
  /** Seconds the service asked us to wait. */
  readonly retryAfter: number | undefined;
  /** The service was not asked: what was given here cannot be used, such as a key that is not the certificate's. */
  readonly isOurs: boolean;

  constructor(
    message: string,
    options: ErrorOptions & { readonly retryAfter?: number | undefined; readonly isOurs?: boolean } = {},
  ) {
    super(message, options);
    this.name = 'TemporaryTrouble';
    this.retryAfter = options.retryAfter;
    this.isOurs = options.isOurs ?? false;
  }
}

/** There is no grant, or it has ended, and only a person can make the next one. */
export class SignInNeeded extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'SignInNeeded';
  }
}
