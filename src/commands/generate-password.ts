import { randomInt } from 'node:crypto';

const LETTERS = 'bcdfghjkmnpqrstvwxz';

/** Twelve letters without look-alikes: about 50 bits, and easy to type. */
export function generatePassword(): string {
  const letters = Array.from({ length: 12 }, () => LETTERS[randomInt(LETTERS.length)]).join('');
  return (letters.match(/.{4}/g) ?? []).join('-');
}
