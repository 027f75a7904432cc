import { timingSafeEqual } from 'node:crypto';

/** Compares secrets: the time does not depend on their contents, only on their lengths. */
export function isEqualConstantTime(a: string, b: string): boolean {
  const [one, other] = [Buffer.from(a), Buffer.from(b)];
  return one.length === other.length && timingSafeEqual(one, other);
}
