import { limitName } from '../http/rate-limit.ts';
import type { GrantDesk } from './desk.ts';

/**
 * Under which name the rate limits count a call whose credential was checked; undefined for all other calls, which are
 * counted by address. Many clients share one address behind NAT or a load balancer. Naming a client proves nothing,
 * so a client_id alone has no name here. Only local checks: the store and the directory are what the limits protect.
 */
export type Caller = string | undefined;

type Checks = Pick<GrantDesk, 'mint' | 'now'>;

/** With the address: a spent token has a valid seal too, and must not use up what its rightful client may do. */
const grantCaller = (grantId: string, address: string): Caller => `grant:${grantId} ${limitName(address)}`;

export function refreshTokenCaller(
  { mint, now }: Checks,
  token: string | undefined,
  address: string,
): Caller {
  const opened = token === undefined ? undefined : mint.openRefresh(token, now());
  return opened && grantCaller(opened.grantId, address);
}

export async function accessTokenCaller(
  { mint, now }: Checks,
  token: string,
  address: string,
): Promise<Caller> {
  const opened = await mint.openAccess(token, now());
  return opened && grantCaller(opened.grantId, address);
}

/** A device that this process has seen waiting for its user. */
export const deviceCodeCaller = ({ pace }: Pick<GrantDesk, 'pace'>, requestId: string): Caller =>
  pace.isKnown(requestId) ? `device:${requestId}` : undefined;

/** The key of a certificate was proved in the handshake; an unknown client_id makes no name of its own. */
export function certificateCaller(
  { certificates, integrations, now }: Pick<GrantDesk, 'certificates' | 'integrations' | 'now'>,
  der: Uint8Array | undefined,
  clientId?: string,
): Caller {
  if (der === undefined || (clientId !== undefined && !integrations.has(clientId))) return undefined;
  const judged = certificates.judge(der, now());
  return judged.ok ? `certificate:${judged.value.fingerprint} ${clientId ?? ''}` : undefined;
}
