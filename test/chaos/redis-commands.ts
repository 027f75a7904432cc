/**
 * Counts the commands that clients send to Redis by parsing their bytes (RESP arrays of bulk strings), by connection:
 * each connection sends its name first.
 */
export interface CommandCounter {
  tap(bytes: Buffer, connection: number): void;
  /** Returns and resets the counts by `<connection name> <command>`, without the commands that open a connection. */
  takeCounts(): ReadonlyMap<string, number>;
}

const OPENING = new Set(['HELLO', 'AUTH', 'CLIENT', 'INFO', 'SELECT', 'PING', 'TIME']);

export function createCommandCounter(): CommandCounter {
  const rests = new Map<number, Buffer>();
  const names = new Map<number, string>();
  let counts = new Map<string, number>();
  const countCommand = (args: readonly string[], connection: number): void => {
    const command = (args[0] ?? '').toUpperCase();
    const name = args.find((word) => word.startsWith('gatehouse-'));
    if (command === 'CLIENT' || command === 'HELLO') {
      if (name !== undefined) names.set(connection, name);
    }
    if (OPENING.has(command)) return;
    // A script whose only key is the note about the serving time.
    const isServingNote = args[2] === '1' && args[3]?.endsWith(':{serving}:n') === true;
    const key = `${names.get(connection) ?? 'unnamed'} ${command}${isServingNote ? ' serving' : ''}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  };
  return {
    tap(bytes, connection) {
      let rest = Buffer.concat([rests.get(connection) ?? Buffer.alloc(0), bytes]);
      for (let parsed = parseCommand(rest); parsed !== undefined; parsed = parseCommand(rest)) {
        countCommand(parsed.words, connection);
        rest = rest.subarray(parsed.length);
      }
      rests.set(connection, rest);
    },
    takeCounts() {
      const current = counts;
      counts = new Map();
      return current;
    },
  };
}

function parseCommand(bytes: Buffer): { readonly words: string[]; readonly length: number } | undefined {
  let at = 0;
  const readNumber = (mark: string): number | undefined => {
    const end = bytes.indexOf('\r\n', at);
    if (end < 0) return undefined;
    const line = bytes.toString('latin1', at, end);
    if (!line.startsWith(mark)) throw new Error(`not a command: ${line.slice(0, 40)}`);
    at = end + 2;
    return Number(line.slice(1));
  };
  const argCount = readNumber('*');
  if (argCount === undefined) return undefined;
  const args: string[] = [];
  for (let index = 0; index < argCount; index += 1) {
    const length = readNumber('$');
    if (length === undefined || bytes.length < at + length + 2) return undefined;
    args.push(bytes.toString('latin1', at, at + length));
    at += length + 2;
  }
  return { words: args, length: at };
}

export const sumCounts = (counts: ReadonlyMap<string, number>): number =>
  [...counts.values()].reduce((sum, count) => sum + count, 0);
