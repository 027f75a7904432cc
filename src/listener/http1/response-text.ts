import { STATUS_CODES } from 'node:http';
import { formatFields } from '../../http/raw-headers.ts';
import type { Reply } from '../../http/reply.ts';
import { flattenString } from '../../lib/flat-string.ts';
import { KEEP_ALIVE_SECONDS } from '../listener-options.ts';

const formatStatusLine = (status: number, phrase = STATUS_CODES[status] ?? 'unknown'): string =>
  `HTTP/1.1 ${status} ${phrase}\r\n`;

const cachedStarts = new Map<number, string>();

/** The beginning of a forwarded response's head; the request id follows. */
export function formatResponseStart(status: number): string {
  const known = cachedStarts.get(status);
  if (known !== undefined) return known;
  const start = flattenString(`${formatStatusLine(status)}X-Request-Id: `);
  cachedStarts.set(status, start);
  return start;
}

const KEEP_ALIVE_FIELDS = flattenString(`Connection: keep-alive\r\nKeep-Alive: timeout=${KEEP_ALIVE_SECONDS}\r\n\r\n`);
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

/** RFC 9110 §5.5. */
const FIELD_VALUE = /^[\t\x20-\x7e\x80-\xff]*$/;

/** Names and values of a reply's fields, with the length of its body. Throws if one is not a valid field. */
export function listReplyFields({ status, headers }: Reply, bodyBytes: number): string[] {
  // RFC 9110 §8.6: no Content-Length in a 204.
  const list = status === 204 ? [] : ['content-length', String(bodyBytes)];
  for (const [name, value] of Object.entries(headers))
    for (const single of typeof value === 'string' ? [value] : value) {
      if (!FIELD_VALUE.test(single)) throw new TypeError(`an invalid value of the field ${name}`);
      list.push(name, single);
    }
  return list;
}

/** The head of a response of gatehouse itself. */
export const formatReplyHead = (reply: Reply, bodyBytes: number, close: boolean): string =>
  `${formatStatusLine(reply.status, reply.reasonPhrase)}${formatFields(listReplyFields(reply, bodyBytes))}${formatDateField()}${getConnectionFields(close)}`;

/** A response without a body to something that is no request. */
export const formatStatusOnly = (status: number): string =>
  `${formatStatusLine(status)}Connection: close\r\nCache-Control: no-store\r\nContent-Length: 0\r\n\r\n`;
