import { afterAll, beforeAll, expect } from 'vitest';
import { type Change, type House, openHouse } from '../support/house.ts';
import {
  type RawAnswer,
  type RawClient,
  rawTlsClient,
  readAnswer,
  wholeAnswer,
} from '../support/raw-client.ts';
import { type RecordingUpstream, recordingUpstream } from '../support/recording-upstream.ts';
import { type Message, writeMessage } from './framing-cases.ts';
import { matrixSettings } from './matrix-settings.ts';

/**
 * The whole gateway under attack: its real TLS listener in front, an upstream that keeps every byte behind, and in
 * between nothing that a test could have made up.
 */
export interface AttackHouse {
  readonly house: House;
  readonly upstream: RecordingUpstream;
  /** Token `A`: alice's, with `files:read` and nothing else. */
  readonly token: string;
  client(protocols?: string[]): Promise<RawClient>;
  /** A request with token `A`, unless the message says otherwise. */
  write(message: Message): string;
  /** Sends these bytes on a connection of their own, perhaps in several pieces, and waits for one answer. */
  send(bytes: string, options?: SendOptions): Promise<RawAnswer>;
  ask(message: Message): Promise<RawAnswer>;
  /** Status given, connection closed, nothing upstream, and the gateway goes on: whole, and in small pieces. */
  refused(statuses: readonly number[], bytes: string): Promise<void>;
  /** The gateway goes on: the next good request passes, nothing of ours broke, and no secret stands in the log. */
  stands(...secrets: readonly string[]): Promise<void>;
}

export interface SendOptions {
  readonly pieces?: number;
  /** Wait for the other side to close as well. */
  readonly untilClosed?: boolean;
}

async function openAttackHouse(
  change?: Change,
): Promise<AttackHouse & { readonly close: () => Promise<void> }> {
  const upstream = await recordingUpstream();
  const house = await openHouse(matrixSettings(upstream.url, change));
  const { access_token: token, refresh_token: refreshToken } = await house.grant();
  const write = (message: Message): string => writeMessage({ token, ...message });
  const client = (protocols?: string[]): Promise<RawClient> =>
    rawTlsClient(house.port, house.ca.pem, protocols);

  const send: AttackHouse['send'] = async (bytes, { pieces = 1, untilClosed = false } = {}) => {
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
        : await sender.until((all) => wholeAnswer(all, toHead));
      return readAnswer(text);
    } finally {
      sender.destroy();
    }
  };

  let looked = house.lines.length;
  const stands: AttackHouse['stands'] = async (...secrets) => {
    upstream.reset();
    const next = await house.api('/files/next', token);
    expect([next.status, upstream.requests.map(({ target }) => target)]).toEqual([200, ['/files/next']]);
    const written = house.lines.slice(looked);
    looked = house.lines.length;
    expect(written.filter((line) => /"level":"error"/.test(line))).toEqual([]);
    for (const secret of [token, refreshToken, ...secrets])
      expect(written.filter((line) => line.includes(secret))).toEqual([]);
    upstream.reset();
  };

  const refused: AttackHouse['refused'] = async (statuses, bytes) => {
    for (const pieces of [1, 9]) {
      upstream.reset();
      const { status } = await send(bytes, { pieces, untilClosed: true });
      expect([bytes, pieces, statuses.includes(status) || status]).toEqual([bytes, pieces, true]);
      expect([bytes, upstream.bytes()]).toEqual([bytes, '']);
      await stands();
    }
  };

  return {
    house,
    upstream,
    token,
    client,
    write,
    send,
    ask: (message) => send(write(message)),
    refused,
    stands,
    async close() {
      await house.close();
      await upstream.close();
    },
  };
}

/** One house for all tests of a file; it is there when they run. */
export function attackHouse(change?: Change): AttackHouse {
  let opened: Awaited<ReturnType<typeof openAttackHouse>> | undefined;
  beforeAll(async () => {
    opened = await openAttackHouse(change);
  });
  afterAll(() => opened?.close());
  const there = (): AttackHouse => {
    if (opened === undefined) throw new Error('the house is opened before the tests run');
    return opened;
  };
  return {
    get house() {
      return there().house;
    },
    get upstream() {
      return there().upstream;
    },
    get token() {
      return there().token;
    },
    client: (protocols) => there().client(protocols),
    write: (message) => there().write(message),
    send: (bytes, options) => there().send(bytes, options),
    ask: (message) => there().ask(message),
    refused: (statuses, bytes) => there().refused(statuses, bytes),
    stands: (...secrets) => there().stands(...secrets),
  };
}
