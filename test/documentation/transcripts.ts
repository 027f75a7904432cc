/** A command in a transcript, with the output that is shown for it. */
export interface Exchange {
  readonly command: string;
  readonly output: string;
}

/** Splits a transcript into commands (after `$ `, continued after a backslash) and their output. */
export function parseTranscript(transcript: string): Exchange[] {
  const exchanges: { command: string; output: string }[] = [];
  for (const line of transcript.split(/(?<!\\)\n/)) {
    if (line.startsWith('$ ')) exchanges.push({ command: line.slice(2), output: '' });
    else {
      const last = exchanges.at(-1);
      if (last !== undefined && line !== '') last.output += `${line}\n`;
    }
  }
  return exchanges;
}

/** `…` matches anything within a line; a line that contains nothing else matches any number of lines. */
const toSource = (expected: string): string =>
  expected
    .split(/^…\n/m)
    .map((part) =>
      part
        .split('…')
        .map((text) => RegExp.escape(text))
        .join('.*'),
    )
    .join('(?:.*\\n)*?');

/** Matches the complete output of a command. */
export const toPattern = (expected: string): RegExp => new RegExp(`^${toSource(expected)}$`);

/** Matches output that a running program has written so far: the expected lines may follow others, and others may follow. */
export const toPartialPattern = (expected: string): RegExp => new RegExp(`^${toSource(expected)}`, 'm');
