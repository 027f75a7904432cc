import { X509Certificate } from 'node:crypto';
import { createSecureContext, type SecureContext } from 'node:tls';
import { readSettingFile } from '../../lib/read-file.ts';
import type { UpstreamSettings } from './targets.ts';

/** The contents of an https upstream's files. */
export interface UpstreamTlsFiles {
  readonly ca?: string;
  readonly certificate?: string;
  readonly key?: string;
}

const FILE_SETTINGS = ['ca', 'certificate', 'key'] as const;

/** Throws an error that names the setting when a file cannot be used. */
export function readUpstreamTlsFiles(name: string, settings: UpstreamSettings): UpstreamTlsFiles {
  const contents: { -readonly [K in keyof UpstreamTlsFiles]: string } = {};
  for (const kind of FILE_SETTINGS) {
    const file = settings[kind];
    if (file === undefined) continue;
    const setting = `upstreams.${name}.${kind}`;
    contents[kind] = readSettingFile(setting, file);
    if (kind !== 'key' && !containsOnlyCertificates(contents[kind]))
      throw new Error(`${setting}: ${file} is not a PEM certificate`);
  }
  try {
    createUpstreamSecureContext(contents);
  } catch {
    throw new Error(`upstreams.${name}.key: is not the private key of upstreams.${name}.certificate`);
  }
  return contents;
}

/** As options of Node. Empty without any file: Node's defaults apply. */
export const toTlsOptions = ({ ca, certificate, key }: UpstreamTlsFiles) => ({
  ...(ca !== undefined && { ca }),
  ...(certificate !== undefined && { cert: certificate }),
  ...(key !== undefined && { key }),
});

/** Undefined without any file. */
export function createUpstreamSecureContext(files: UpstreamTlsFiles): SecureContext | undefined {
  const options = toTlsOptions(files);
  return Object.keys(options).length === 0 ? undefined : createSecureContext(options);
}

function containsOnlyCertificates(text: string): boolean {
  const blocks = text.match(/-----BEGIN CERTIFICATE-----[\s\S]*?-----END CERTIFICATE-----/g) ?? [];
  return blocks.length > 0 && blocks.every(isCertificate);
}

function isCertificate(pem: string): boolean {
  try {
    return new X509Certificate(pem).raw.length > 0;
  } catch {
    return false;
  }
}
