/*
 * The rest of a request after its response. It is read and discarded: if the connection were closed while the client sends, a reset could destroy
 * the response (RFC 9112 §9.6).
 */

export const MAX_DISCARDED_BYTES = 8_388_608;
/** How long the rest may take, and how long the client may pause. */
export const DISCARD_MS = 10_000;
export const DISCARD_PAUSE_MS = 2_000;
