import type { Settings } from './schema.ts';

/** Seconds: how long a grant made today can live, at most. */
export const longestGrant = ({ tokens, integrations }: Settings): number =>
  Math.max(tokens.grantLifetime, ...integrations.map((one) => one.grantLifetime ?? 0));
