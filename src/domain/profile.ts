/** What people and upstreams are shown of a caller. It decides nothing: access is decided by the identity and the scope. */
export interface Profile {
  readonly name?: string;
  readonly email?: string;
  readonly groups?: readonly string[];
}
