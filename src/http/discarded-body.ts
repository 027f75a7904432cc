/*
 * The rest of a request after its response. It is read and discarded: if the connection were closed while the client sends, a reset could destroy
 * the response (RFC 9112 §9.6).
 */
export const MAX_DISCARDED_BYTES = 8_388_608;
export const DISCARD_MS = 2_000;
