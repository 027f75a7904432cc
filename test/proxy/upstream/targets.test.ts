import { type AddressInfo, createServer } from 'node:net';
import { setImmediate } from 'node:timers/promises';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { type TargetEvent, Targets } from '../../../src/proxy/upstream/targets.ts';
import { type HarnessOptions, rule, startProxyHarness } from '../../support/proxy-harness.ts';
import { connectRaw, rawRequest } from '../../support/raw-client.ts';
import { type RecordingUpstream, respondOk, startRecordingUpstream } from '../../support/recording-upstream.ts';
import { until } from '../../support/serve-process.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  vi.useRealTimers();
  while (cleanups.length > 0) await cleanups.pop()?.();
});

/** Time advances only with the test: no timeout fires and no ejected target is tried again. */
const stopTime = (): void =>
  void vi.useFakeTimers({
    toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'performance'],
  });

async function startUpstreams(count: number): Promise<RecordingUpstream[]> {
  const servers = await Promise.all(Array.from({ length: count }, () => startRecordingUpstream()));
  cleanups.push(() => Promise.all(servers.map((server) => server.close())));
  return servers;
}

async function startProxyTo(targets: readonly string[], options: Partial<HarnessOptions> = {}) {
  const proxy = await startProxyHarness({ upstream: targets, ...options });
  cleanups.push(() => proxy.close());
  return proxy;
}

const get = (path = '/files/1', method = 'GET'): string =>
  `${method} ${path} HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer A\r\n\r\n`;

describe('target selection', () => {
  function createTargets(count: number) {
    let now = 1_000;
    const events: TargetEvent[] = [];
    const urls = Array.from({ length: count }, (_, at) => `http://t${at}`);
    const targets = new Targets(urls, {
      ejection: { failures: 3 },
      onEvent: (event) => void events.push(event),
      clock: () => now,
    });
    const take = (): string => {
      const target = targets.choose();
      target.pending += 1;
      return target.url;
    };
    const fail = (index: number, times: number): void => {
      for (let count = 0; count < times; count += 1) {
        const target = targets.all[index];
        if (target !== undefined) targets.reportFailure(target);
      }
    };
    return { targets, events, take, fail, advance: (seconds: number) => void (now += seconds) };
  }

  test('the target with the fewest pending requests; among equals in turn', () => {
    const { targets, take } = createTargets(3);
    expect(new Set([take(), take(), take()]).size).toBe(3);
    const [, second] = targets.all;
    if (second) second.pending = 0;
    expect(take()).toBe('http://t1');
    for (const target of targets.all) target.pending = 0;
    const order = Array.from({ length: 6 }, () => targets.choose().url);
    expect(order.slice(0, 3).toSorted()).toEqual(['http://t0', 'http://t1', 'http://t2']);
    expect(order.slice(3)).toEqual(order.slice(0, 3));
  });

  test('an ejected target is tried again while streams from before are open', () => {
    const { targets, fail, advance } = createTargets(2);
    const [first, second] = targets.all;
    if (first === undefined || second === undefined) throw new Error('two targets');
    first.pending = 1;
    first.streams = 1;
    second.pending = 5;
    fail(0, 3);
    expect(targets.choose()).toBe(second);
    advance(6);
    expect(targets.choose()).toBe(first);
    // One request at a time.
    first.pending = 2;
    expect(targets.choose()).toBe(second);
  });

  test('three consecutive failures eject a target, for longer each time; a response in between resets the count', () => {
    const { targets, events, fail, advance } = createTargets(2);
    const [first] = targets.all;
    const chooseFour = (): Set<string> => new Set(Array.from({ length: 4 }, () => targets.choose().url));
    fail(0, 2);
    if (first) targets.reportSuccess(first);
    fail(0, 2);
    expect(chooseFour().size).toBe(2);
    fail(0, 1);
    expect([...chooseFour()]).toEqual(['http://t1']);
    advance(4.9);
    expect([...chooseFour()]).toEqual(['http://t1']);
    advance(0.2);
    expect(chooseFour().size).toBe(2);
    fail(0, 1);
    advance(9.9);
    expect([...chooseFour()]).toEqual(['http://t1']);
    advance(0.2);
    expect(chooseFour().size).toBe(2);
    if (first) targets.reportSuccess(first);
    expect(events.map((event) => ('seconds' in event ? event.seconds : event.event))).toEqual([
      5,
      10,
      'target_restored',
    ]);
  });

  test('the ejection time of a target has an upper limit', () => {
    const { events, fail, advance } = createTargets(2);
    for (let round = 0; round < 8; round += 1) {
      fail(0, 3);
      advance(301);
    }
    expect(events.map((event) => ('seconds' in event ? event.seconds : 0))).toEqual([5, 10, 20, 40, 80, 160, 300, 300]);
  });

  test('after its ejection a target gets one request at a time until it has responded', () => {
    const { targets, fail, advance, take } = createTargets(2);
    fail(0, 3);
    advance(6);
    const [first, second] = targets.all;
    if (second) second.pending = 50;
    expect(take()).toBe('http://t0');
    expect([take(), take()]).toEqual(['http://t1', 'http://t1']);
    if (first) targets.reportSuccess(first);
    expect([take(), take()]).toEqual(['http://t0', 'http://t0']);
  });

  test('if all targets are ejected, the one whose ejection ends first is used', () => {
    const { targets, fail, advance } = createTargets(3);
    fail(1, 3);
    advance(1);
    fail(0, 3);
    advance(1);
    fail(2, 3);
    expect(targets.choose().url).toBe('http://t1');
    for (const target of targets.all) targets.reportHealth(target, target.index === 2);
    expect(targets.choose().url).toBe('http://t2');
    expect(createTargets(1).targets.choose().url).toBe('http://t0');
  });
});

describe('several targets over HTTP', () => {
  test('share the requests', async () => {
    const servers = await startUpstreams(3);
    const proxy = await startProxyTo(servers.map(({ url }) => url));
    for (let count = 0; count < 30; count += 1) await rawRequest(proxy.port, get());
    expect(servers.map(({ requests }) => requests.length)).toEqual([10, 10, 10]);
  });

  test('a busy target gets fewer', async () => {
    const [slow, quick] = await startUpstreams(2);
    if (!slow || !quick) throw new Error('expected two upstreams');
    slow.respondWith(() => {});
    const proxy = await startProxyTo([slow.url, quick.url]);
    const stuck = await connectRaw(proxy.port);
    cleanups.push(() => stuck.destroy());
    while (slow.requests.length === 0) {
      const before = quick.requests.length;
      stuck.send(get());
      await until(
        'a target has received the request',
        () => slow.requests.length > 0 || quick.requests.length > before,
      );
    }
    const before = quick.requests.length;
    for (let count = 0; count < 20; count += 1) expect((await rawRequest(proxy.port, get())).status).toBe(200);
    expect([slow.requests.length, quick.requests.length - before]).toEqual([1, 20]);
  });

  test('a target that refuses connections fails no retryable request, and is ejected after three failures', async () => {
    const [dead, alive] = await startUpstreams(2);
    await dead?.close();
    stopTime();
    const proxy = await startProxyTo([dead?.url ?? '', alive?.url ?? '']);
    for (let count = 0; count < 40; count += 1) expect((await rawRequest(proxy.port, get())).status).toBe(200);
    const repeats = proxy.log.filter((line) => line.includes('upstream_retried')).length;
    expect(repeats).toBe(3);
    expect(proxy.log.filter((line) => line.includes('target_ejected'))).toHaveLength(1);
  });

  test('a POST is not retried, and succeeds as soon as the failing target is ejected', async () => {
    const [dead, alive] = await startUpstreams(2);
    await dead?.close();
    stopTime();
    const proxy = await startProxyTo([dead?.url ?? '', alive?.url ?? '']);
    const post = `POST /files/1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\nContent-Length: 2\r\n\r\nab`;
    const statuses: number[] = [];
    for (let count = 0; count < 20; count += 1) statuses.push((await rawRequest(proxy.port, post)).status);
    expect(statuses.filter((status) => status === 502)).toHaveLength(3);
    expect(statuses.slice(8)).toEqual(Array.from({ length: 12 }, () => 200));
    expect(alive?.requests).toHaveLength(17);
  });

  test('while all targets are unreachable the response is 502, and the first that recovers is used at once', async () => {
    const [first, second] = await startUpstreams(2);
    const port = first?.port ?? 0;
    await first?.close();
    await second?.close();
    stopTime();
    const proxy = await startProxyTo([`http://127.0.0.1:${port}`, second?.url ?? '']);
    for (let count = 0; count < 12; count += 1) expect((await rawRequest(proxy.port, get())).status).toBe(502);
    const back = await startRecordingUpstream(port);
    cleanups.push(() => back.close());
    let responded = 0;
    for (let count = 0; count < 6; count += 1) if ((await rawRequest(proxy.port, get())).status === 200) responded += 1;
    expect(responded).toBeGreaterThanOrEqual(5);
  });

  test('a health check ejects a target and restores it', async () => {
    const [unhealthy, healthy] = await startUpstreams(2);
    if (!unhealthy || !healthy) throw new Error('expected two upstreams');
    let status = '503 Service Unavailable';
    unhealthy.respondWith((socket, request) => {
      if (request.target === '/up') socket.write(`HTTP/1.1 ${status}\r\nContent-Length: 0\r\n\r\n`);
      else respondOk(socket, request);
    });
    const health = { path: '/up', interval: 0.05, timeout: 30 };
    const proxy = await startProxyTo([unhealthy.url, healthy.url], { upstreamSettings: { health } });
    await until('the target is ejected', () => proxy.log.some((line) => line.includes('health check')));
    const countRequests = (server: RecordingUpstream): number =>
      server.requests.filter(({ target }) => target !== '/up').length;
    const before = countRequests(unhealthy);
    for (let count = 0; count < 10; count += 1) await rawRequest(proxy.port, get());
    expect([countRequests(unhealthy) - before, countRequests(healthy)]).toEqual([0, 10]);
    status = '204 No Content';
    await until('the target is restored', () => proxy.log.some((line) => line.includes('target_restored')));
    for (let count = 0; count < 10; count += 1) await rawRequest(proxy.port, get());
    expect(countRequests(unhealthy) - before).toBe(5);
  });

  test('the body of a health check is received up to a megabyte, and its status decides', async () => {
    const [endless] = await startUpstreams(1);
    if (!endless) throw new Error('expected one upstream');
    let isHealthy = false;
    endless.respondWith((socket) => {
      if (!isHealthy) return void socket.write('HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n');
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000\r\n\r\n');
      const more = (): void => {
        while (!socket.destroyed && socket.write(Buffer.alloc(65_536)));
      };
      socket.on('drain', more);
      more();
    });
    const health = { path: '/up', interval: 0.05, timeout: 60 };
    const proxy = await startProxyTo([endless.url], { upstreamSettings: { health } });
    await until('the target is ejected', () => proxy.log.some((line) => line.includes('health check')));
    isHealthy = true;
    await until('the target is restored', () => proxy.log.some((line) => line.includes('target_restored')));
  });
});

describe('U13 a slow upstream', () => {
  test('gets as many requests as it has connections; maxPending more wait, and the rest are refused; other upstreams are served', async () => {
    const [slow, other] = await startUpstreams(2);
    if (!slow || !other) throw new Error('expected two upstreams');
    slow.respondWith(() => {});
    const timeouts = { connect: 1, headers: 2, idle: 5 };
    stopTime();
    const proxy = await startProxyTo([slow.url], {
      rules: [rule('/files/**', 'files:read'), rule('/other/**', 'files:read', { upstream: 'other' })],
      upstreamSettings: { connections: 3, maxPending: 4, timeouts },
      extraUpstreams: { other: { targets: [other.url], timeouts, connections: 3, maxPending: 0 } },
    });
    const waiting = Array.from({ length: 7 }, () => rawRequest(proxy.port, get()));
    while (slow.requests.length < 3 || proxy.notes.length < 7) await setImmediate();
    const beyond = await rawRequest(proxy.port, get());
    expect(beyond.status).toBe(503);
    expect(beyond.head).toMatch(/^retry-after: 1$/im);
    for (let count = 0; count < 5; count += 1) expect((await rawRequest(proxy.port, get('/other/1'))).status).toBe(200);
    vi.advanceTimersByTime(2_400);
    const statuses = (await Promise.all(waiting)).map(({ status }) => status).toSorted((a, b) => a - b);
    expect(statuses).toEqual([503, 503, 503, 503, 504, 504, 504]);
    slow.respondWith(respondOk);
    expect((await rawRequest(proxy.port, get())).status).toBe(200);
  });

  test('the request of a client that disconnected while waiting is not forwarded', async () => {
    const [slow] = await startUpstreams(1);
    if (!slow) throw new Error('expected one upstream');
    slow.respondWith(() => {});
    const proxy = await startProxyTo([slow.url], { upstreamSettings: { connections: 1, maxPending: 10 } });
    const first = await connectRaw(proxy.port);
    first.send(get('/files/first'));
    await until('the upstream has the first request', () => slow.requests.length === 1);
    const second = await connectRaw(proxy.port);
    second.send(get('/files/second'));
    await until('the second request waits', () => proxy.notes.length === 2);
    second.destroy();
    await until('the second request is aborted', () => proxy.notes[1]?.reason === 'client_disconnected');
    slow.respondWith(respondOk);
    first.destroy();
    expect((await rawRequest(proxy.port, get('/files/third'))).status).toBe(200);
    expect(slow.requests.map(({ target }) => target)).toEqual(['/files/first', '/files/third']);
  });

  test('does not keep the proxy from closing', async () => {
    const [slow] = await startUpstreams(1);
    if (!slow) throw new Error('expected one upstream');
    slow.respondWith(() => {});
    const proxy = await startProxyHarness({ upstream: slow.url, upstreamSettings: { connections: 1 } });
    const clients = await Promise.all(Array.from({ length: 50 }, () => connectRaw(proxy.port)));
    for (const client of clients) client.send(get());
    await until('all requests have arrived', () => proxy.notes.length === 50);
    await proxy.close();
    expect(slow.requests).toHaveLength(1);
  });

  test('a client that disconnects while its upstream connection is being opened closes it and frees its slot', async () => {
    let openCount = 0;
    let startedCount = 0;
    const silentServer = createServer((socket) => {
      startedCount += 1;
      openCount += 1;
      socket
        .on('error', () => {})
        .on('close', () => {
          openCount -= 1;
        })
        .resume();
    });
    await new Promise<void>((resolve) => {
      silentServer.listen(0, '127.0.0.1', resolve);
    });
    cleanups.push(() => new Promise((resolve) => silentServer.close(resolve)));
    const { port } = silentServer.address() as AddressInfo;
    const proxy = await startProxyTo([`https://127.0.0.1:${port}`], {
      upstreamSettings: { connections: 2, maxPending: 0, timeouts: { connect: 60, headers: 60, idle: 60 } },
    });
    for (let count = 1; count <= 5; count += 1) {
      const client = await connectRaw(proxy.port);
      client.send(get());
      await until('a connection is opened', () => startedCount === count);
      client.destroy();
      await until('the connection is closed', () => openCount === 0);
    }
    expect(proxy.notes.map(({ reason }) => reason)).toEqual(Array(5).fill('client_disconnected'));
  });
});
