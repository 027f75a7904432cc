import type { Socket } from 'node:net';
import { Duplex } from 'node:stream';

/** Forwards everything, but splits the ClientHello into TLS records of one byte each (RFC 8446 §5.1). */
export function fragmentClientHello(socket: Socket): Duplex {
  let isFirst = true;
  const duplex = new Duplex({
    read: () => socket.resume(),
    write(chunk: Buffer, _encoding, done) {
      if (!isFirst) return void socket.write(chunk, done);
      isFirst = false;
      const header = chunk.subarray(0, 3);
      const length = chunk.readUInt16BE(3);
      const records = [...chunk.subarray(5, 5 + length)].map((byte) =>
        Buffer.concat([header, Buffer.from([0, 1, byte])]),
      );
      socket.write(Buffer.concat([...records, chunk.subarray(5 + length)]), done);
    },
    final: (done) => void socket.end(done),
  });
  socket.on('data', (part) => duplex.push(part)).on('end', () => duplex.push(null));
  return duplex;
}
