import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { setTimeout } from 'node:timers/promises';
import { describe, expect, test, vi } from 'vitest';
import type { DeviceRequest } from '../../src/domain/device-request.ts';
import { type Grant, judgeRefresh } from '../../src/domain/grant.ts';
import { ensureAdminToken } from '../../src/gateway/admin-token.ts';
import type { GrantDesk } from '../../src/grants/desk.ts';
import { confirmDevice } from '../../src/grants/device-decision.ts';
import { createLogger, stdoutSink } from '../../src/observability/logger.ts';
import { redactText } from '../../src/observability/redact.ts';
import { Fault } from '../../src/ports/fault.ts';
import { patientClock } from '../../src/stores/embedded-sweep.ts';
import { writeLine } from '../../src/stores/embedded-writes.ts';
import { memoryStore } from '../../src/stores/memory.ts';
import { freePort } from '../support/gateway-process.ts';
import { openHouse } from '../support/house.ts';
import { makeServeFolder, until } from '../support/serve-process.ts';

const MAIN = join(import.meta.dirname, '../../src/main.ts');

describe('what a stranger can make the house do', () => {
  test('a client_id of 16 KiB is neither searched for long nor written to the log as it is', async () => {
    const evil = 'a.'.repeat(8_000);
    const spent = Array.from({ length: 3 }, () => {
      const before = performance.now();
      redactText(evil);
      return performance.now() - before;
    });
    // It was 300 ms, in which nobody else was served.
    expect(Math.min(...spent)).toBeLessThan(60);

    await using house = await opened();
    await house.post('/Authorize/Token', { client_id: evil, refresh_token: 'x' });
    await vi.waitFor(() => expect(house.log.some(({ event }) => event === 'request')).toBe(true));
    for (const line of house.log) expect(JSON.stringify(line).length).toBeLessThan(2_048);
  });
});

describe('what is read in two ways', () => {
  test('a charset is found also when somebody puts spaces around its equals sign', async () => {
    await using house = await opened();
    const reply = await house.post(
      '/Authorize/Device',
      { client_id: 'report-runner', scope: 'files:read' },
      { headers: { 'content-type': 'application/json; charset = latin1' } },
    );
    expect(reply).toMatchObject({ status: 400, json: { Error: 'invalid_request' } });
  });

  test('an empty admin token, left by a start on a full disk, is not kept', () => {
    const folder = mkdtempSync(join(tmpdir(), 'gatehouse-admin-'));
    try {
      const file = join(folder, 'admin-token');
      writeFileSync(file, '', { mode: 0o600 });
      ensureAdminToken(file);
      const made = readFileSync(file, 'utf8');
      expect(made).toMatch(/^[A-Za-z0-9_-]{43}\n$/);
      ensureAdminToken(file);
      expect(readFileSync(file, 'utf8')).toBe(made);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});

describe('a disk that stalls and comes back', () => {
  const never = new Promise<boolean>(() => {});

  test('a stall that only refreshes met does not stop new grants for ever', async () => {
    vi.useFakeTimers();
    try {
      const line = writeLine(() => 0, { fits: async () => true });
      const flushed = Promise.withResolvers<boolean>();
      const stalled = line.write({ purpose: 'upkeep', bytes: 1, change: () => flushed.promise });
      const refused = expect(stalled).rejects.toThrow(Fault);
      await vi.advanceTimersByTimeAsync(10_001);
      await refused;
      flushed.resolve(true);
      await vi.advanceTimersByTimeAsync(1_000);
      const write = line.write({ purpose: 'new', bytes: 1, change: async () => true });
      const answered = expect(write).resolves.toBe(true);
      await vi.advanceTimersByTimeAsync(1_000);
      await answered;
    } finally {
      vi.useRealTimers();
    }
  });

  test('a disk that hangs while the file is made longer keeps nobody waiting without end', async () => {
    vi.useFakeTimers();
    try {
      const line = writeLine(() => 0, { fits: () => never });
      const refused = expect(
        line.write({ purpose: 'upkeep', bytes: 1, change: async () => true }),
      ).rejects.toThrow(Fault);
      await vi.advanceTimersByTimeAsync(10_001);
      await refused;
    } finally {
      vi.useRealTimers();
    }
  });
});

describe('refresh, when clocks and clients are not as they should be', () => {
  test('window 0: eight refreshes of one token at about the same time end no grant', async () => {
    await using house = await opened((settings) => ({
      ...settings,
      tokens: { refresh: { retryWindow: '0s' } },
    }));
    const { refresh_token } = await house.grant();
    const replies = await Promise.all(
      Array.from({ length: 8 }, async (_, place) => {
        await setTimeout(place);
        return house.refresh(refresh_token);
      }),
    );
    const [winner, ...others] = replies.filter(({ status }) => status === 200);
    expect(others).toEqual([]);
    expect((await house.refresh(String(winner?.json['refresh_token']))).status).toBe(200);
    house.clock.advance(3);
    await house.refresh(refresh_token);
    expect(house.audits('refresh_reuse')).toHaveLength(1);
  });

  test('a clock that was a day ahead at our start does not hold the retry window open for a day', () => {
    const now = 1_800_000_000;
    const keys = { signing: 's1', sealing: 'm1' };
    const grant: Grant = {
      id: 'g1',
      clientId: 'lab',
      identity: 'local:{42}',
      grantType: 'certificate',
      scope: 'files:read',
      issuedAt: now - 600,
      refreshUntil: now + 86_400,
      generation: 2,
      rotatedAt: now - 60,
      accessExpires: now + 600,
      keys,
    };
    const attempt = {
      clientId: 'lab',
      generation: 1,
      now,
      arrivedAt: now,
      retryWindow: 10,
      accessLifetime: 3_600,
      keys,
    };
    expect(judgeRefresh(grant, { ...attempt, servingSince: now + 86_400 }).kind).toBe('reused');
    // A clock that was corrected by a little is no reason to take a client's retry for theft.
    expect(judgeRefresh(grant, { ...attempt, servingSince: now + 2 }).kind).toBe('repeated');
  });

  test('a spent token gets nothing when the clock was set back after it was spent, and costs nobody the grant', async () => {
    await using house = await opened();
    house.clock.advance(86_400);
    const first = await house.grant();
    const second = await house.refresh(first.refresh_token);
    house.clock.advance(-86_400);
    expect((await house.refresh(first.refresh_token)).json['Error']).toBe('invalid_grant');
    expect((await house.refresh(String(second.json['refresh_token']))).status).toBe(200);
  });
});

describe('a clock that is a year ahead for a minute', () => {
  test('is not believed by the sweeper, which would forget what was revoked', () => {
    let [now, steady] = [1_800_000_000, 0];
    const pass = (seconds: number): void => {
      now += seconds;
      steady += seconds * 1_000;
    };
    const trusted = patientClock(
      () => now,
      () => steady,
    );
    pass(60);
    expect(trusted()).toBe(now);
    now += 31_536_000;
    pass(60);
    // A grant's revocation is kept for a day more than the grant.
    expect(trusted()).toBeLessThan(1_800_000_000 + 86_400);
    now -= 31_536_000;
    expect(trusted()).toBe(now);
  });

  test('after a night of suspension the sweeper catches up', () => {
    let [now, steady] = [1_800_000_000, 0];
    const trusted = patientClock(
      () => now,
      () => steady,
    );
    now += 8 * 3_600;
    for (let seconds = 0; seconds < 600; seconds += 10) {
      now += 10;
      steady += 10_000;
      trusted();
    }
    expect(trusted()).toBe(now);
  });
});

describe('where the log goes', () => {
  test.each(['a full disk', 'a reader that has gone'])('%s costs lines, not the service', async (trouble) => {
    const folder = await makeServeFolder();
    const port = await freePort();
    folder.configure((settings) => ({ ...settings, admin: { port } }));
    const full = openSync('/dev/full', 'w');
    const child = spawn(process.execPath, [MAIN, 'serve', '--config', folder.file('gatehouse.yaml')], {
      stdio: ['ignore', trouble === 'a full disk' ? full : 'pipe', 'ignore'],
    });
    try {
      child.stdout?.destroy();
      const alive = (): Promise<number> =>
        fetch(`http://127.0.0.1:${port}/livez`).then(
          ({ status }) => status,
          () => 0,
        );
      await until('it answers', async () => (await alive()) === 200);
      // It reads everything again, and has something to say about that.
      child.kill('SIGHUP');
      const ended = once(child, 'exit').then(([code]) => `ended with ${code}`);
      expect(await Promise.race([ended, setTimeout(1_000, 'goes on')])).toBe('goes on');
      expect(await alive()).toBe(200);
    } finally {
      child.kill('SIGKILL');
      closeSync(full);
      await folder.remove();
    }
  });

  test('lines that were lost are counted, and told with the next that gets through', () => {
    let broken = true;
    const seen: string[] = [];
    const told: number[] = [];
    const stream = new Writable({ decodeStrings: false });
    stream.write = (text: string, done: unknown) => {
      if (!broken) seen.push(text);
      if (typeof done === 'function') done(broken ? new Error('ENOSPC') : undefined);
      return true;
    };
    const sink = stdoutSink(stream, (writes) => told.push(writes));
    for (const line of ['one', 'two']) {
      sink.write(line);
      sink.flush();
    }
    broken = false;
    sink.write('three');
    sink.flush();
    expect(told).toEqual([2]);
    expect(seen).toEqual(['three']);
  });
});

describe('revocation and decisions that are outrun', () => {
  test('a token is denied here while the disk still thinks about its revocation', async () => {
    await using house = await opened();
    const { access_token } = await house.grant();
    const { revocations } = house.gateway.store;
    const announce = revocations.announce.bind(revocations);
    const flushed = Promise.withResolvers<void>();
    Object.assign(revocations, {
      announce: (...given: Parameters<typeof announce>) => flushed.promise.then(() => announce(...given)),
    });
    const revoked = house.api('/authsvc/Revoke/Token', access_token);
    await vi.waitFor(async () => expect((await house.api('/whoami', access_token)).status).toBe(401));
    flushed.resolve();
    expect((await revoked).status).toBe(200);
    expect((await house.api('/whoami', access_token)).status).toBe(401);
  });

  test('a token from before the clock was set back can be revoked, and is told to be early, not foreign', async () => {
    await using house = await opened();
    house.clock.advance(3_600);
    const { access_token } = await house.grant();
    house.clock.advance(-3_600);
    const verified = await house.api('/authsvc/Authorize/Verify', access_token);
    expect(verified.status).toBe(401);
    expect(verified.json['Error_description']).toBe('The access token is not valid yet.');
    expect((await house.api('/whoami', access_token)).status).toBe(401);
    expect((await house.api('/authsvc/Revoke/Token', access_token)).status).toBe(200);
    house.clock.advance(3_600);
    expect((await house.api('/whoami', access_token)).status).toBe(401);
  });

  test('a yes is not taken when the device flow was switched off between the question and the answer', async () => {
    const now = (): number => 1_800_000_000;
    const store = memoryStore({ now });
    const request: DeviceRequest = {
      state: 'pending',
      id: 'r'.repeat(22),
      clientId: 'lab',
      scope: 'files:read',
      askedAt: now(),
      askedFrom: '192.0.2.1',
      expires: now() + 300,
      failedSignIns: 0,
    };
    await store.devices.create(request.id, request, request.expires);
    const log = createLogger({ level: 'error', format: 'json', write: () => {} });
    // All that a decision looks at; the integration has been taken away.
    const desk = { store, now, log, integrations: new Map(), policy: { device: { enabled: true } } };
    const person = {
      identity: 'local:{42}',
      displayName: 'Mallory',
      directory: 'staff',
      groups: new Set<string>(),
      disabled: true,
    };
    const decided = await confirmDevice(desk as unknown as GrantDesk, request.id, person);
    expect(decided).toMatchObject({ ok: false, refusal: { reason: 'client_unknown' } });
    expect((await store.devices.read(request.id))?.record.state).toBe('pending');
  });
});

async function opened(...change: Parameters<typeof openHouse>) {
  const house = await openHouse(...change);
  return Object.assign(house, { [Symbol.asyncDispose]: () => house.close() });
}
