import { type AddressInfo, createServer } from 'node:net';
import { setImmediate } from 'node:timers/promises';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { type TargetEvent, Targets } from '../../../src/proxy/upstream/targets.ts';
import { type HarnessOptions, rule, startProxyHarness } from '../../support/proxy-harness.ts';
import { connectRaw, rawRequest } from '../../support/raw-client.ts';
import {
  type RecordingUpstream,
  respondOk,
  startRecordingUpstream,
} from '../../support/recording-upstream.ts';
import { until } from '../../support/serve-process.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  vi.useRealTimers();
  while (cleanups.length > 0) await cleanups.pop()?.();
});

/** Time passes only as the test advances it: no time-out, and no target that is tried again. */
const stopTime = (): void =>
  void vi.useFakeTimers({
    toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'performance'],
  });

async function upstreams(count: number): Promise<RecordingUpstream[]> {
  const made = await Promise.all(Array.from({ length: count }, () => startRecordingUpstream()));
  cleanups.push(() => Promise.all(made.map((one) => one.close())));
  return made;
}

async function startProxyTo(targets: readonly string[], options: Partial<HarnessOptions> = {}) {
  const proxy = await startProxyHarness({ upstream: targets, ...options });
  cleanups.push(() => proxy.close());
  return proxy;
}

const get = (path = '/files/1', method = 'GET'): string =>
  `${method} ${path} HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer A\r\n\r\n`;

describe('which target is chosen', () => {
  function watched(count: number) {
    let now = 1_000;
    const events: TargetEvent[] = [];
    const urls = Array.from({ length: count }, (_, at) => `http://t${at}`);
    const targets = new Targets(urls, {
      ejection: { failures: 3, first: 5, longest: 60 },
      onEvent: (event) => void events.push(event),
      clock: () => now,
    });
    const take = (): string => {
      const target = targets.choose();
      target.pending += 1;
      return target.url;
    };
    const fail = (place: number, times: number): void => {
      for (let count = 0; count < times; count += 1) {
        const target = targets.all[place];
        if (target !== undefined) targets.reportFailure(target);
      }
    };
    return { targets, told: events, take, fail, pass: (seconds: number) => void (now += seconds) };
  }

  test('the one with the least to do; among equals each in turn', () => {
    const { targets, take } = watched(3);
    expect(new Set([take(), take(), take()]).size).toBe(3);
    const [, second] = targets.all;
    if (second) second.pending = 0;
    expect(take()).toBe('http://t1');
    for (const target of targets.all) target.pending = 0;
    const turns = Array.from({ length: 6 }, () => targets.choose().url);
    expect(turns.slice(0, 3).toSorted()).toEqual(['http://t0', 'http://t1', 'http://t2']);
    expect(turns.slice(3)).toEqual(turns.slice(0, 3));
  });

  test('three failures in a row eject it, for longer each time; a response in between resets the count', () => {
    const { targets, told, fail, pass } = watched(2);
    const [first] = targets.all;
    const chosen = (): Set<string> => new Set(Array.from({ length: 4 }, () => targets.choose().url));
    fail(0, 2);
    if (first) targets.reportSuccess(first);
    fail(0, 2);
    expect(chosen().size).toBe(2);
    fail(0, 1);
    expect([...chosen()]).toEqual(['http://t1']);
    pass(4.9);
    expect([...chosen()]).toEqual(['http://t1']);
    pass(0.2);
    expect(chosen().size).toBe(2);
    fail(0, 1);
    pass(9.9);
    expect([...chosen()]).toEqual(['http://t1']);
    pass(0.2);
    expect(chosen().size).toBe(2);
    if (first) targets.reportSuccess(first);
    expect(told.map((event) => ('seconds' in event ? event.seconds : event.event))).toEqual([
      5,
      10,
      'target_restored',
    ]);
  });

  test('the ejection time of a target has an upper limit', () => {
    const { told, fail, pass } = watched(2);
    for (let round = 0; round < 8; round += 1) {
      fail(0, 3);
      pass(61);
    }
    expect(told.map((event) => ('seconds' in event ? event.seconds : 0))).toEqual([
      5, 10, 20, 40, 60, 60, 60, 60,
    ]);
  });

  test('after its ejection it gets one request at a time until it has responded', () => {
    const { targets, fail, pass, take } = watched(2);
    fail(0, 3);
    pass(6);
    const [first, second] = targets.all;
    if (second) second.pending = 50;
    expect(take()).toBe('http://t0');
    expect([take(), take()]).toEqual(['http://t1', 'http://t1']);
    if (first) targets.reportSuccess(first);
    expect([take(), take()]).toEqual(['http://t0', 'http://t0']);
  });

  test('never are all ejected: the one whose ejection ends first is used', () => {
    const { targets, fail, pass } = watched(3);
    fail(1, 3);
    pass(1);
    fail(0, 3);
    pass(1);
    fail(2, 3);
    expect(targets.choose().url).toBe('http://t1');
    for (const target of targets.all) targets.reportHealth(target, target.index === 2);
    expect(targets.choose().url).toBe('http://t2');
    expect(watched(1).targets.choose().url).toBe('http://t0');
  });
});

describe('several targets, for real', () => {
  test('share the requests', async () => {
    const made = await upstreams(3);
    const proxy = await startProxyTo(made.map(({ url }) => url));
    for (let count = 0; count < 30; count += 1) await rawRequest(proxy.port, get());
    expect(made.map(({ requests }) => requests.length)).toEqual([10, 10, 10]);
  });

  test('a busy one gets fewer', async () => {
    const [slow, quick] = await upstreams(2);
    if (!slow || !quick) throw new Error('there are two');
    slow.respondWith(() => {});
    const proxy = await startProxyTo([slow.url, quick.url]);
    const stuck = await connectRaw(proxy.port);
    cleanups.push(() => stuck.destroy());
    while (slow.requests.length === 0) {
      const before = quick.requests.length;
      stuck.send(get());
      await until('it has come so far', () => slow.requests.length > 0 || quick.requests.length > before);
    }
    const before = quick.requests.length;
    for (let count = 0; count < 20; count += 1)
      expect((await rawRequest(proxy.port, get())).status).toBe(200);
    expect([slow.requests.length, quick.requests.length - before]).toEqual([1, 20]);
  });

  test('one that refuses connections fails no retryable request, and is ejected after three failures', async () => {
    const [dead, alive] = await upstreams(2);
    await dead?.close();
    stopTime();
    const proxy = await startProxyTo([dead?.url ?? '', alive?.url ?? '']);
    for (let count = 0; count < 40; count += 1)
      expect((await rawRequest(proxy.port, get())).status).toBe(200);
    const repeats = proxy.log.filter((line) => line.includes('upstream_retried')).length;
    expect(repeats).toBe(3);
    expect(proxy.log.filter((line) => line.includes('target_ejected'))).toHaveLength(1);
  });

  test('a POST is not retried, and succeeds as soon as the failing target is ejected', async () => {
    const [dead, alive] = await upstreams(2);
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

  test('while all of them are unreachable it is 502, and the first that is back is used at once', async () => {
    const [one, two] = await upstreams(2);
    const port = one?.port ?? 0;
    await one?.close();
    await two?.close();
    stopTime();
    const proxy = await startProxyTo([`http://127.0.0.1:${port}`, two?.url ?? '']);
    for (let count = 0; count < 12; count += 1)
      expect((await rawRequest(proxy.port, get())).status).toBe(502);
    const back = await startRecordingUpstream(port);
    cleanups.push(() => back.close());
    let responded = 0;
    for (let count = 0; count < 6; count += 1)
      if ((await rawRequest(proxy.port, get())).status === 200) responded += 1;
    expect(responded).toBeGreaterThanOrEqual(5);
  });

  test('a health check ejects a target and brings it back', async () => {
    const [sick, well] = await upstreams(2);
    if (!sick || !well) throw new Error('there are two');
    let status = '503 Service Unavailable';
    sick.respondWith((socket, request) => {
      if (request.target === '/up') socket.write(`HTTP/1.1 ${status}\r\nContent-Length: 0\r\n\r\n`);
      else respondOk(socket, request);
    });
    const health = { path: '/up', interval: 0.05, timeout: 30, healthy: 2, unhealthy: 2 };
    const proxy = await startProxyTo([sick.url, well.url], { upstreamSettings: { health } });
    await until('it has come so far', () => proxy.log.some((line) => line.includes('health check')));
    const real = (one: RecordingUpstream): number =>
      one.requests.filter(({ target }) => target !== '/up').length;
    const before = real(sick);
    for (let count = 0; count < 10; count += 1) await rawRequest(proxy.port, get());
    expect([real(sick) - before, real(well)]).toEqual([0, 10]);
    status = '204 No Content';
    await until('it has come so far', () => proxy.log.some((line) => line.includes('target_restored')));
    for (let count = 0; count < 10; count += 1) await rawRequest(proxy.port, get());
    expect(real(sick) - before).toBe(5);
  });

  test('the body of a health check is received up to a megabyte, and its status decides', async () => {
    const [endless] = await upstreams(1);
    if (!endless) throw new Error('there is one');
    let isWell = false;
    endless.respondWith((socket) => {
      if (!isWell) return void socket.write('HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n');
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000\r\n\r\n');
      const more = (): void => {
        while (!socket.destroyed && socket.write(Buffer.alloc(65_536)));
      };
      socket.on('drain', more);
      more();
    });
    const health = { path: '/up', interval: 0.05, timeout: 60, healthy: 1, unhealthy: 1 };
    const proxy = await startProxyTo([endless.url], { upstreamSettings: { health } });
    await until('the target is out', () => proxy.log.some((line) => line.includes('health check')));
    isWell = true;
    await until('the target is back', () => proxy.log.some((line) => line.includes('target_restored')));
  });
});

describe('U13 a slow upstream', () => {
  test('gets as many requests as it has connections; as many wait as may, and the rest are refused; other upstreams are served', async () => {
    const [slow, other] = await upstreams(2);
    if (!slow || !other) throw new Error('there are two');
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
    for (let count = 0; count < 5; count += 1)
      expect((await rawRequest(proxy.port, get('/other/1'))).status).toBe(200);
    vi.advanceTimersByTime(2_400);
    const statuses = (await Promise.all(waiting)).map(({ status }) => status).toSorted((a, b) => a - b);
    expect(statuses).toEqual([503, 503, 503, 503, 504, 504, 504]);
    slow.respondWith(respondOk);
    expect((await rawRequest(proxy.port, get())).status).toBe(200);
  });

  test('the request of a client that disconnected while waiting is not forwarded', async () => {
    const [slow] = await upstreams(1);
    if (!slow) throw new Error('there is one');
    slow.respondWith(() => {});
    const proxy = await startProxyTo([slow.url], { upstreamSettings: { connections: 1, maxPending: 10 } });
    const first = await connectRaw(proxy.port);
    first.send(get('/files/first'));
    await until('it has come so far', () => slow.requests.length === 1);
    const second = await connectRaw(proxy.port);
    second.send(get('/files/second'));
    await until('it has come so far', () => proxy.notes.length === 2);
    second.destroy();
    await until('it has come so far', () => proxy.notes[1]?.reason === 'client_disconnected');
    slow.respondWith(respondOk);
    first.destroy();
    expect((await rawRequest(proxy.port, get('/files/third'))).status).toBe(200);
    expect(slow.requests.map(({ target }) => target)).toEqual(['/files/first', '/files/third']);
  });

  test('does not keep the proxy from closing', async () => {
    const [slow] = await upstreams(1);
    if (!slow) throw new Error('there is one');
    slow.respondWith(() => {});
    const proxy = await startProxyHarness({ upstream: slow.url, upstreamSettings: { connections: 1 } });
    const clients = await Promise.all(Array.from({ length: 50 }, () => connectRaw(proxy.port)));
    for (const client of clients) client.send(get());
    await until('all have asked', () => proxy.notes.length === 50);
    await proxy.close();
    expect(slow.requests).toHaveLength(1);
  });

  test('a client that disconnects while its upstream connection is being made closes it and frees its slot', async () => {
    let open = 0;
    let begun = 0;
    const mute = createServer((socket) => {
      begun += 1;
      open += 1;
      socket
        .on('error', () => {})
        .on('close', () => {
          open -= 1;
        })
        .resume();
    });
    await new Promise<void>((resolve) => {
      mute.listen(0, '127.0.0.1', resolve);
    });
    cleanups.push(() => new Promise((resolve) => mute.close(resolve)));
    const { port } = mute.address() as AddressInfo;
    const proxy = await startProxyTo([`https://127.0.0.1:${port}`], {
      upstreamSettings: { connections: 2, maxPending: 0, timeouts: { connect: 60, headers: 60, idle: 60 } },
    });
    for (let count = 1; count <= 5; count += 1) {
      const client = await connectRaw(proxy.port);
      client.send(get());
      await until('a connection is begun', () => begun === count);
      client.destroy();
      await until('it is closed', () => open === 0);
    }
    expect(proxy.notes.map(({ reason }) => reason)).toEqual(Array(5).fill('client_disconnected'));
  });
});
