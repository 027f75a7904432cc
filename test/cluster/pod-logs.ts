import { request } from 'node:https';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { inject } from 'vitest';
import type { Shop } from './shop.ts';

/** What the gatehouse containers of some pods log about problems, also those of pods that no longer exist. */
export interface PodLogs {
  /** Warnings, errors and requests that failed, each with its pod. */
  problems(): readonly string[];
  stop(): Promise<void>;
}

const POLL_MS = 250;
const MAX_PROBLEMS = 200;

export function followLogs(shop: Shop, selector: string): PodLogs {
  const problems: string[] = [];
  const followed = new Set<string>();
  const stopped = new AbortController();
  const { url, ca, token } = inject('access');

  const follow = (pod: string): void => {
    followed.add(pod);
    const path = `/api/v1/namespaces/${shop.namespace}/pods/${pod}/log?container=gatehouse&follow=true`;
    const options = {
      ca,
      headers: { authorization: `Bearer ${token}` },
      agent: false as const,
      signal: stopped.signal,
    };
    request(`${url}${path}`, options, (response) => {
      if (response.statusCode !== 200) {
        // The container is not running yet.
        followed.delete(pod);
        return void response.resume();
      }
      response.on('error', () => {});
      createInterface({ input: response })
        // It repeats the errors of its input.
        .on('error', () => {})
        .on('line', (line) => {
          if (isProblem(line) && problems.length < MAX_PROBLEMS) problems.push(`${pod} ${line}`);
        });
    })
      .on('error', () => {})
      .end();
  };
  const watch = async (): Promise<void> => {
    while (!stopped.signal.aborted) {
      for (const { name } of await shop.pods(selector).catch(() => [])) if (!followed.has(name)) follow(name);
      await sleep(POLL_MS, undefined, { signal: stopped.signal }).catch(() => {});
    }
  };
  const watching = watch();
  return {
    problems: () => problems,
    async stop() {
      stopped.abort();
      await watching;
    },
  };
}

/** Warnings about the certificate of the tests and the version of Redis, which each pod logs at start. */
const EXPECTED_WARNINGS: readonly unknown[] = ['certificate_warning', 'store_warning'];

function isProblem(line: string): boolean {
  try {
    const { level, decision, event } = JSON.parse(line) as Readonly<Record<string, unknown>>;
    if (EXPECTED_WARNINGS.includes(event)) return false;
    return level === 'warn' || level === 'error' || decision === 'failed';
  } catch {
    return line.trim() !== '';
  }
}
