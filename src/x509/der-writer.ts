/** One DER element: tag, minimal length, content. */
export function writeElement(tag: number, ...parts: readonly Uint8Array[]): Buffer {
  const content = Buffer.concat(parts);
  if (content.length < 0x80) return Buffer.concat([Buffer.from([tag, content.length]), content]);
  const length: number[] = [];
  for (let rest = content.length; rest > 0; rest = Math.floor(rest / 256)) length.unshift(rest % 256);
  return Buffer.concat([Buffer.from([tag, 0x80 | length.length, ...length]), content]);
}
