import * as fc from 'fast-check';
import { expect, test } from 'vitest';
import { parseTarget } from '../../src/domain/request-target.ts';
import { isCompleteResponse, parseRawResponse, type RawClient } from '../support/raw-client.ts';
import type { AttackGateway } from './attack-gateway.ts';

/** Sends requests on one connection, and opens a new one whenever the gateway has closed it. */
function createPersistentClient(attack: AttackGateway): {
  request(bytes: string): Promise<number>;
  close(): void;
} {
  let client: RawClient | undefined;
  return {
    async request(bytes) {
      const open = client !== undefined && client.closeKind() === undefined ? client : await attack.client();
      client = open;
      const before = open.text().length;
      open.send(bytes);
      const { status, head } = parseRawResponse(
        (await open.until((text) => isCompleteResponse(text.slice(before)))).slice(before),
      );
      if (/\r\nconnection: close/i.test(head)) {
        open.destroy();
        client = undefined;
      }
      return status;
    },
    close: () => client?.destroy(),
  };
}

const PIECES =
  '/ . .. %2e %2F %5c %25 %61 %c3%a9 %20 ; ? # a ~ : admin public packages // \\ %00 %zz %c0%ae %252e @ * %3b';
const pieces = fc.constantFrom(...PIECES.split(' '));
const starts = fc.constantFrom('/', '/public/', '/packages/', '/admin/', '/public', '/%70ublic/');
const targets = fc.tuple(starts, fc.array(pieces, { maxLength: 8 })).map(([start, parts]) => start + parts.join(''));

export function testAnyTarget(attack: AttackGateway, parameters: fc.Parameters<[string]>): void {
  // test/domain/request-target.test.ts parses more targets without a network.
  test(`P20 ${parameters.numRuns} random targets: the upstream gets the canonical target, or nothing`, {
    timeout: 600_000,
  }, async () => {
    const client = createPersistentClient(attack);
    attack.upstream.reset();
    try {
      await fc.assert(
        fc.asyncProperty(targets, async (raw) => {
          attack.upstream.requests.length = 0;
          const parsed = parseTarget(raw, {
            method: 'GET',
            encodedSlash: true,
            isServedAuthority: () => false,
          });
          const status = await client.request(attack.write({ line: `GET ${raw} HTTP/1.1` }));
          const seen = attack.upstream.requests.map(({ target }) => target);
          if (parsed.kind !== 'target') {
            expect([raw, status, seen]).toEqual([raw, 400, []]);
            return;
          }
          const { path, query, segments } = parsed.target;
          const mayPass = segments[0] === 'public' || segments[0] === 'packages';
          // A path with ';' or '%2F' may fit no rule although its first segment does.
          expect(mayPass ? [200, 400, 404] : [400, 403, 404]).toContain(status);
          expect([raw, seen]).toEqual([raw, status === 200 ? [path + query] : []]);
        }),
        parameters,
      );
    } finally {
      client.close();
    }
    await attack.expectHealthy();
  });
}
