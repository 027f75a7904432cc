/**
 * Counts the commands that clients send to Redis by reading along (RESP arrays of bulk strings), by connection: each
 * says its name first.
 */
export interface CommandCount {
  tap(bytes: Buffer, connection: number): void;
  /** Commands since the last look, without those a connection opens with; by `<connection's name> <command>`. */
  taken(): ReadonlyMap<string, number>;
}

const OPENING = new Set(['HELLO', 'AUTH', 'CLIENT', 'INFO', 'SELECT', 'PING', 'TIME']);

export function commandCount(): CommandCount {
  const rests = new Map<number, Buffer>();
  const names = new Map<number, string>();
  let counts = new Map<string, number>();
  const saw = (args: readonly string[], connection: number): void => {
    const command = (args[0] ?? '').toUpperCase();
    const name = args.find((word) => word.startsWith('gatehouse-'));
    if (command === 'CLIENT' || command === 'HELLO') {
      if (name !== undefined) names.set(connection, name);
    }
    if (OPENING.has(command)) return;
    // A script with one key, the note that says until when gatehouse serves.
    const isMark = args[2] === '1' && args[3]?.endsWith(':{serving}:n') === true;
    const key = `${names.get(connection) ?? 'unnamed'} ${command}${isMark ? ' serving' : ''}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  };
  return {
    tap(bytes, connection) {
      let rest = Buffer.concat([rests.get(connection) ?? Buffer.alloc(0), bytes]);
      for (let read = oneCommand(rest); read !== undefined; read = oneCommand(rest)) {
        saw(read.words, connection);
        rest = rest.subarray(read.length);
      }
      rests.set(connection, rest);
    },
    taken() {
      const taken = counts;
      counts = new Map();
      return taken;
    },
  };
}

function oneCommand(bytes: Buffer): { readonly words: string[]; readonly length: number } | undefined {
  let at = 0;
  const numberAfter = (mark: string): number | undefined => {
    const end = bytes.indexOf('\r\n', at);
    if (end < 0) return undefined;
    const line = bytes.toString('latin1', at, end);
    if (!line.startsWith(mark)) throw new Error(`not a command: ${line.slice(0, 40)}`);
    at = end + 2;
    return Number(line.slice(1));
  };
  const many = numberAfter('*');
  if (many === undefined) return undefined;
  const args: string[] = [];
  for (let index = 0; index < many; index += 1) {
    const length = numberAfter('$');
    if (length === undefined || bytes.length < at + length + 2) return undefined;
    args.push(bytes.toString('latin1', at, at + length));
    at += length + 2;
  }
  return { words: args, length: at };
}

export const totalOf = (counts: ReadonlyMap<string, number>): number =>
  [...counts.values()].reduce((sum, one) => sum + one, 0);
