/** RFC 5424 §6.2.1. */
const FACILITY_CODES = {
  user: 1,
  daemon: 3,
  auth: 4,
  authpriv: 10,
  local0: 16,
  local1: 17,
  local2: 18,
  local3: 19,
  local4: 20,
  local5: 21,
  local6: 22,
  local7: 23,
} as const;
export type Facility = keyof typeof FACILITY_CODES;
export const FACILITIES = Object.keys(FACILITY_CODES) as readonly Facility[];

const SEVERITY_CODES = { warning: 4, notice: 5, info: 6 } as const;
export type Severity = keyof typeof SEVERITY_CODES;

export interface SyslogHeader {
  readonly facility: Facility;
  readonly host: string;
  readonly pid: number;
}

/** RFC 5424 §6: `<PRI>1 TIME HOST APP PROCID MSGID - MSG`. The message is ASCII, so it needs no BOM (§6.4). */
export function formatSyslogMessage(
  { facility, host, pid }: SyslogHeader,
  event: { readonly time: string; readonly name: string; readonly severity: Severity; readonly line: string },
): string {
  const priority = FACILITY_CODES[facility] * 8 + SEVERITY_CODES[event.severity];
  return `<${priority}>1 ${event.time} ${formatHeaderField(host, 255)} gatehouse ${pid} ${formatHeaderField(event.name, 32)} - ${escapeNonAscii(event.line.trimEnd())}`;
}

const formatHeaderField = (text: string, maxLength: number): string =>
  text.replace(/[^\x21-\x7e]/g, '').slice(0, maxLength) || '-';

const escapeNonAscii = (json: string): string =>
  json.replace(/[^\x20-\x7e]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`);
