import type { Settings } from '../config/schema.ts';

type ServiceSettings = { readonly service: Pick<Settings['service'], 'paths'> };

/** What stands below the service path, in lower case; undefined for a path that is not the token service's. */
export function servicePaths({ service }: ServiceSettings): (path: string) => string | undefined {
  const prefixes = service.paths.map((path) => path.toLowerCase());
  return (given) => {
    const path = given.toLowerCase();
    for (const prefix of prefixes)
      if (path === prefix || path.startsWith(`${prefix}/`)) return path.slice(prefix.length);
    return undefined;
  };
}

/**
 * What stands after `/check`, as it was sent: for some gateways it is the path they ask about, which is to be judged
 * and neither refused nor repaired before.
 */
export function checkMatcher({ service }: ServiceSettings): (url: string) => string | undefined {
  const prefix = new RegExp(`^(?:${service.paths.join('|')})/check(?=[/?]|$)`, 'i');
  return (url) => {
    const [found] = prefix.exec(url) ?? [];
    return found === undefined ? undefined : url.slice(found.length);
  };
}
