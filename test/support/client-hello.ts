import { randomBytes } from 'node:crypto';
import { connect } from 'node:net';

const toVector = (lengthBytes: number, ...parts: readonly Buffer[]): Buffer => {
  const content = Buffer.concat(parts);
  const length = Buffer.alloc(lengthBytes);
  length.writeUIntBE(content.length, 0, lengthBytes);
  return Buffer.concat([length, content]);
};

const toUint16 = (...values: readonly number[]): Buffer =>
  Buffer.from(values.flatMap((value) => [value >> 8, value & 0xff]));

const toExtension = (type: number, content: Buffer): Buffer => Buffer.concat([toUint16(type), toVector(2, content)]);

/** Every group up to brainpoolP512r1tls13, and the finite-field groups of RFC 7919. */
const GROUPS = [...Array.from({ length: 0x22 }, (_, index) => index + 1), 256, 257, 258, 259, 260];
/** SHA-1 to SHA-512 with RSA, DSA and ECDSA; RSA-PSS, Ed25519 and Ed448. */
const SIGNATURES = [
  ...[2, 3, 4, 5, 6].flatMap((hash) => [1, 2, 3].map((key) => hash * 256 + key)),
  ...Array.from({ length: 8 }, (_, index) => 0x0804 + index),
];

/** A TLS 1.2 ClientHello (RFC 5246 §7.4.1.2) with the given suites, which no library needs to implement. */
export function buildClientHello(suites: readonly number[]): Buffer {
  const body = Buffer.concat([
    toUint16(0x0303),
    randomBytes(32),
    toVector(1),
    toVector(2, toUint16(...suites)),
    toVector(1, Buffer.from([0])),
    toVector(
      2,
      toExtension(10, toVector(2, toUint16(...GROUPS))),
      toExtension(11, toVector(1, Buffer.from([0, 1, 2]))),
      toExtension(13, toVector(2, toUint16(...SIGNATURES))),
      toExtension(0xff01, toVector(1)),
    ),
  ]);
  const message = Buffer.concat([Buffer.from([1]), toVector(3, body)]);
  return Buffer.concat([Buffer.from([22, 3, 1]), toVector(2, message)]);
}

export type HelloReply =
  | { readonly kind: 'accepted'; readonly suite: number }
  | { readonly kind: 'alert'; readonly description: number }
  | { readonly kind: 'closed' };

/** Sends a ClientHello and reads the first message of the reply. */
export function sendClientHello(port: number, suites: readonly number[]): Promise<HelloReply> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => socket.write(buildClientHello(suites)));
    let bytes = Buffer.alloc(0);
    const finish = (reply: HelloReply): void => {
      socket.destroy();
      resolve(reply);
    };
    socket
      .on('data', (part: Buffer) => {
        bytes = Buffer.concat([bytes, part]);
        if (bytes.length < 7) return;
        if (bytes[0] === 21) return finish({ kind: 'alert', description: bytes.readUInt8(6) });
        // Record header, message header, version, random and session id precede the suite.
        const at = 5 + 4 + 2 + 32;
        const end = at + 1 + (bytes[at] ?? 0);
        if (bytes.length >= end + 2) finish({ kind: 'accepted', suite: bytes.readUInt16BE(end) });
      })
      .on('error', () => {})
      .on('close', () => finish({ kind: 'closed' }));
  });
}
