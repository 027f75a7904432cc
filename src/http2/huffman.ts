/**
 * The Huffman code of RFC 7541 Appendix B. The code is canonical, so the lengths determine it: one base-36 digit for each
 * byte value, and one for EOS.
 */
const LENGTHS =
  'dnsssssssoussussssssssusssssssss6aacd68baa8b8666555666666678f6cad67777777777777777777777878djde6' +
  'f56565666577666567655677777fbedskmkkmmmnmnnnnnonoomnonnnnlmnmnnomlkmmnnlnmmolmnnllmlnmnnkmmmnmmn' +
  'qqkjmnmpqqqrrqopjlqrrqrollqqsrrrkoklmllnmmppooqnqrqqrrrrrsrrrrrqu';
const EOS = 256;
const NIBBLES = 16;

/** An entry of the table: the next state, the decoded byte shifted by 8, and these flags. */
const EMITS = 1 << 16;
const FAILS = 1 << 17;
const STATE = 0xff;

interface Node {
  readonly children: [Node | number | undefined, Node | number | undefined];
  readonly state: number;
}

/** The decoder reads four bits at a time. Its states are the inner nodes of the code tree; there are exactly 256. */
const { transitions, isAccepting } = buildTable();

function buildTree(): Node[] {
  const nodes: Node[] = [{ children: [undefined, undefined], state: 0 }];
  const lengths = Array.from(LENGTHS, (digit) => Number.parseInt(digit, 36));
  const symbols = [...lengths.keys()].sort((a, b) => (lengths[a] as number) - (lengths[b] as number) || a - b);
  let code = 0;
  let codeLength = 0;
  for (const symbol of symbols) {
    const length = lengths[symbol] as number;
    code <<= length - codeLength;
    codeLength = length;
    let node = nodes[0] as Node;
    for (let bit = length - 1; bit > 0; bit -= 1) {
      const side = (code >>> bit) & 1;
      let child = node.children[side];
      if (child === undefined) {
        child = { children: [undefined, undefined], state: nodes.length };
        nodes.push(child);
        node.children[side] = child;
      }
      node = child as Node;
    }
    node.children[code & 1] = symbol;
    code += 1;
  }
  return nodes;
}

function buildTable(): { readonly transitions: Uint32Array; readonly isAccepting: Uint8Array } {
  const nodes = buildTree();
  const root = nodes[0] as Node;
  const table = new Uint32Array(nodes.length * NIBBLES);
  for (const start of nodes)
    for (let nibble = 0; nibble < NIBBLES; nibble += 1) {
      let node = start;
      let entry = 0;
      for (let bit = 3; bit >= 0; bit -= 1) {
        const child = node.children[(nibble >> bit) & 1];
        if (child === EOS) entry |= FAILS;
        else if (typeof child === 'number') entry |= EMITS | (child << 8);
        node = typeof child === 'number' ? root : (child as Node);
      }
      table[start.state * NIBBLES + nibble] = entry | node.state;
    }
  // RFC 7541 §5.2: padding is at most seven bits, the most significant bits of EOS, which are all ones.
  const accepting = new Uint8Array(nodes.length);
  for (let node = root, bits = 0; bits <= 7; bits += 1) {
    accepting[node.state] = 1;
    node = node.children[1] as Node;
  }
  return { transitions: table, isAccepting: accepting };
}

/** The shortest code has five bits. */
const MAX_INPUT = 32_768;
const output = Buffer.allocUnsafeSlow(Math.ceil((MAX_INPUT * 8) / 5));

/** Returns undefined if the encoding is not valid. */
export function decodeHuffman(bytes: Buffer, start: number, end: number): string | undefined {
  if (end - start > MAX_INPUT) return undefined;
  let state = 0;
  let length = 0;
  for (let at = start; at < end; at += 1) {
    const byte = bytes[at] as number;
    const high = transitions[(state << 4) | (byte >> 4)] as number;
    if ((high & EMITS) !== 0) output[length++] = (high >> 8) & 0xff;
    const low = transitions[((high & STATE) << 4) | (byte & 0xf)] as number;
    if ((low & EMITS) !== 0) output[length++] = (low >> 8) & 0xff;
    if (((high | low) & FAILS) !== 0) return undefined;
    state = low & STATE;
  }
  return isAccepting[state] === 1 ? output.toString('latin1', 0, length) : undefined;
}
