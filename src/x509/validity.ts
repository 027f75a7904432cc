import type { X509Certificate } from 'node:crypto';
import type { Epoch } from '../domain/grant.ts';
import { largest, smallest } from '../lib/extremes.ts';

export interface ValidityPeriod {
  readonly notBefore: Epoch;
  readonly notAfter: Epoch;
}

export interface ValidityMessages {
  /** None of the certificates is valid now. */
  readonly expired: readonly string[];
  readonly warnings: readonly string[];
}

interface ValidityTexts {
  /** `<setting>: <file>`, or the file. */
  readonly subject: string;
  /** The consequence, and what to do. */
  readonly expired: string;
  /** As `expired`, for a certificate that is not valid yet. */
  readonly early: string;
}

const EXPIRY_WARNING_SECONDS = 30 * 86_400;

export const readValidity = ({ validFromDate, validToDate }: X509Certificate): ValidityPeriod => ({
  notBefore: validFromDate.getTime() / 1_000,
  notAfter: validToDate.getTime() / 1_000,
});

export const isValidAt = ({ notBefore, notAfter }: ValidityPeriod, now: Epoch): boolean =>
  now >= notBefore && now <= notAfter;

/** Messages about the certificates of one file, of which one must be valid: a CA that changes its key has two. */
export function describeValidity(
  periods: readonly ValidityPeriod[],
  now: Epoch,
  { subject, expired, early }: ValidityTexts,
): ValidityMessages {
  if (periods.length === 0) return { expired: [], warnings: [] };
  const valid = periods.filter((period) => isValidAt(period, now));
  if (valid.length > 0) {
    const outdated = periods.filter(({ notAfter }) => now > notAfter);
    const ending = valid.filter(({ notAfter }) => notAfter - now < EXPIRY_WARNING_SECONDS);
    const warnings = [
      ...outdated.map(
        (one) => `${subject} also contains a certificate that expired on ${formatTime(one.notAfter)}; remove it`,
      ),
      ...ending.map(
        (one) => `${subject} expires on ${formatTime(one.notAfter)}; renew it before then and replace the file`,
      ),
    ];
    return { expired: [], warnings };
  }
  const next = periods.filter(({ notBefore }) => now < notBefore);
  if (next.length > 0) {
    const first = smallest(next.map(({ notBefore }) => notBefore));
    return { expired: [`${subject} is not valid before ${formatTime(first)}; ${early}`], warnings: [] };
  }
  const last = largest(periods.map(({ notAfter }) => notAfter));
  return { expired: [`${subject} expired on ${formatTime(last)}; ${expired}`], warnings: [] };
}

export const mergeValidity = (all: readonly ValidityMessages[]): ValidityMessages => ({
  expired: all.flatMap(({ expired }) => expired),
  warnings: all.flatMap(({ warnings }) => warnings),
});

const formatTime = (time: Epoch): string => new Date(time * 1_000).toISOString();
