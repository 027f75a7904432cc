import { type Address, UpstreamSocket } from './upstream-socket.ts';

/** The bare connections to one target. The one that was used last is used next, so that the others may end. */
export interface UpstreamSockets {
  readonly address: Address;
  /** One that is idle, or a new one; `fresh`: one that nobody has used. */
  take(fresh: boolean): UpstreamSocket;
  /** No socket is kept any more; those in use go on until they are done. */
  retire(): void;
  /** At once. */
  close(): void;
}

const LOOK_MS = 1_000;

export function openSockets(target: string): UpstreamSockets {
  const address = addressOf(target);
  const idle: UpstreamSocket[] = [];
  const all = new Set<UpstreamSocket>();
  let retired = false;
  let timer: NodeJS.Timeout | undefined;

  const onIdle = (socket: UpstreamSocket): void => {
    if (retired || socket.idleSeconds <= 0) {
      socket.drop();
      return;
    }
    socket.idleSince = performance.now();
    idle.push(socket);
    timer ??= setInterval(endIdle, LOOK_MS).unref();
  };
  const onGone = (socket: UpstreamSocket): void => {
    all.delete(socket);
    const place = idle.indexOf(socket);
    if (place >= 0) idle.splice(place, 1);
  };
  const endIdle = (): void => {
    const now = performance.now();
    for (const socket of idle.filter((one) => isOver(one, now))) leave(socket);
    if (idle.length > 0) return;
    clearInterval(timer);
    timer = undefined;
  };
  const leave = (socket: UpstreamSocket): void => {
    const place = idle.indexOf(socket);
    if (place >= 0) idle.splice(place, 1);
    socket.drop();
  };

  return {
    address,
    take(fresh) {
      for (let socket = fresh ? undefined : idle.pop(); socket !== undefined; socket = idle.pop()) {
        if (!isOver(socket, performance.now())) return socket;
        socket.drop();
      }
      const made = new UpstreamSocket(address, onIdle, onGone);
      all.add(made);
      return made;
    },
    retire() {
      retired = true;
      clearInterval(timer);
      for (const socket of idle.splice(0)) socket.drop();
    },
    close() {
      this.retire();
      for (const socket of all) socket.cut();
    },
  };
}

const isOver = ({ idleSince, idleSeconds }: UpstreamSocket, now: number): boolean =>
  now - idleSince > idleSeconds * 1_000;

/** Only what is plain HTTP over TCP or over a Unix socket. */
export const isBare = (target: string): boolean => target.startsWith('http://') || target.startsWith('unix:');

function addressOf(target: string): Address {
  const isUnix = target.startsWith('unix:');
  const { host, hostname, port } = new URL(isUnix ? 'http://localhost' : target);
  const opening = ` HTTP/1.1\r\nhost: ${host}\r\nconnection: `;
  return {
    connect: isUnix
      ? { path: target.slice('unix:'.length) }
      : { host: hostname.replace(/^\[|\]$/g, ''), port: port === '' ? 80 : Number(port) },
    opening: `${opening}keep-alive\r\n`,
    openingOnce: `${opening}close\r\n`,
  };
}
