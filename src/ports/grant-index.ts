import type { Grant } from '../domain/grant.ts';

/**
 * Which grants are kept, in pages. For people and operators who look at them, never for deciding about a token.
 *
 * Grants that were there before the first page was asked for and are there until the last are found. A grant that is
 * made meanwhile may be missing, and a page may repeat one: whoever needs each once keeps count by id. Ended grants
 * are found too, for as long as their records are kept.
 */
export interface GrantIndex {
  list(query: GrantQuery): Promise<GrantPage>;
}

export interface GrantQuery {
  /** Only grants of this identity: quick, however many others there are. */
  readonly identity?: string;
  /** Only grants of this integration: every grant is looked at on the way. */
  readonly clientId?: string;
  /** The `next` of the page before. */
  readonly after?: string;
  /** About how many: a page may hold fewer, even none, and go on all the same. */
  readonly limit: number;
}

export interface GrantPage {
  readonly grants: readonly Grant[];
  /** Where the next page begins; absent after the last. */
  readonly next?: string;
}

/** Does a grant belong to what was asked for? */
export const isAsked = (grant: Grant, { identity, clientId }: GrantQuery): boolean =>
  (identity === undefined || grant.identity === identity) &&
  (clientId === undefined || grant.clientId === clientId);
