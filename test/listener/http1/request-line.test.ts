import { METHODS } from 'node:http';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { HeadCache } from '../../../src/listener/head-cache.ts';
import { RequestReader } from '../../../src/listener/http1/request-reader.ts';

const cache = new HeadCache('1.1');

function readLine(line: string): object | string | number {
  const reader = new RequestReader(16_384, cache);
  reader.add(Buffer.from(`${line}\r\nHost: a\r\n\r\n`, 'latin1'));
  const outcome = reader.readHead();
  const { method, target, version } = reader;
  return outcome === 'complete' ? { method, target, version } : outcome;
}

test('request lines are read as RFC 9112 §3 defines them', () => {
  const defined = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP\/(1\.[01])$/;
  const line = fc
    .tuple(
      fc.constantFrom('GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'GE', 'GETS', 'get', 'OPTIONS', ''),
      fc.constantFrom(' ', '  ', '\t', ''),
      fc.oneof(
        fc.constantFrom('/', '/a b', '/#', 'http://a/', '*', '/a HTTP/1.1', '/\x7f', '/\xe4', '/\0'),
        fc.string().filter((text) => !/[^\0-\xff]|[\r\n]/.test(text)),
      ),
      fc.constantFrom(' HTTP/1.1', ' HTTP/1.0', ' HTTP/1.1 ', '', ' HTTP/1.2', ' HTTP/1.1 HTTP/1.1', ' http/1.1'),
    )
    .map((parts) => parts.join(''))
    .filter((text) => text !== '');
  fc.assert(
    fc.property(line, (text) => {
      const [, method = '', target, version] = defined.exec(text) ?? [];
      expect(readLine(text)).toEqual(METHODS.includes(method) ? { method, target, version } : 400);
    }),
    { numRuns: 5_000 },
  );
});
