import { hash } from 'node:crypto';
import type { Epoch } from '../domain/grant.ts';
import { Fault } from '../ports/fault.ts';

interface ProofMemoryLimits {
  /** Proofs per generation before keys are limited to an equal share. */
  readonly total: number;
  /** Proofs of one key per generation. */
  readonly perKey: number;
}

/** The used proofs of one key. */
interface KeyProofs {
  /** Digests of `jti`, oldest first, with the time of the proof. */
  readonly proofs: Map<string, Epoch>;
  /** Proofs up to this time were dropped: all of them count as used. */
  droppedUntil: Epoch;
}

type Generation = Map<string, KeyProofs>;

const DEFAULT_LIMITS: ProofMemoryLimits = { total: 65_536, perKey: 16_384 };

/**
 * The DPoP proofs that were used (RFC 9449 §11.1), of this process. Bounded, and never forgets a proof that is still valid:
 * a key with too many proofs loses its oldest ones, and from then on all its proofs of that time are refused. Other keys are
 * not affected. Two generations, so that nothing has to be searched for expired entries.
 */
export class ProofMemory {
  readonly #limits: ProofMemoryLimits;
  #current: Generation = new Map();
  #previous: Generation = new Map();
  /** Proofs of requests that have not been completed. */
  readonly #reserved = new Set<string>();
  #count = 0;
  #startedAt: Epoch = 0;
  /** Seconds in which a proof can be used: the longest that any configuration of this process has had. */
  #window = 0;

  constructor(limits: ProofMemoryLimits = DEFAULT_LIMITS) {
    this.#limits = limits;
  }

  /** The number of recorded proofs. */
  get size(): number {
    let size = 0;
    for (const generation of [this.#current, this.#previous])
      for (const { proofs } of generation.values()) size += proofs.size;
    return size;
  }

  /** Returns false if the proof was used before. Throws a `Fault` if there is no room for another key. */
  use(proofKey: string, proofId: string, issuedAt: Epoch, now: Epoch, window: number): boolean {
    this.#rotate(now, window);
    if (this.has(proofKey, proofId, issuedAt)) return false;
    this.#checkRoom(proofKey, window);
    return this.#record(proofKey, proofId, issuedAt);
  }

  /**
   * Returns false if the proof was used before, or by a request that has not been completed. Otherwise no other request
   * can use it until `release` or `useReserved`. Throws a `Fault` if there is no room for another key.
   */
  reserve(proofKey: string, proofId: string, issuedAt: Epoch, now: Epoch, window: number): boolean {
    this.#rotate(now, window);
    const id = reservationId(proofKey, proofId);
    if (this.#reserved.has(id) || this.has(proofKey, proofId, issuedAt)) return false;
    this.#checkRoom(proofKey, window);
    this.#reserved.add(id);
    return true;
  }

  /** The request failed: the proof can be used again. */
  release(proofKey: string, proofId: string): void {
    this.#reserved.delete(reservationId(proofKey, proofId));
  }

  /** The request succeeded, so the proof is recorded even if the memory has become full since it was reserved. */
  useReserved(proofKey: string, proofId: string, issuedAt: Epoch, now: Epoch, window: number): void {
    this.#rotate(now, window);
    this.release(proofKey, proofId);
    this.#record(proofKey, proofId, issuedAt);
  }

  has(proofKey: string, proofId: string, issuedAt: Epoch): boolean {
    const id = digest(proofId);
    const isUsed = (entry: KeyProofs | undefined): boolean =>
      entry !== undefined && (issuedAt <= entry.droppedUntil || entry.proofs.has(id));
    return isUsed(this.#current.get(proofKey)) || isUsed(this.#previous.get(proofKey));
  }

  #checkRoom(proofKey: string, window: number): void {
    if (this.#current.has(proofKey) || this.#current.size < this.#limits.total) return;
    throw new Fault('overloaded', 'too many keys of DPoP proofs', { retryAfter: Math.ceil(window) });
  }

  /** Returns false if proofs of this time were dropped. */
  #record(proofKey: string, proofId: string, issuedAt: Epoch): boolean {
    const entry = this.#current.get(proofKey) ?? { proofs: new Map<string, Epoch>(), droppedUntil: 0 };
    this.#current.set(proofKey, entry);
    if (entry.proofs.size >= this.#getLimit()) this.#drop(entry);
    // Dropping may have included the time of this proof.
    if (issuedAt <= entry.droppedUntil) return false;
    entry.proofs.set(digest(proofId), issuedAt);
    this.#count += 1;
    return true;
  }

  /** Beyond `total`, a key below its equal share may still grow to it: there are never more than twice as many. */
  #getLimit(): number {
    const { total, perKey } = this.#limits;
    return this.#count < total ? perKey : Math.min(perKey, Math.max(1, Math.floor(total / this.#current.size)));
  }

  #drop(entry: KeyProofs): void {
    let left = Math.ceil(entry.proofs.size / 2);
    for (const [id, issuedAt] of entry.proofs) {
      if (left === 0) break;
      left -= 1;
      entry.proofs.delete(id);
      this.#count -= 1;
      entry.droppedUntil = Math.max(entry.droppedUntil, issuedAt);
    }
  }

  #rotate(now: Epoch, window: number): void {
    this.#window = Math.max(this.#window, window);
    if (now < this.#startedAt + this.#window) return;
    // After two windows, nothing of the current generation is valid either.
    this.#previous = now < this.#startedAt + 2 * this.#window ? this.#current : new Map();
    this.#current = new Map();
    this.#count = 0;
    this.#startedAt = now;
  }
}

/** 128 bits. */
const digest = (proofId: string): string => hash('sha256', proofId, 'base64url').slice(0, 22);

const reservationId = (proofKey: string, proofId: string): string => `${proofKey} ${digest(proofId)}`;
