import { connect as connectTcp } from 'node:net';
import { connect } from 'node:tls';
import { createJunkChain } from './junk-chain.ts';

/**
 * A program that opens connections with worthless certificate chains, all from 127.0.0.0/24, and repeats each one that is closed:
 * `node junk-chain-client.ts <port> <connections> <certificates> [<handshakes>]`. It prints the number of handshakes and ends after
 * that many, or when its standard input ends.
 */
const [port, connections, certificates, limit = Number.POSITIVE_INFINITY] = process.argv.slice(2).map(Number);
const chain = await createJunkChain(certificates);
let started = 0;
let ended = 0;

function open(index: number): void {
  if (started >= limit) return;
  started += 1;
  const version = started % 2 === 0 ? 'TLSv1.2' : 'TLSv1.3';
  const socket = connect({
    socket: connectTcp({ host: '127.0.0.1', port: port ?? 0, localAddress: `127.0.0.${2 + (index % 250)}` }),
    rejectUnauthorized: false,
    cert: chain.pem,
    key: chain.keyPem,
    minVersion: version,
    maxVersion: version,
  });
  socket
    .on('error', () => {})
    // In TLS 1.3, the client is connected before the server has verified anything: the response shows that it has.
    .on('secureConnect', () => socket.write('GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n'))
    .resume()
    .once('close', () => {
      ended += 1;
      if (ended >= limit) return finish();
      open(index);
    });
}

function finish(): void {
  process.stdout.write(`${JSON.stringify({ handshakes: ended })}\n`, () => process.exit(0));
}

process.stdout.write('ready\n');
for (let index = 0; index < (connections ?? 0); index += 1) open(index);
process.stdin.resume().once('end', finish);
