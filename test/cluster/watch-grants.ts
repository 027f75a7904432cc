import { setTimeout as sleep } from 'node:timers/promises';
import type { ServiceClient } from './client.ts';

/** Clients that refresh their grants and check revoked tokens while pods come and go. */
export interface GrantWatch {
  stop(): Promise<GrantReport>;
}

export interface GrantReport {
  readonly refreshes: number;
  readonly revocations: number;
  /** Requests with a revoked token. */
  readonly checks: number;
  readonly lostGrants: number;
  readonly acceptedRevokedTokens: number;
  /** Requests that failed for another reason, by kind. */
  readonly failures: Readonly<Record<string, number>>;
}

/** Requests of these clients that got no usable response. */
export const countRefusals = ({ failures }: GrantReport): number =>
  Object.values(failures).reduce((sum, count) => sum + count, 0);

const CLIENTS = 4;
const PAUSE_MS = 500;

export async function watchGrants(client: ServiceClient): Promise<GrantWatch> {
  const stopped = new AbortController();
  const report = {
    refreshes: 0,
    revocations: 0,
    checks: 0,
    lostGrants: 0,
    acceptedRevokedTokens: 0,
    failures: {} as Record<string, number>,
  };
  const fail = (what: string, error: unknown): void => {
    const name = `${what}: ${error instanceof Error ? error.message : String(error)}`;
    report.failures[name] = (report.failures[name] ?? 0) + 1;
  };

  /** Refreshes one grant again and again. */
  const refresh = async (first: string): Promise<void> => {
    let token = first;
    while (!stopped.signal.aborted) {
      await client.refresh(token).then(
        ({ status, json, text }) => {
          if (status === 200) {
            report.refreshes += 1;
            token = String(json['refresh_token']);
          } else if (json['Error'] === 'invalid_grant') report.lostGrants += 1;
          else fail('refresh', `${status} ${text}`);
        },
        // The next attempt repeats the refresh, which must succeed.
        (error: unknown) => fail('refresh', error),
      );
      await sleep(PAUSE_MS);
    }
  };

  /** Revokes a token, then sends it again and again. */
  const revoke = async (): Promise<void> => {
    const revoked: string[] = [];
    while (!stopped.signal.aborted) {
      try {
        if (revoked.length < 50) {
          const { access_token } = await client.grant();
          const { status } = await client.revoke(access_token);
          if (status === 200) {
            report.revocations += 1;
            revoked.push(access_token);
          } else fail('revoke', status);
        }
        const token = revoked[report.checks % revoked.length];
        if (token !== undefined) {
          const { status } = await client.get('/files/a', token);
          report.checks += 1;
          if (status === 200) report.acceptedRevokedTokens += 1;
          else if (status !== 401) fail('revoked token', status);
        }
      } catch (error) {
        fail('revoke', error);
      }
      await sleep(PAUSE_MS / 5);
    }
  };

  const grants = await Promise.all(Array.from({ length: CLIENTS }, () => client.grant()));
  const running = [...grants.map(({ refresh_token }) => refresh(refresh_token)), revoke()];
  return {
    async stop() {
      stopped.abort();
      await Promise.all(running);
      return report;
    },
  };
}
