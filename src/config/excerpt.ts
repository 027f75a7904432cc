import { printable } from '../lib/printable.ts';
import { redactText } from '../lib/redact.ts';
import { listAllNames, listAllSecretNames } from './known-settings.ts';

/** Longer lines are not shown. */
const MAX_LENGTH = 400;

/** A line of the file for a message, without secrets; undefined if it may be part of one. */
export function createExcerpt(content: string | undefined): string | undefined {
  if (content === undefined || content.length > MAX_LENGTH || !beginsSetting(content)) return undefined;
  const visible = content.replace(getSecretPattern(), '$1…').replace(/(rediss?:\/\/).*/i, '$1…');
  return printable(redactText(visible).replaceAll('\t', '→').trimEnd());
}

/** Other lines may continue a secret of the line before. */
function beginsSetting(content: string): boolean {
  if (/^\s*(?:-(?:\s|$)|---|[[\]{}%]|(["']?)[A-Za-z_][\w.-]*\1\s*:(?:\s|$))/.test(content)) return true;
  const name = /^\s*([A-Za-z][\w-]*)\s*(?:[:=]|#|$)/.exec(content)?.[1];
  return name !== undefined && listAllNames().has(name);
}

let secretPattern: RegExp | undefined;

function getSecretPattern(): RegExp {
  if (secretPattern !== undefined) return secretPattern;
  // URLs may contain a password, which `redactText` removes; a JWK set contains public keys.
  const names = listAllSecretNames().difference(new Set(['url', 'jwks']));
  secretPattern = new RegExp(`(\\b(?:${[...names].join('|')})["']?\\s*[:=]\\s*).*`);
  return secretPattern;
}
