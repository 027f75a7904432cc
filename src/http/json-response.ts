export interface JsonResponse {
  readonly status: number;
  readonly body: unknown;
  readonly headers?: Readonly<Record<string, string>>;
  /** The connection is closed after it. */
  readonly close?: boolean;
  /** HTTP/1.1 reason phrase; some clients show nothing else. */
  readonly reason?: string;
}
