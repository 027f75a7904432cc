import { encodeQR } from 'qr';

const BLACK_ON_WHITE = '\u001b[30;107m';
const RESET = '\u001b[0m';
const QUIET_ZONE = 2;

/** Two rows of modules per line of half blocks, always dark on light. */
export function renderTerminalQr(text: string): string {
  const rows = encodeQR(text, 'raw', { ecc: 'low', border: QUIET_ZONE });
  const lines: string[] = [];
  for (let y = 0; y < rows.length; y += 2) {
    const [upper = [], lower = []] = [rows[y], rows[y + 1]];
    const line = upper.map((dark, x) => renderBlock(dark, lower[x] === true)).join('');
    lines.push(`${BLACK_ON_WHITE}${line}${RESET}`);
  }
  return lines.join('\n');
}

const renderBlock = (upper: boolean, lower: boolean): string => (upper ? (lower ? '█' : '▀') : lower ? '▄' : ' ');
