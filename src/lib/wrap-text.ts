/** Wraps text, or words that must stay together, after a prefix; further lines are indented to its column. */
export function wrapText(
  prefix: string,
  text: string | readonly string[],
  columns: number,
  extraIndent = '',
): string[] {
  const words = typeof text === 'string' ? text.split(' ') : text;
  const indent = ' '.repeat(prefix.length) + extraIndent;
  const lines: string[] = [];
  let line = prefix;
  let isEmpty = true;
  for (const word of words) {
    if (!isEmpty && line.length + 1 + word.length > columns) {
      lines.push(line);
      line = indent;
      isEmpty = true;
    }
    line += isEmpty ? word : ` ${word}`;
    isEmpty = false;
  }
  return [...lines, line];
}
