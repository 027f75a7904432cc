import { type LocalizedText, localize } from '../../domain/language.ts';
import type { Scope } from '../../domain/scope.ts';
import { sanitizeText } from './html.ts';
import { fillIn, type Messages } from './messages/languages.ts';

type PermissionTexts = ReadonlyMap<string, LocalizedText>;

/**
 * Describes a scope completely. Permissions with a configured text have a sentence of their own. Of the others of a resource,
 * those with a verb share one sentence, and those without a verb share another.
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
      if (permissions.size === 0) return [findText(key) ?? fillIn(messages.bareResource, name)];
      const sentences: string[] = [];
      const verbs = new Set<string>();
      const others: string[] = [];
      for (const permission of sortPermissions(permissions, messages)) {
        const text = findText(`${key}:${permission}`);
        const verb = findVerb(permission, messages);
        if (text !== undefined) sentences.push(text);
        else if (verb !== undefined) verbs.add(verb);
        else others.push(fillIn(messages.quote, sanitizeText(permission)));
      }
      if (verbs.size > 0) sentences.push(fillIn(messages.permissionsOf, messages.formatList([...verbs]), name));
      if (others.length > 0) sentences.push(fillIn(messages.otherPermissionsOf, others.join(', '), name));
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

function findVerb(permission: string, { permissions }: Messages): string | undefined {
  const verbs: Readonly<Record<string, string>> = permissions;
  return Object.hasOwn(verbs, permission) ? verbs[permission] : undefined;
}
