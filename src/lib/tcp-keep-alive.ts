/**
 * Options of sockets and servers (SO_KEEPALIVE, RFC 9293 §3.8.4): finds peers that are gone while a stream is silent, and keeps the stream
 * in the tables of NAT devices.
 */
export const TCP_KEEP_ALIVE = { keepAlive: true, keepAliveInitialDelay: 60_000 } as const;
