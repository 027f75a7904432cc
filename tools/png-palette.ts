import { crc32, deflateSync, inflateSync } from 'node:zlib';

const SIGNATURE = Buffer.from('89504e470d0a1a0a', 'hex');
/** Enough for the edges of letters. */
const MAX_COLOURS = 128;

interface Chunk {
  readonly type: string;
  readonly data: Buffer;
}

function readChunks(png: Buffer): Chunk[] {
  if (!png.subarray(0, 8).equals(SIGNATURE)) throw new Error('not a PNG file');
  const chunks: Chunk[] = [];
  for (let at = 8; at < png.length; ) {
    const length = png.readUInt32BE(at);
    chunks.push({
      type: png.toString('latin1', at + 4, at + 8),
      data: png.subarray(at + 8, at + 8 + length),
    });
    at += length + 12;
  }
  return chunks;
}

function writeChunk({ type, data }: Chunk): Buffer {
  const chunk = Buffer.alloc(data.length + 12);
  chunk.writeUInt32BE(data.length, 0);
  chunk.write(type, 4, 'latin1');
  data.copy(chunk, 8);
  chunk.writeUInt32BE(crc32(chunk.subarray(4, data.length + 8)), data.length + 8);
  return chunk;
}

function paeth(left: number, up: number, corner: number): number {
  const toLeft = Math.abs(up - corner);
  const toUp = Math.abs(left - corner);
  const toCorner = Math.abs(left + up - 2 * corner);
  if (toLeft <= toUp && toLeft <= toCorner) return left;
  return toUp <= toCorner ? up : corner;
}

function predict(filter: number, left: number, up: number, corner: number): number {
  switch (filter) {
    case 1:
      return left;
    case 2:
      return up;
    case 3:
      return (left + up) >> 1;
    case 4:
      return paeth(left, up, corner);
    default:
      return 0;
  }
}

/** PNG specification §9: undoes the filters of the scanlines. */
function unfilter(filtered: Buffer, rowBytes: number, pixelBytes: number): Buffer {
  const rows = filtered.length / (rowBytes + 1);
  const pixels = Buffer.alloc(rows * rowBytes);
  for (let row = 0; row < rows; row += 1) {
    const filter = filtered[row * (rowBytes + 1)] ?? 0;
    for (let column = 0; column < rowBytes; column += 1) {
      const at = row * rowBytes + column;
      const left = column < pixelBytes ? 0 : (pixels[at - pixelBytes] ?? 0);
      const up = row === 0 ? 0 : (pixels[at - rowBytes] ?? 0);
      const corner = row === 0 || column < pixelBytes ? 0 : (pixels[at - rowBytes - pixelBytes] ?? 0);
      pixels[at] = (filtered[row * (rowBytes + 1) + 1 + column] ?? 0) + predict(filter, left, up, corner);
    }
  }
  return pixels;
}

/** The colours in the order of their frequency. */
function countColours(colours: Uint32Array): number[] {
  const counts = new Map<number, number>();
  for (const colour of colours) counts.set(colour, (counts.get(colour) ?? 0) + 1);
  return [...counts].sort(([, one], [, other]) => other - one).map(([colour]) => colour);
}

const distance = (one: number, other: number): number =>
  [16, 8, 0].reduce((sum, shift) => sum + (((one >> shift) & 255) - ((other >> shift) & 255)) ** 2, 0);

/** Converts a PNG of Chromium (8 bits per channel, no transparency) to a palette of at most 128 colours. */
export function reduceColours(png: Buffer): Buffer {
  const chunks = readChunks(png);
  const header = chunks[0]?.data ?? Buffer.alloc(0);
  const [width, height, depth, type] = [header.readUInt32BE(0), header.readUInt32BE(4), header[8], header[9]] as const;
  if (depth !== 8 || (type !== 2 && type !== 6) || header[12] !== 0) throw new Error('unexpected PNG format');
  const pixelBytes = type === 2 ? 3 : 4;
  const compressed = Buffer.concat(chunks.filter((chunk) => chunk.type === 'IDAT').map(({ data }) => data));
  const pixels = unfilter(inflateSync(compressed), width * pixelBytes, pixelBytes);
  const colours = Uint32Array.from({ length: width * height }, (_, pixel) => pixels.readUIntBE(pixel * pixelBytes, 3));

  const palette = countColours(colours);
  const rare = palette.splice(MAX_COLOURS);
  const indexes = new Map(palette.map((colour, index) => [colour, index]));
  for (const colour of rare) {
    const nearest = palette.reduce((best, candidate) =>
      distance(colour, candidate) < distance(colour, best) ? candidate : best,
    );
    indexes.set(colour, indexes.get(nearest) ?? 0);
  }

  // Without filters: they do not help for indexes.
  const rows = Buffer.alloc(height * (width + 1));
  for (let row = 0; row < height; row += 1)
    for (let column = 0; column < width; column += 1)
      rows[row * (width + 1) + 1 + column] = indexes.get(colours[row * width + column] ?? 0) ?? 0;
  const newHeader = Buffer.from(header);
  newHeader[9] = 3;
  const table = Buffer.alloc(palette.length * 3);
  for (const [index, colour] of palette.entries()) table.writeUIntBE(colour, index * 3, 3);
  return Buffer.concat([
    SIGNATURE,
    writeChunk({ type: 'IHDR', data: newHeader }),
    writeChunk({ type: 'PLTE', data: table }),
    writeChunk({ type: 'IDAT', data: deflateSync(rows, { level: 9 }) }),
    writeChunk({ type: 'IEND', data: Buffer.alloc(0) }),
  ]);
}
