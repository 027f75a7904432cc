import { readFileSync, statSync } from 'node:fs';
import { listUsedFiles } from '../config/file-settings.ts';
import type { Settings } from '../config/schema.ts';
import { formatPath } from '../config/setting-path.ts';
import type { Epoch } from '../domain/grant.ts';
import { parseCertificates } from '../x509/certificate-files.ts';
import {
  describeValidity,
  isValidAt,
  mergeValidity,
  readValidity,
  type ValidityMessages,
  type ValidityPeriod,
} from '../x509/validity.ts';

/** Validity of the certificates of the admin listener and of outgoing connections. Other problems of the files are reported where they are used. */
export function checkTlsFileValidity(settings: Settings, now: Epoch): ValidityMessages {
  // Many upstreams have the same CAs.
  const periodsByFile = new Map<string, readonly ValidityPeriod[]>();
  return mergeValidity(
    listUsedFiles(settings).flatMap(({ path, file }) => {
      const setting = formatPath(path);
      const consequence = CONSEQUENCES.find(([pattern]) => pattern.test(setting))?.[1];
      if (consequence === undefined) return [];
      const periods = periodsByFile.get(file) ?? readPeriods(file, now);
      periodsByFile.set(file, periods);
      return describeValidity(periods, now, {
        subject: `${setting}: ${file}`,
        expired: `${consequence}: replace it`,
        early: `${consequence} until then: check the clock`,
      });
    }),
  );
}

/** A file with several certificates counts with the one that is valid longest: a bundle of CAs always has some that expire soon. */
function readPeriods(file: string, now: Epoch): readonly ValidityPeriod[] {
  try {
    // A pipe can be read only once.
    if (!statSync(file).isFile()) return [];
    const periods = parseCertificates(readFileSync(file)).map(readValidity);
    const [longest] = periods
      .filter((period) => isValidAt(period, now))
      .toSorted((one, other) => other.notAfter - one.notAfter);
    return longest === undefined ? periods : [longest];
  } catch {
    return [];
  }
}

/** The consequence of an expired certificate, by the end of the setting's name. The certificates of `listen.tls` are checked with the listener. */
const CONSEQUENCES: readonly (readonly [RegExp, string | undefined])[] = [
  [/^listen\./, undefined],
  [/^admin\.tls\.certificate$/, 'clients of the admin listener reject connections'],
  [/^admin\.tls\.clientCa$/, 'operator certificates of this CA are refused'],
  [/(?:\.ca|Ca)$/, 'connections to servers with certificates of this CA fail'],
  [/\.certificate$/, 'the server may refuse connections'],
];
