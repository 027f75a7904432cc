import { type AddressInfo, createServer, type Socket } from 'node:net';
import { setImmediate } from 'node:timers/promises';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { type TargetEvent, watchTargets } from '../../src/proxy/targets.ts';
import { type HarnessOptions, proxyHarness, rule } from '../support/proxy-harness.ts';
import { rawClient, rawRequest } from '../support/raw-client.ts';
import { ok, type RecordingUpstream, recordingUpstream } from '../support/recording-upstream.ts';
import { until } from '../support/serve-process.ts';

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
  const made = await Promise.all(Array.from({ length: count }, () => recordingUpstream()));
  cleanups.push(() => Promise.all(made.map((one) => one.close())));
  return made;
}

async function gateTo(targets: readonly string[], options: Partial<HarnessOptions> = {}) {
  const gate = await proxyHarness({ upstream: targets, ...options });
  cleanups.push(() => gate.close());
  return gate;
}

const get = (path = '/files/1', method = 'GET'): string =>
  `${method} ${path} HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer A\r\n\r\n`;

describe('which target is chosen', () => {
  function watched(count: number) {
    let now = 1_000;
    const told: TargetEvent[] = [];
    const urls = Array.from({ length: count }, (_, at) => `http://t${at}`);
    const targets = watchTargets(urls, {
      ejection: { failures: 3, first: 5, longest: 60 },
      tell: (event) => void told.push(event),
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
        if (target !== undefined) targets.failed(target);
      }
    };
    return { targets, told, take, fail, pass: (seconds: number) => void (now += seconds) };
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

  test('three failures in a row leave it out, for longer each time; an answer in between forgives', () => {
    const { targets, told, fail, pass } = watched(2);
    const [first] = targets.all;
    const chosen = (): Set<string> => new Set(Array.from({ length: 4 }, () => targets.choose().url));
    fail(0, 2);
    if (first) targets.answered(first);
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
    if (first) targets.answered(first);
    expect(told.map((event) => ('seconds' in event ? event.seconds : event.event))).toEqual([
      5,
      10,
      'target_back',
    ]);
  });

  test('the time a target is left out has an upper limit', () => {
    const { told, fail, pass } = watched(2);
    for (let round = 0; round < 8; round += 1) {
      fail(0, 3);
      pass(61);
    }
    expect(told.map((event) => ('seconds' in event ? event.seconds : 0))).toEqual([
      5, 10, 20, 40, 60, 60, 60, 60,
    ]);
  });

  test('after its time out it gets one request at a time until it has answered', () => {
    const { targets, fail, pass, take } = watched(2);
    fail(0, 3);
    pass(6);
    const [first, second] = targets.all;
    if (second) second.pending = 50;
    expect(take()).toBe('http://t0');
    expect([take(), take()]).toEqual(['http://t1', 'http://t1']);
    if (first) targets.answered(first);
    expect([take(), take()]).toEqual(['http://t0', 'http://t0']);
  });

  test('never are all left out: the one whose time ends first is used', () => {
    const { targets, fail, pass } = watched(3);
    fail(1, 3);
    pass(1);
    fail(0, 3);
    pass(1);
    fail(2, 3);
    expect(targets.choose().url).toBe('http://t1');
    for (const target of targets.all) targets.judged(target, target.place === 2);
    expect(targets.choose().url).toBe('http://t2');
    expect(watched(1).targets.choose().url).toBe('http://t0');
  });
});

describe('several targets, for real', () => {
  test('share the requests', async () => {
    const made = await upstreams(3);
    const gate = await gateTo(made.map(({ url }) => url));
    for (let count = 0; count < 30; count += 1) await rawRequest(gate.port, get());
    expect(made.map(({ requests }) => requests.length)).toEqual([10, 10, 10]);
  });

  test('a busy one gets fewer', async () => {
    const [slow, quick] = await upstreams(2);
    if (!slow || !quick) throw new Error('there are two');
    slow.reply(() => {});
    const gate = await gateTo([slow.url, quick.url]);
    const stuck = await rawClient(gate.port);
    cleanups.push(() => stuck.destroy());
    while (slow.requests.length === 0) {
      const before = quick.requests.length;
      stuck.send(get());
      await until('it has come so far', () => slow.requests.length > 0 || quick.requests.length > before);
    }
    const before = quick.requests.length;
    for (let count = 0; count < 20; count += 1) expect((await rawRequest(gate.port, get())).status).toBe(200);
    expect([slow.requests.length, quick.requests.length - before]).toEqual([1, 20]);
  });

  test('one that refuses connections fails no repeatable request, and is left out after three failures', async () => {
    const [dead, alive] = await upstreams(2);
    await dead?.close();
    stopTime();
    const gate = await gateTo([dead?.url ?? '', alive?.url ?? '']);
    for (let count = 0; count < 40; count += 1) expect((await rawRequest(gate.port, get())).status).toBe(200);
    const repeats = gate.log.filter((line) => line.includes('upstream_asked_again')).length;
    expect(repeats).toBe(3);
    expect(gate.log.filter((line) => line.includes('target_left_out'))).toHaveLength(1);
  });

  test('a POST is not repeated, and succeeds as soon as the failing target is left out', async () => {
    const [dead, alive] = await upstreams(2);
    await dead?.close();
    stopTime();
    const gate = await gateTo([dead?.url ?? '', alive?.url ?? '']);
    const post = `POST /files/1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\nContent-Length: 2\r\n\r\nab`;
    const statuses: number[] = [];
    for (let count = 0; count < 20; count += 1) statuses.push((await rawRequest(gate.port, post)).status);
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
    const gate = await gateTo([`http://127.0.0.1:${port}`, two?.url ?? '']);
    for (let count = 0; count < 12; count += 1) expect((await rawRequest(gate.port, get())).status).toBe(502);
    const back = await recordingUpstream(port);
    cleanups.push(() => back.close());
    let answered = 0;
    for (let count = 0; count < 6; count += 1)
      if ((await rawRequest(gate.port, get())).status === 200) answered += 1;
    expect(answered).toBeGreaterThanOrEqual(5);
  });

  test('a health check takes a target out and brings it back', async () => {
    const [sick, well] = await upstreams(2);
    if (!sick || !well) throw new Error('there are two');
    let status = '503 Service Unavailable';
    sick.reply((socket, request) => {
      if (request.target === '/up') socket.write(`HTTP/1.1 ${status}\r\nContent-Length: 0\r\n\r\n`);
      else ok(socket, request);
    });
    const health = { path: '/up', interval: 0.05, timeout: 30, healthy: 2, unhealthy: 2 };
    const gate = await gateTo([sick.url, well.url], { upstreamSettings: { health } });
    await until('it has come so far', () => gate.log.some((line) => line.includes('health check')));
    const real = (one: RecordingUpstream): number =>
      one.requests.filter(({ target }) => target !== '/up').length;
    const before = real(sick);
    for (let count = 0; count < 10; count += 1) await rawRequest(gate.port, get());
    expect([real(sick) - before, real(well)]).toEqual([0, 10]);
    status = '204 No Content';
    await until('it has come so far', () => gate.log.some((line) => line.includes('target_back')));
    for (let count = 0; count < 10; count += 1) await rawRequest(gate.port, get());
    expect(real(sick) - before).toBe(5);
  });

  test('the body of a health check is received up to a megabyte, and its status decides', async () => {
    const [endless] = await upstreams(1);
    if (!endless) throw new Error('there is one');
    let isWell = false;
    endless.reply((socket) => {
      if (!isWell) return void socket.write('HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n');
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000\r\n\r\n');
      const more = (): void => {
        while (!socket.destroyed && socket.write(Buffer.alloc(65_536)));
      };
      socket.on('drain', more);
      more();
    });
    const health = { path: '/up', interval: 0.05, timeout: 60, healthy: 1, unhealthy: 1 };
    const gate = await gateTo([endless.url], { upstreamSettings: { health } });
    await until('the target is out', () => gate.log.some((line) => line.includes('health check')));
    isWell = true;
    await until('the target is back', () => gate.log.some((line) => line.includes('target_back')));
  });
});

describe('U13 a slow upstream', () => {
  test('gets as many requests as it has connections; as many wait as may, and the rest are refused; other upstreams are served', async () => {
    const [slow, other] = await upstreams(2);
    if (!slow || !other) throw new Error('there are two');
    slow.reply(() => {});
    const timeouts = { connect: 1, headers: 2, idle: 5 };
    stopTime();
    const gate = await gateTo([slow.url], {
      rules: [rule('/files/**', 'files:read'), rule('/other/**', 'files:read', { upstream: 'other' })],
      upstreamSettings: { connections: 3, maxPending: 4, timeouts },
      more: { other: { targets: [other.url], timeouts, connections: 3, maxPending: 0 } },
    });
    const waiting = Array.from({ length: 7 }, () => rawRequest(gate.port, get()));
    while (slow.requests.length < 3 || gate.notes.length < 7) await setImmediate();
    const beyond = await rawRequest(gate.port, get());
    expect(beyond.status).toBe(503);
    expect(beyond.head).toMatch(/^retry-after: 1$/im);
    for (let count = 0; count < 5; count += 1)
      expect((await rawRequest(gate.port, get('/other/1'))).status).toBe(200);
    vi.advanceTimersByTime(2_400);
    const statuses = (await Promise.all(waiting)).map(({ status }) => status).toSorted((a, b) => a - b);
    expect(statuses).toEqual([503, 503, 503, 503, 504, 504, 504]);
    slow.reply(ok);
    expect((await rawRequest(gate.port, get())).status).toBe(200);
  });

  test('the request of a client that disconnected while waiting is not forwarded', async () => {
    const [slow] = await upstreams(1);
    if (!slow) throw new Error('there is one');
    slow.reply(() => {});
    const gate = await gateTo([slow.url], { upstreamSettings: { connections: 1, maxPending: 10 } });
    const first = await rawClient(gate.port);
    first.send(get('/files/first'));
    await until('it has come so far', () => slow.requests.length === 1);
    const second = await rawClient(gate.port);
    second.send(get('/files/second'));
    await until('it has come so far', () => gate.notes.length === 2);
    second.destroy();
    await until('it has come so far', () => gate.notes[1]?.reason === 'client_left');
    slow.reply(ok);
    first.destroy();
    expect((await rawRequest(gate.port, get('/files/third'))).status).toBe(200);
    expect(slow.requests.map(({ target }) => target)).toEqual(['/files/first', '/files/third']);
  });

  test('does not keep the proxy from closing', async () => {
    const [slow] = await upstreams(1);
    if (!slow) throw new Error('there is one');
    slow.reply(() => {});
    const gate = await proxyHarness({ upstream: slow.url, upstreamSettings: { connections: 1 } });
    const clients = await Promise.all(Array.from({ length: 50 }, () => rawClient(gate.port)));
    for (const client of clients) client.send(get());
    await until('all have asked', () => gate.notes.length === 50);
    await gate.close();
    expect(slow.requests).toHaveLength(1);
  });

  test('a client that disconnects while its upstream connection is being made keeps its place until that ends', async () => {
    const sockets: Socket[] = [];
    const mute = createServer((socket) => {
      sockets.push(socket.on('error', () => {}).resume());
    });
    await new Promise<void>((resolve) => {
      mute.listen(0, '127.0.0.1', resolve);
    });
    cleanups.push(() => new Promise((resolve) => mute.close(resolve)));
    const { port } = mute.address() as AddressInfo;
    const gate = await gateTo([`https://127.0.0.1:${port}`], {
      upstreamSettings: { connections: 2, maxPending: 0, timeouts: { connect: 60, headers: 60, idle: 60 } },
    });
    for (let count = 1; count <= 2; count += 1) {
      const client = await rawClient(gate.port);
      client.send(get());
      await until('a connection is begun', () => sockets.length === count);
      client.destroy();
    }
    await until('both have left', () => gate.notes.every(({ reason }) => reason === 'client_left'));
    expect((await rawRequest(gate.port, get())).status).toBe(503);
    for (const socket of sockets.splice(0)) socket.destroy();
    const next = await until('there is room again', async () => {
      const asked = rawRequest(gate.port, get());
      const isTaken = await Promise.race([asked.then(() => false), began(sockets)]);
      return isTaken && { asked };
    });
    for (const socket of sockets.splice(0)) socket.destroy();
    expect((await next.asked).status).toBe(502);
  });
});

const began = async (sockets: readonly Socket[]): Promise<boolean> => {
  await until('a connection is begun', () => sockets.length > 0);
  return true;
};
