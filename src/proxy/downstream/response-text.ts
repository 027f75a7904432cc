import { STATUS_CODES } from 'node:http';
import { flattenString } from '../../lib/flat-string.ts';
import { KEEP_ALIVE_SECONDS } from '../../listener/listener-options.ts';
import type { EarlyResponse } from '../policy/refusals.ts';

const formatStatusLine = (status: number): string =>
  `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? 'unknown'}\r\n`;

const cachedStarts = new Map<number, string>();

/** The beginning of a forwarded response's head; the request id follows. */
export function formatResponseStart(status: number): string {
  const known = cachedStarts.get(status);
  if (known !== undefined) return known;
  const start = flattenString(`${formatStatusLine(status)}X-Request-Id: `);
  cachedStarts.set(status, start);
  return start;
}

const KEEP_ALIVE_FIELDS = flattenString(
  `Connection: keep-alive\r\nKeep-Alive: timeout=${KEEP_ALIVE_SECONDS}\r\n\r\n`,
);
const CLOSE_FIELDS = 'Connection: close\r\n\r\n';

/** The end of every head. */
export const getConnectionFields = (close: boolean): string => (close ? CLOSE_FIELDS : KEEP_ALIVE_FIELDS);

let dateSecond = 0;
let dateText = '';
let dateField = '';

/** RFC 9110 §6.6.1. Formatted once a second. */
export function formatDate(): string {
  const second = Math.trunc(Date.now() / 1_000);
  if (second !== dateSecond) {
    dateSecond = second;
    dateText = new Date(second * 1_000).toUTCString();
    dateField = `Date: ${dateText}\r\n`;
  }
  return dateText;
}

export function formatDateField(): string {
  formatDate();
  return dateField;
}

export function formatFields(list: readonly string[], start = 0, end = list.length): string {
  let text = '';
  for (let at = start; at + 1 < end; at += 2) text += `${list[at]}: ${list[at + 1]}\r\n`;
  return text;
}

/** A complete response of gatehouse itself. */
export function formatEarlyResponse(
  { status, text, headers }: EarlyResponse,
  isHeadRequest: boolean,
  close: boolean,
): string {
  const fields = Object.entries(headers)
    .map(([name, value]) => `${name}: ${value}\r\n`)
    .join('');
  const length = `content-length: ${Buffer.byteLength(text)}\r\ncache-control: no-store\r\n`;
  return `${formatStatusLine(status)}${length}${fields}${formatDateField()}${getConnectionFields(close)}${isHeadRequest ? '' : text}`;
}
