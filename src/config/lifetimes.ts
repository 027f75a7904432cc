import type { Settings } from './schema.ts';

/** In seconds: the longest lifetime of grants that are issued under these settings. */
export const getLongestGrantLifetime = ({ tokens, integrations }: Settings): number =>
  Math.max(tokens.grantLifetime, ...integrations.map((integration) => integration.grantLifetime ?? 0));
