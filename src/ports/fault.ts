/**
 * A dependency failed; the caller did nothing wrong and may retry. Each API maps it once, to a temporary error with
 * Retry-After that is logged as an error.
 */
export class Fault extends Error {
  readonly code: FaultCode;
  readonly retryAfter: number;
  /** The configured name of the trusted issuer that failed. */
  readonly issuer: string | undefined;
  /** What is wrong with a file or folder that the user named in a command. */
  readonly fileProblem: FileProblem | undefined;

  constructor(
    code: FaultCode,
    message: string,
    options: { readonly cause?: unknown } & Partial<Pick<Fault, 'retryAfter' | 'issuer' | 'fileProblem'>> = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'Fault';
    this.code = code;
    this.retryAfter = options.retryAfter ?? 1;
    this.issuer = options.issuer;
    this.fileProblem = options.fileProblem;
  }
}

export type FileProblem = 'missing' | 'invalid' | 'cannot_create';

export type FaultCode =
  | 'store_unavailable'
  | 'store_full'
  | 'store_corrupt'
  | 'store_locked'
  | 'store_record_unreadable'
  | 'directory_unavailable'
  | 'keys_unavailable'
  /** A trusted issuer cannot be asked about a token. */
  | 'introspection_unavailable'
  /** Whether a certificate is revoked cannot be found out. */
  | 'certificate_status_unavailable'
  /** The metadata of a client cannot be read at its URL. */
  | 'client_document_unavailable'
  | 'upstream_unavailable'
  | 'upstream_timeout'
  | 'audit_unavailable'
  | 'overloaded';
