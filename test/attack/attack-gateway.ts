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
 * The whole gateway under attack: its real TLS listener in front, an upstream that keeps every byte behind, and in
 * between nothing that a test could have made up.
 */
export interface AttackGateway {
  readonly gateway: TestGateway;
  readonly upstream: RecordingUpstream;
  /** Token `A`: alice's, with `files:read` and nothing else. */
  readonly token: string;
  client(protocols?: string[]): Promise<RawClient>;
  /** A request with token `A`, unless the message says otherwise. */
  write(message: Message): string;
  /** Sends these bytes on a connection of their own, perhaps in several pieces, and waits for one answer. */
  send(bytes: string, options?: SendOptions): Promise<RawResponse>;
  request(message: Message): Promise<RawResponse>;
  /** Status given, connection closed, nothing upstream, and the gateway goes on: whole, and in small pieces. */
  expectRejected(statuses: readonly number[], bytes: string): Promise<void>;
  /** The gateway goes on: the next good request passes, nothing of ours broke, and no secret stands in the log. */
  expectHealthy(...secrets: readonly string[]): Promise<void>;
}

export interface SendOptions {
  readonly pieces?: number;
  /** Wait for the other side to close as well. */
  readonly untilClosed?: boolean;
}

async function startAttackGateway(
  change?: SettingsChange,
): Promise<AttackGateway & { readonly close: () => Promise<void> }> {
  const upstream = await startRecordingUpstream();
  const gateway = await startGateway(matrixSettings(upstream.url, change));
  const { access_token: token, refresh_token: refreshToken } = await gateway.grant();
  const write = (message: Message): string => writeMessage({ token, ...message });
  const client = (protocols?: string[]): Promise<RawClient> =>
    connectRawTls(gateway.port, gateway.ca.pem, protocols);

  const send: AttackGateway['send'] = async (bytes, { pieces = 1, untilClosed = false } = {}) => {
    const sender = await client();
    try {
      const size = Math.ceil(bytes.length / pieces);
      for (let at = 0; at < bytes.length && sender.text() === ''; at += size) {
        sender.send(bytes.slice(at, at + size));
        await new Promise(setImmediate);
      }
      const toHead = bytes.startsWith('HEAD');
      const text = untilClosed
        ? await sender.closed()
        : await sender.until((all) => isCompleteResponse(all, toHead));
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

/** One house for all tests of a file; it is there when they run. */
export function useAttackGateway(change?: SettingsChange): AttackGateway {
  let opened: Awaited<ReturnType<typeof startAttackGateway>> | undefined;
  beforeAll(async () => {
    opened = await startAttackGateway(change);
  });
  afterAll(() => opened?.close());
  const getOpened = (): AttackGateway => {
    if (opened === undefined) throw new Error('the gateway is started before the tests run');
    return opened;
  };
  return {
    get gateway() {
      return getOpened().gateway;
    },
    get upstream() {
      return getOpened().upstream;
    },
    get token() {
      return getOpened().token;
    },
    client: (protocols) => getOpened().client(protocols),
    write: (message) => getOpened().write(message),
    send: (bytes, options) => getOpened().send(bytes, options),
    request: (message) => getOpened().request(message),
    expectRejected: (statuses, bytes) => getOpened().expectRejected(statuses, bytes),
    expectHealthy: (...secrets) => getOpened().expectHealthy(...secrets),
  };
}
