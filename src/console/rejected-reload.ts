import type { AdminIdentity } from '../admin/authenticate.ts';
import type { RejectedReload } from '../observability/gateway-status.ts';

const SETTING = /^[\w.[\]-]+(?=: )/;
const LINE = / \(line \d+\)$/;

/**
 * Problems may quote values of the rejected configuration that the page of the configuration would hide. Viewers only see where the
 * problems are.
 */
export const selectProblems = (
  rejected: RejectedReload | undefined,
  { role }: AdminIdentity,
): RejectedReload | undefined =>
  rejected === undefined || role === 'operator'
    ? rejected
    : { ...rejected, problems: [...new Set(rejected.problems.map(locate))] };

const locate = (problem: string): string =>
  `${SETTING.exec(problem)?.[0] ?? 'the configuration file'}${LINE.exec(problem)?.[0] ?? ''}`;
