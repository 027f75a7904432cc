import { describe, expect, test } from 'vitest';
import { ProofMemory } from '../../src/tokens/proof-memory.ts';

const NOW = 1_900_000_000;
const WINDOW = 65;

describe('the memory of used DPoP proofs', () => {
  test('a proof is accepted once per key', () => {
    const memory = new ProofMemory();
    expect(memory.use('a', 'p1', NOW, NOW, WINDOW)).toBe(true);
    expect(memory.use('a', 'p1', NOW, NOW, WINDOW)).toBe(false);
    expect(memory.use('b', 'p1', NOW, NOW, WINDOW)).toBe(true);
  });

  test('a reserved proof is refused to others until it is released, and after it was used', () => {
    const memory = new ProofMemory();
    const reserve = (proofKey: string): boolean => memory.reserve(proofKey, 'p1', NOW, NOW, WINDOW);
    expect(reserve('a')).toBe(true);
    expect(reserve('a')).toBe(false);
    expect(reserve('b')).toBe(true);
    memory.release('a', 'p1');
    expect(reserve('a')).toBe(true);
    memory.useReserved('a', 'p1', NOW, NOW, WINDOW);
    expect(reserve('a')).toBe(false);
    expect(memory.use('a', 'p1', NOW, NOW, WINDOW)).toBe(false);
  });

  test('a proof is remembered until its window has passed, whenever the generations change', () => {
    for (let offset = 0; offset <= WINDOW; offset += 5) {
      const memory = new ProofMemory();
      memory.use('other', 'first', NOW, NOW, WINDOW);
      const at = NOW + offset;
      expect(memory.use('a', 'p1', at + 5, at, WINDOW)).toBe(true);
      expect(memory.use('a', 'p1', at + 5, at + WINDOW, WINDOW), `after ${offset} s`).toBe(false);
    }
  });

  test('proofs are forgotten after two windows', () => {
    const memory = new ProofMemory();
    for (let index = 0; index < 100; index += 1) memory.use('a', `p${index}`, NOW, NOW, WINDOW);
    memory.use('a', 'late', NOW + 2 * WINDOW, NOW + 2 * WINDOW, WINDOW);
    expect(memory.size).toBe(1);
  });

  test('a shorter lifetime after a reload forgets nothing that was valid', () => {
    const memory = new ProofMemory();
    memory.use('a', 'p1', NOW, NOW, WINDOW);
    memory.use('a', 'p2', NOW + 12, NOW + 12, 10);
    memory.use('a', 'p3', NOW + 24, NOW + 24, 10);
    expect(memory.use('a', 'p1', NOW, NOW + 25, WINDOW)).toBe(false);
  });

  test('a key with too many proofs loses its old ones, which stay refused, and no other key is affected', () => {
    const memory = new ProofMemory({ total: 1_000, perKey: 10 });
    memory.use('victim', 'v', NOW, NOW, WINDOW);
    for (let second = 0; second < 50; second += 1)
      expect(memory.use('flood', `p${second}`, NOW + second, NOW + second, WINDOW)).toBe(true);
    expect(memory.size).toBeLessThanOrEqual(11);
    for (let second = 0; second < 50; second += 1)
      expect(memory.use('flood', `p${second}`, NOW + second, NOW + 50, WINDOW), `p${second}`).toBe(false);
    expect(memory.use('victim', 'v', NOW, NOW + 50, WINDOW)).toBe(false);
    expect(memory.use('victim', 'another', NOW, NOW + 50, WINDOW)).toBe(true);
  });

  test('a key that exceeds its limit within a second is refused until the next one', () => {
    const memory = new ProofMemory({ total: 1_000, perKey: 10 });
    for (let index = 0; index < 10; index += 1) memory.use('flood', `p${index}`, NOW, NOW, WINDOW);
    expect(memory.use('flood', 'p10', NOW, NOW, WINDOW)).toBe(false);
    expect(memory.use('other', 'p10', NOW, NOW, WINDOW)).toBe(true);
    expect(memory.use('flood', 'p11', NOW + 1, NOW + 1, WINDOW)).toBe(true);
  });

  test('a full memory limits the keys with the most proofs, and stays bounded', () => {
    const memory = new ProofMemory({ total: 100, perKey: 100 });
    for (let index = 0; index < 100; index += 1) memory.use('flood', `p${index}`, NOW, NOW, WINDOW);
    for (let key = 0; key < 20; key += 1)
      expect(memory.use(`key${key}`, 'p', NOW, NOW, WINDOW), `key ${key}`).toBe(true);
    expect(memory.use('flood', 'one more', NOW, NOW, WINDOW)).toBe(false);
    for (let index = 0; index < 1_000; index += 1)
      memory.use(`key${index % 20}`, `q${index}`, NOW + index, NOW, WINDOW);
    expect(memory.size).toBeLessThanOrEqual(200);
  });

  test('more keys than the memory can hold are refused as overload, not as a fault of the client', () => {
    const memory = new ProofMemory({ total: 10, perKey: 10 });
    for (let key = 0; key < 10; key += 1) memory.use(`key${key}`, 'p', NOW, NOW, WINDOW);
    expect(() => memory.use('key10', 'p', NOW, NOW, WINDOW)).toThrow(/too many keys/);
    expect(memory.use('key9', 'q', NOW + 1, NOW, WINDOW)).toBe(true);
  });

  test('a full memory refuses the reservation of another key, but not the use of a reserved proof', () => {
    const memory = new ProofMemory({ total: 10, perKey: 10 });
    expect(memory.reserve('early', 'p', NOW, NOW, WINDOW)).toBe(true);
    for (let key = 0; key < 10; key += 1) memory.use(`key${key}`, 'p', NOW, NOW, WINDOW);
    expect(() => memory.reserve('late', 'p', NOW, NOW, WINDOW)).toThrow(/too many keys/);
    expect(memory.reserve('key9', 'q', NOW, NOW, WINDOW)).toBe(true);
    memory.useReserved('early', 'p', NOW, NOW, WINDOW);
    expect(memory.reserve('early', 'p', NOW, NOW, WINDOW)).toBe(false);
    const later = NOW + 2 * WINDOW;
    expect(memory.reserve('late', 'p', later, later, WINDOW)).toBe(true);
  });
});
