/** RFC 5424 §6.2.1: authpriv. */
const FACILITY_CODE = 10;

const SEVERITY_CODES = { warning: 4, notice: 5, info: 6 } as const;
type Severity = keyof typeof SEVERITY_CODES;

interface SyslogHeader {
  readonly host: string;
  readonly pid: number;
}

/** RFC 5424 §6: `<PRI>1 TIME HOST APP PROCID MSGID - MSG`. The message is ASCII, so it needs no BOM (§6.4). */
export function formatSyslogMessage(
  { host, pid }: SyslogHeader,
  event: { readonly time: string; readonly name: string; readonly severity: Severity; readonly line: string },
): string {
  const priority = FACILITY_CODE * 8 + SEVERITY_CODES[event.severity];
  return `<${priority}>1 ${event.time} ${formatHeaderField(host, 255)} gatehouse ${pid} ${formatHeaderField(event.name, 32)} - ${escapeNonAscii(event.line.trimEnd())}`;
}

const formatHeaderField = (text: string, maxLength: number): string =>
  text.replace(/[^\x21-\x7e]/g, '').slice(0, maxLength) || '-';

const escapeNonAscii = (json: string): string =>
  json.replace(/[^\x20-\x7e]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`);
