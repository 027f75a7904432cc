import { encodeQR } from 'qr';

const BLACK_ON_WHITE = '\u001b[30;107m';
const PLAIN = '\u001b[0m';
const QUIET_ZONE = 2;

/** Two rows of modules in one line of half blocks, dark on light whatever the terminal's colours are. */
export function terminalQr(text: string): string {
  const rows = encodeQR(text, 'raw', { ecc: 'low', border: QUIET_ZONE });
  const lines: string[] = [];
  for (let y = 0; y < rows.length; y += 2) {
    const [upper = [], lower = []] = [rows[y], rows[y + 1]];
    const line = upper.map((dark, x) => block(dark, lower[x] === true)).join('');
    lines.push(`${BLACK_ON_WHITE}${line}${PLAIN}`);
  }
  return lines.join('\n');
}

const block = (upper: boolean, lower: boolean): string => (upper ? (lower ? '█' : '▀') : lower ? '▄' : ' ');
