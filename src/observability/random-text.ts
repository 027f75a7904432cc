import { randomFillSync } from 'node:crypto';

const pool = Buffer.alloc(6_144);
let poolAt = pool.length;

/** Random bytes, spelled out; drawn by the page, which costs a fraction. */
export function randomText(bytes: number, spelling: 'hex' | 'base64url'): string {
  if (poolAt + bytes > pool.length) {
    randomFillSync(pool);
    poolAt = 0;
  }
  poolAt += bytes;
  return pool.toString(spelling, poolAt - bytes, poolAt);
}

/** Texts of one length, spelled several at a time and cut off one by one. Few: one that somebody keeps keeps all of them. */
export function oneByOne(length: number, spell: () => string): () => string {
  let spelled = '';
  let at = 0;
  return () => {
    if (at === spelled.length) {
      spelled = spell();
      at = 0;
    }
    at += length;
    return spelled.slice(at - length, at);
  };
}
