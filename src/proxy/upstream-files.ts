import { X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createSecureContext, type SecureContext } from 'node:tls';
import type { UpstreamSettings } from './upstream-settings.ts';

/** What the files of an https upstream hold. */
export interface UpstreamMaterial {
  readonly ca?: string;
  readonly certificate?: string;
  readonly key?: string;
}

const FILES = ['ca', 'certificate', 'key'] as const;

/** Throws with the name of the setting when a file cannot be used: better now than at the first request. */
export function readMaterial(name: string, settings: UpstreamSettings): UpstreamMaterial {
  const material: { -readonly [K in keyof UpstreamMaterial]: string } = {};
  for (const kind of FILES) {
    const file = settings[kind];
    if (file === undefined) continue;
    const problem = (words: string): Error => new Error(`upstreams.${name}.${kind}: ${file} ${words}`);
    try {
      material[kind] = readFileSync(file, 'utf8');
    } catch {
      throw problem('does not exist or may not be read');
    }
    if (kind !== 'key' && !holdsCertificates(material[kind]))
      throw problem('is not a certificate in PEM form');
  }
  try {
    contextOf(material);
  } catch {
    throw new Error(`upstreams.${name}.key: is not the private key of upstreams.${name}.certificate`);
  }
  return material;
}

/** Undefined when there is nothing of our own in it, so that node's defaults hold. */
export function contextOf({ ca, certificate, key }: UpstreamMaterial): SecureContext | undefined {
  if (ca === undefined && certificate === undefined && key === undefined) return undefined;
  return createSecureContext({
    ...(ca !== undefined && { ca }),
    ...(certificate !== undefined && { cert: certificate }),
    ...(key !== undefined && { key }),
  });
}

function holdsCertificates(text: string): boolean {
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
