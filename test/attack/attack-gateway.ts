import { afterAll, beforeAll, expect } from 'vitest';
import {
  connectRawTls,
  isCompleteResponse,
  parseRawResponse,
  type RawClient,
  type RawResponse,
} from '../support/raw-client.ts';
import { type RecordingUpstream, startRecordingUpstream } from '../support/recording-upstream.ts';
import { type SettingsChange, startGateway, type TestGateway } from '../support/test-gateway.ts';
import { type Message, writeMessage } from './framing-cases.ts';
import { matrixSettings } from './matrix-settings.ts';

/**
 * A complete gateway with its real TLS listener, in front of an upstream that records every byte. Nothing in between is
 * mocked.
 */
export interface AttackGateway {
  readonly gateway: TestGateway;
  readonly upstream: RecordingUpstream;
  /** Token `A`: alice's, with `files:read` and nothing else. */
  readonly token: string;
  client(protocols?: string[]): Promise<RawClient>;
  /** Serializes a request with token `A`, unless the message sets another token. */
  write(message: Message): string;
  /** Sends the bytes on a new connection, optionally in several pieces, and waits for one response. */
  send(bytes: string, options?: SendOptions): Promise<RawResponse>;
  request(message: Message): Promise<RawResponse>;
  /** Expects one of these statuses, a closed connection and no upstream request, for the bytes in one piece and in nine. */
  expectRejected(statuses: readonly number[], bytes: string): Promise<void>;
  /** Expects that the next valid request succeeds, no error was logged, and the log contains no secret. */
  expectHealthy(...secrets: readonly string[]): Promise<void>;
}

export interface SendOptions {
  readonly pieces?: number;
  /** Also wait until the gateway closes the connection. */
  readonly untilClosed?: boolean;
}

async function startAttackGateway(
  change?: SettingsChange,
): Promise<AttackGateway & { readonly close: () => Promise<void> }> {
  const upstream = await startRecordingUpstream();
  const gateway = await startGateway(matrixSettings(upstream.url, change));
  const { access_token: token, refresh_token: refreshToken } = await gateway.grant();
  const write = (message: Message): string => writeMessage({ token, ...message });
  const client = (protocols?: string[]): Promise<RawClient> => connectRawTls(gateway.port, gateway.ca.pem, protocols);

  const send: AttackGateway['send'] = async (bytes, { pieces = 1, untilClosed = false } = {}) => {
    const sender = await client();
    try {
      const size = Math.ceil(bytes.length / pieces);
      for (let at = 0; at < bytes.length && sender.text() === ''; at += size) {
        sender.send(bytes.slice(at, at + size));
        await new Promise(setImmediate);
      }
      const toHead = bytes.startsWith('HEAD');
      const text = untilClosed ? await sender.closed() : await sender.until((all) => isCompleteResponse(all, toHead));
      return parseRawResponse(text);
    } finally {
      sender.destroy();
    }
  };

  let checkedLines = gateway.logLines.length;
  const expectHealthy: AttackGateway['expectHealthy'] = async (...secrets) => {
    upstream.reset();
    const next = await gateway.api('/files/next', token);
    expect([next.status, upstream.requests.map(({ target }) => target)]).toEqual([200, ['/files/next']]);
    const written = gateway.logLines.slice(checkedLines);
    checkedLines = gateway.logLines.length;
    expect(written.filter((line) => /"level":"error"/.test(line))).toEqual([]);
    for (const secret of [token, refreshToken, ...secrets])
      expect(written.filter((line) => line.includes(secret))).toEqual([]);
    upstream.reset();
  };

  const expectRejected: AttackGateway['expectRejected'] = async (statuses, bytes) => {
    for (const pieces of [1, 9]) {
      upstream.reset();
      const { status } = await send(bytes, { pieces, untilClosed: true });
      expect([bytes, pieces, statuses.includes(status) || status]).toEqual([bytes, pieces, true]);
      expect([bytes, upstream.bytes()]).toEqual([bytes, '']);
      await expectHealthy();
    }
  };

  return {
    gateway,
    upstream,
    token,
    client,
    write,
    send,
    request: (message) => send(write(message)),
    expectRejected,
    expectHealthy,
    async close() {
      await gateway.close();
      await upstream.close();
    },
  };
}

/** Starts one gateway for all tests of a file; it is usable only inside hooks and tests. */
export function useAttackGateway(change?: SettingsChange): AttackGateway {
  let started: Awaited<ReturnType<typeof startAttackGateway>> | undefined;
  beforeAll(async () => {
    started = await startAttackGateway(change);
  });
  afterAll(() => started?.close());
  const getStarted = (): AttackGateway => {
    if (started === undefined) throw new Error('the gateway is started before the tests run');
    return started;
  };
  return {
    get gateway() {
      return getStarted().gateway;
    },
    get upstream() {
      return getStarted().upstream;
    },
    get token() {
      return getStarted().token;
    },
    client: (protocols) => getStarted().client(protocols),
    write: (message) => getStarted().write(message),
    send: (bytes, options) => getStarted().send(bytes, options),
    request: (message) => getStarted().request(message),
    expectRejected: (statuses, bytes) => getStarted().expectRejected(statuses, bytes),
    expectHealthy: (...secrets) => getStarted().expectHealthy(...secrets),
  };
}
