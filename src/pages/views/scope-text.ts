import { type LocalizedText, localize } from '../../domain/language.ts';
import type { Scope } from '../../domain/scope.ts';
import { sanitizeText } from './html.ts';
import type { Messages } from './messages/english.ts';

type PermissionTexts = ReadonlyMap<string, LocalizedText>;

/**
 * Describes a scope completely. Permissions with a configured text have a sentence of their own; the other permissions of
 * a resource share one.
 */
export function describeScope(
  scope: Scope,
  messages: Messages,
  configuredTexts: PermissionTexts = new Map(),
): readonly string[] {
  const findText = (key: string): string | undefined => {
    const text = configuredTexts.get(key);
    return text && sanitizeText(localize(text, messages.language), 160);
  };
  return [...scope]
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .flatMap(([resource, permissions]) => {
      const key = resource.toLowerCase();
      const name = sanitizeText(resource.replaceAll('_', ' '));
      if (permissions.size === 0) return [findText(key) ?? messages.describeBareResource(name)];
      const sentences: string[] = [];
      const verbs = new Set<string>();
      for (const permission of sortPermissions(permissions, messages)) {
        const text = findText(`${key}:${permission}`);
        if (text === undefined) verbs.add(getVerb(permission, messages));
        else sentences.push(text);
      }
      if (verbs.size > 0) sentences.push(messages.describePermissions(messages.formatList([...verbs]), name));
      return sentences;
    })
    .map((sentence) => sentence.charAt(0).toUpperCase() + sentence.slice(1));
}

/** In the order of `messages.permissions`, such as see before change before delete. */
function sortPermissions(permissions: ReadonlySet<string>, messages: Messages): string[] {
  const known = Object.keys(messages.permissions).filter((permission) => permissions.has(permission));
  const unknown = [...permissions].filter((permission) => !Object.hasOwn(messages.permissions, permission));
  return [...known, ...unknown.toSorted()];
}

function getVerb(permission: string, { permissions, quote }: Messages): string {
  const verbs: Readonly<Record<string, string>> = permissions;
  const verb = Object.hasOwn(verbs, permission) ? verbs[permission] : undefined;
  return verb ?? quote(sanitizeText(permission));
}
