import { type PatternSegment, parsePattern } from '../../domain/access-rule.ts';
import { type Differences, getIgnoredDifferences, normalizePattern } from '../../domain/path-comparison.ts';
import type { ParsedSections } from '../cross-check.ts';

type Route = NonNullable<ParsedSections['routes'][number]>;

/** The patterns of earlier routes, as a tree of segments. */
interface PatternNode {
  readonly children: Map<string, PatternNode>;
  /** Indexes of the routes whose pattern ends here, in order. */
  readonly routes: number[];
}

const createNode = (): PatternNode => ({ children: new Map(), routes: [] });

const getKey = (segment: PatternSegment): string => (typeof segment === 'string' ? segment : `/${segment.literal}`);

/**
 * Finds for each route the first earlier one that matches all its requests. The first match wins, so such a route has no effect: most likely a
 * mistake. Returns pairs of indexes.
 */
export function findShadowedRoutes({
  routes,
  upstreams,
}: Pick<ParsedSections, 'routes' | 'upstreams'>): ReadonlyMap<number, number> {
  const found = new Map<number, number>();
  /** By the differences between paths that their upstreams ignore. */
  const trees = new Map<Differences, PatternNode>();
  for (const [index, route] of routes.entries()) {
    if (!route) continue;
    const pattern = parsePattern(route.path);
    if (!pattern.ok) continue;
    let first = Number.POSITIVE_INFINITY;
    for (const [ignored, tree] of trees)
      for (const candidates of listCovering(tree, normalizePattern(pattern.segments, ignored))) {
        const candidate = candidates.find((at) => at >= first || matchesRequestsOf(routes[at], route));
        first = Math.min(first, candidate ?? first);
      }
    if (Number.isFinite(first)) found.set(index, first);
    const paths = upstreams[route.upstream]?.paths;
    const ignored = paths === undefined ? 0 : getIgnoredDifferences(paths);
    let node = trees.get(ignored) ?? createNode();
    trees.set(ignored, node);
    for (const segment of normalizePattern(pattern.segments, ignored)) {
      const child = node.children.get(getKey(segment)) ?? createNode();
      node.children.set(getKey(segment), child);
      node = child;
    }
    node.routes.push(index);
  }
  return found;
}

/** The routes of each pattern that matches all paths that `pattern` matches. */
function listCovering(node: PatternNode, pattern: readonly PatternSegment[], at = 0): readonly number[][] {
  const lists = [node.children.get('**')?.routes ?? []];
  const segment = pattern[at];
  if (segment === undefined) lists.push(node.routes);
  else if (segment !== '**') {
    const keys = new Set([getKey(segment), ...(getKey(segment) === '/' ? [] : ['*'])]);
    for (const key of keys) {
      const child = node.children.get(key);
      if (child !== undefined) lists.push(...listCovering(child, pattern, at + 1));
    }
  }
  return lists;
}

/** Apart from the path. */
function matchesRequestsOf(earlier: Route | undefined, later: Route): boolean {
  if (earlier === undefined) return false;
  const { host, methods } = earlier;
  if (host !== undefined && host.toLowerCase() !== later.host?.toLowerCase()) return false;
  return methods === undefined || later.methods?.every((method) => methods.includes(method)) === true;
}
