import type { Socket } from 'node:net';

/** By default, Node sends 10 probes a second apart: a network that is down for 10 seconds would end every silent stream. */
const KEEP_ALIVE = { initialDelayMs: 60_000, intervalMs: 10_000, count: 6 } as const;

/**
 * SO_KEEPALIVE (RFC 9293 §3.8.4): finds a peer that is gone within two minutes while a stream is silent, and keeps the stream in
 * the tables of NAT devices.
 */
export const enableTcpKeepAlive = <S extends Socket>(socket: S): S =>
  socket.setKeepAlive(true, KEEP_ALIVE.initialDelayMs, KEEP_ALIVE.intervalMs, KEEP_ALIVE.count);
