import { flat } from '../../observability/flat-text.ts';
import { type Address, UpstreamSocket } from './upstream-socket.ts';

/** The bare connections to one target. The one that was used last is used next, so that the others may end. */
export interface UpstreamSockets {
  readonly address: Address;
  /** One that is idle, or a new one; `fresh`: one that nobody has used. */
  take(fresh: boolean): UpstreamSocket;
  /** None is kept from now on; done when the last one that is in use has ended. */
  close(): Promise<void>;
  /** Ends them under whoever uses them. */
  cut(): void;
}

const LOOK_MS = 1_000;

/**
 * `onFree` is told when a connection that has carried an answer is fit for the next request: not before the event loop
 * has looked at it once more. An upstream that sends more than was asked for is found out by then.
 */
export function openSockets(target: string, onFree: () => void): UpstreamSockets {
  const address = addressOf(target);
  const idle: UpstreamSocket[] = [];
  const all = new Set<UpstreamSocket>();
  let justDone: UpstreamSocket[] = [];
  let rested: UpstreamSocket[] = [];
  let resting = false;
  let closed = false;
  let isCut = false;
  const empty = Promise.withResolvers<void>();
  let timer: NodeJS.Timeout | undefined;

  const onIdle = (socket: UpstreamSocket): boolean => {
    if (closed || socket.idleSeconds <= 0) {
      socket.drop();
      return false;
    }
    socket.idleSince = performance.now();
    justDone.push(socket);
    if (!resting) setImmediate(rest);
    resting = true;
    return true;
  };
  /** Runs after each look at the sockets; those that were done before that look have been looked at. */
  const rest = (): void => {
    const [fit, next] = [rested, justDone];
    rested = next;
    justDone = [];
    resting = next.length > 0;
    if (resting) setImmediate(rest);
    for (const socket of fit) {
      if (!socket.isGone) idle.push(socket);
      onFree();
    }
    if (idle.length > 0) timer ??= setInterval(endIdle, LOOK_MS).unref();
  };
  const onGone = (socket: UpstreamSocket): void => {
    all.delete(socket);
    if (closed && all.size === 0) empty.resolve();
    const place = idle.indexOf(socket);
    if (place >= 0) idle.splice(place, 1);
  };
  const endIdle = (): void => {
    const now = performance.now();
    for (const socket of idle.filter((one) => isOver(one, now))) {
      onGone(socket);
      socket.drop();
    }
    if (idle.length > 0) return;
    clearInterval(timer);
    timer = undefined;
  };

  return {
    address,
    take(fresh) {
      for (let socket = fresh ? undefined : idle.pop(); socket !== undefined; socket = idle.pop()) {
        if (!socket.isGone) return socket;
      }
      const made = new UpstreamSocket(address, onIdle, onGone);
      all.add(made);
      // Whoever comes now learns it from the socket.
      if (isCut) made.cut();
      return made;
    },
    close() {
      closed = true;
      clearInterval(timer);
      for (const socket of [...idle, ...rested, ...justDone]) socket.drop();
      if (all.size === 0) empty.resolve();
      return empty.promise;
    },
    cut() {
      isCut = true;
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
    opening: flat(`${opening}keep-alive\r\n`),
    openingOnce: flat(`${opening}close\r\n`),
  };
}
