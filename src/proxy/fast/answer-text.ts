import { STATUS_CODES } from 'node:http';
import { flat } from '../../observability/flat-text.ts';
import { KEEP_ALIVE_SECONDS } from '../../tls/listener-options.ts';
import type { EarlyAnswer } from '../refuse.ts';

/** Heads of answers, as they stand on the wire. */

const statusLine = (status: number): string => `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? 'unknown'}\r\n`;

const starts = new Map<number, string>();

/** What every head begins with that is told in an upstream's name; the id follows. */
export function answerStart(status: number): string {
  const known = starts.get(status);
  if (known !== undefined) return known;
  const made = flat(`${statusLine(status)}X-Request-Id: `);
  starts.set(status, made);
  return made;
}

const KEEP = flat(`Connection: keep-alive\r\nKeep-Alive: timeout=${KEEP_ALIVE_SECONDS}\r\n\r\n`);
const CLOSE = 'Connection: close\r\n\r\n';

/** What every head ends with. */
export const tail = (close: boolean): string => (close ? CLOSE : KEEP);

let dateAt = 0;
let dateText = '';

/** RFC 9110 §6.6.1, once a second. */
export function dateField(): string {
  const second = Math.trunc(Date.now() / 1_000);
  if (second !== dateAt) {
    dateAt = second;
    dateText = `Date: ${new Date(second * 1_000).toUTCString()}\r\n`;
  }
  return dateText;
}

export function fieldText(list: readonly string[]): string {
  let text = '';
  for (let at = 0; at + 1 < list.length; at += 2) text += `${list[at]}: ${list[at + 1]}\r\n`;
  return text;
}

/** A whole answer of our own. */
export function earlyText({ status, text, headers }: EarlyAnswer, toHead: boolean, close: boolean): string {
  const fields = Object.entries(headers)
    .map(([name, value]) => `${name}: ${value}\r\n`)
    .join('');
  const length = `content-length: ${Buffer.byteLength(text)}\r\ncache-control: no-store\r\n`;
  return `${statusLine(status)}${length}${fields}${dateField()}${tail(close)}${toHead ? '' : text}`;
}
