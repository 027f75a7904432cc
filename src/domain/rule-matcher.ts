import { type AccessRule, isAtLeastAsStrict, type PatternSegment } from './access-rule.ts';
import {
  ALL_DIFFERENCES,
  type Differences,
  foldCase,
  getIgnoredDifferences,
  getPossiblyIgnoredDifferences,
  isPlainPath,
  isPlainPattern,
  LETTER_CASE,
  normalizePath,
  normalizePattern,
  patternCovers,
  patternMatches,
  patternsOverlap,
  stripTrailingSlash,
  TRAILING_SLASH,
  UNKNOWN_COMPARISON,
} from './path-comparison.ts';
import type { RequestTarget } from './request-target.ts';

export interface MatchInput {
  readonly method: string;
  /** As in the Host field; the port is ignored. */
  readonly host: string;
  readonly target: Pick<RequestTarget, 'segments' | 'encodedSlash'>;
}

/**
 * Why a rule does not apply to a request. `equivalent_path`: the path differs from the rule's only in letter case or by a
 * trailing slash. `ambiguous_path`: an upstream may read the path as one that another rule restricts.
 */
export type Mismatch = 'path' | 'host' | 'method' | 'encoded_slash' | 'equivalent_path' | 'ambiguous_path';

export interface TraceEntry {
  readonly rule: AccessRule;
  /** Undefined for the rule that matched. */
  readonly mismatch: Mismatch | undefined;
}

/** Requests that match `rule` are refused if their path is another spelling of one that `stricter` matches. */
interface PathConflict {
  readonly rule: AccessRule;
  readonly stricter: AccessRule;
}

interface IndexedRule {
  readonly index: number;
  readonly rule: AccessRule;
  readonly host: string | undefined;
  /** Differences that its upstream ignores: the rule matches all spellings. */
  readonly ignores: Differences;
  /** Its pattern, normalized by each set of differences. */
  readonly patterns: readonly (readonly PatternSegment[])[];
  stricterRules: StricterRules | undefined;
}

/** Rules that require more than one rule, and match other spellings of its paths. */
interface StricterRules {
  readonly rules: ReadonlySet<IndexedRule>;
  /** No pattern has another spelling, so that a plain path matches them as sent or not at all. */
  readonly plain: boolean;
  /** All rules, normalized by the differences that the upstream may ignore. */
  readonly trees: readonly RuleTree[];
}

/** Rules by host, normalized by some differences. */
interface RuleTree {
  readonly ignores: Differences;
  readonly anyHost: TreeNode;
  readonly byHost: Map<string, TreeNode>;
}

interface TreeNode {
  /** Index of the first rule at or below this node. */
  minIndex: number;
  readonly literal: Map<string, TreeNode>;
  wildcard: TreeNode | undefined;
  /** Rules whose pattern ends here, and those that end in `/**` here; both in order. */
  readonly exact: IndexedRule[];
  readonly catchAll: IndexedRule[];
}

const createNode = (index: number): TreeNode => ({
  minIndex: index,
  literal: new Map(),
  wildcard: undefined,
  exact: [],
  catchAll: [],
});

/** The host name in a Host field: without port and trailing dot, lower case. */
export function normalizeHost(host: string): string {
  const end = host.startsWith('[') ? host.indexOf(']') + 1 : host.indexOf(':');
  const name = (end > 0 ? host.slice(0, end) : host).toLowerCase();
  return name.endsWith('.') ? name.slice(0, -1) : name;
}

export const compileRules = (rules: readonly AccessRule[]): CompiledRules => new CompiledRules(rules);

/**
 * First match wins. The cost depends on the length of the path, not on the number of rules: the rules are trees of segments,
 * one for each host and one for all hosts, whose nodes know their first rule.
 */
export class CompiledRules {
  readonly rules: readonly AccessRule[];
  /** Whether some rule allows `%2F`. */
  readonly encodedSlash: boolean;
  /** The host names in rules, lower case. */
  readonly hosts: ReadonlySet<string>;
  /** Rules that match other spellings of paths for which another rule requires more. */
  readonly conflicts: readonly PathConflict[];
  readonly #indexedRules: readonly IndexedRule[];
  readonly #trees: readonly RuleTree[];
  readonly #getNormalizedTrees: (possiblyIgnored: Differences) => readonly RuleTree[];

  constructor(rules: readonly AccessRule[]) {
    const indexedRules = rules.map(
      (rule, index): IndexedRule => ({
        index,
        rule,
        host: rule.host === undefined ? undefined : normalizeHost(rule.host),
        ignores: getIgnoredDifferences(rule.paths ?? UNKNOWN_COMPARISON),
        patterns: ALL_DIFFERENCES.map((ignored) => normalizePattern(rule.pattern, ignored)),
        stricterRules: undefined,
      }),
    );
    this.rules = rules;
    this.encodedSlash = rules.some((rule) => rule.encodedSlash);
    this.hosts = new Set(indexedRules.flatMap(({ host }) => host ?? []));
    this.#indexedRules = indexedRules;
    this.#trees = buildTrees(indexedRules, 0);
    this.#getNormalizedTrees = memoize((possiblyIgnored) => buildTrees(indexedRules, possiblyIgnored));
    this.conflicts = assignStricterRules(indexedRules, this.#getNormalizedTrees);
  }

  match(input: MatchInput): AccessRule | undefined {
    const { segments, encodedSlash } = input.target;
    const found = this.#matchAsSent(input, segments);
    if (found === undefined || findStricterRule(found, input, segments) !== undefined) return undefined;
    const { rule } = found;
    const hasParameters = segments.some((segment) => segment.includes(';'));
    if (!encodedSlash && !hasParameters) return rule;

    // A rule that does not allow `%2F` refuses it, also for later rules that do.
    if (encodedSlash && !rule.encodedSlash) return undefined;
    // Some upstreams read `/admin%2Fx` as `/admin/x`: it must not match an earlier rule then.
    const split = encodedSlash ? segments.flatMap((segment) => segment.split('/')) : segments;
    const isClaimed = (path: readonly string[]): boolean => this.#isClaimedByEarlierRule(found, input, path);
    if (encodedSlash && alsoMerged(split).some(isClaimed)) return undefined;
    if (!hasParameters) return rule;

    // Some upstreams read `/admin;x` and `/;x/admin` as `/admin`: all readings must match the same rule.
    for (const path of withoutParameters(segments))
      if (this.#matchAsSent(input, path) !== found || findStricterRule(found, input, path) !== undefined)
        return undefined;
    return encodedSlash && withoutParameters(split).some(isClaimed) ? undefined : rule;
  }

  /** The rules in order up to the one that matches, and why the others do not. */
  trace(input: MatchInput): readonly TraceEntry[] {
    const { segments } = input.target;
    const winner = this.match(input);
    const asSent = winner === undefined ? this.#matchAsSent(input, segments) : undefined;
    const stricter = asSent && findStricterRule(asSent, input, segments);
    const entries: TraceEntry[] = [];
    // Once for all rules: a path may be long.
    const normalize = memoize((ignores: Differences) => normalizePath(segments, ignores));
    for (const indexed of this.#indexedRules) {
      const { rule, ignores } = indexed;
      if (rule === winner) return [...entries, { rule, mismatch: undefined }];
      const mismatch =
        indexed === stricter
          ? 'equivalent_path'
          : (findMismatch(indexed, input, normalize(ignores)) ?? 'ambiguous_path');
      entries.push({ rule, mismatch });
      // The first rule that would match decides, even if it refuses.
      if (mismatch === 'encoded_slash' || mismatch === 'ambiguous_path') break;
    }
    if (stricter !== undefined && !entries.some(({ rule }) => rule === stricter.rule))
      entries.push({ rule: stricter.rule, mismatch: 'equivalent_path' });
    return entries;
  }

  #matchAsSent(input: MatchInput, segments: readonly string[]): IndexedRule | undefined {
    const host = this.hosts.size === 0 ? '' : normalizeHost(input.host);
    let found: IndexedRule | undefined;
    for (const tree of this.#trees) {
      const path = tree.ignores === 0 ? segments : normalizePath(segments, tree.ignores);
      const hostRoot = host === '' ? undefined : tree.byHost.get(host);
      if (hostRoot !== undefined) found = search(hostRoot, 0, path, input.method, found);
      found = search(tree.anyHost, 0, path, input.method, found);
    }
    return found;
  }

  #isClaimedByEarlierRule(found: IndexedRule, input: MatchInput, path: readonly string[]): boolean {
    const { rule, index } = found;
    const other = this.#matchAsSent(input, path);
    if (other !== undefined && other.index < index) return true;
    const trees = this.#getNormalizedTrees(getPossiblyIgnored(found));
    const isStricter = (one: IndexedRule): boolean => one.index < index && !isAtLeastAsStrict(rule, one.rule);
    return findInTrees(trees, input, path, isStricter) !== undefined;
  }
}

const withoutParameters = (segments: readonly string[]): (readonly string[])[] =>
  alsoMerged(segments.map((segment) => segment.split(';', 1)[0] ?? ''));

/** The path, and if it has empty segments, also as servers read it that merge slashes. */
function alsoMerged(segments: readonly string[]): (readonly string[])[] {
  const merged = segments.filter((segment, index) => segment !== '' || index === segments.length - 1);
  return merged.length === segments.length ? [segments] : [segments, merged];
}

function buildTrees(all: readonly IndexedRule[], ignored: Differences): RuleTree[] {
  const trees: RuleTree[] = [];
  for (const indexed of all) {
    const ignores = ignored | indexed.ignores;
    let tree = trees.find((one) => one.ignores === ignores);
    if (tree === undefined) trees.push((tree = { ignores, anyHost: createNode(0), byHost: new Map() }));
    insert(getRoot(tree, indexed), indexed, getPattern(indexed, ignores));
  }
  return trees;
}

function getRoot({ anyHost, byHost }: RuleTree, { host, index }: IndexedRule): TreeNode {
  if (host === undefined) return anyHost;
  const root = byHost.get(host) ?? createNode(index);
  byHost.set(host, root);
  return root;
}

const getPossiblyIgnored = ({ rule }: IndexedRule): Differences =>
  getPossiblyIgnoredDifferences(rule.paths ?? UNKNOWN_COMPARISON);

function memoize<Key, Value>(make: (key: Key) => Value): (key: Key) => Value {
  const values = new Map<Key, Value>();
  return (key) => {
    const value = values.get(key) ?? make(key);
    values.set(key, value);
    return value;
  };
}

/** Most rules have no stricter rules, and need no second check of their requests. */
function assignStricterRules(
  all: readonly IndexedRule[],
  trees: (possiblyIgnored: Differences) => readonly RuleTree[],
): PathConflict[] {
  const conflicts: PathConflict[] = [];
  const byFirst = Map.groupBy(all, firstLiteral);
  for (const indexed of all) {
    const possiblyIgnored = getPossiblyIgnored(indexed);
    if (possiblyIgnored === 0) continue;
    const first = firstLiteral(indexed);
    const candidates = first === undefined ? all : [...(byFirst.get(first) ?? []), ...(byFirst.get(undefined) ?? [])];
    const stricter = candidates.filter(
      (other) => other !== indexed && isStricterOverlap(indexed, other, possiblyIgnored),
    );
    if (stricter.length === 0) continue;
    indexed.stricterRules = {
      rules: new Set(stricter),
      plain: stricter.every(({ rule }) => isPlainPattern(rule.pattern)),
      trees: trees(possiblyIgnored),
    };
    for (const { rule } of stricter) conflicts.push({ rule: indexed.rule, stricter: rule });
  }
  return conflicts;
}

/** Normalized; undefined if the pattern begins with a wildcard or is `/`. */
function firstLiteral(placed: IndexedRule): string | undefined {
  const [first] = getPattern(placed, LETTER_CASE | TRAILING_SLASH);
  return typeof first === 'object' ? first.literal : undefined;
}

function isStricterOverlap(indexed: IndexedRule, other: IndexedRule, possiblyIgnored: Differences): boolean {
  const [{ rule }, { rule: stricter }] = [indexed, other];
  if (isAtLeastAsStrict(rule, stricter)) return false;
  if (indexed.host !== undefined && other.host !== undefined && indexed.host !== other.host) return false;
  if (rule.methods !== undefined && stricter.methods?.isDisjointFrom(rule.methods) === true) return false;
  const ignored = possiblyIgnored | other.ignores;
  if (!patternsOverlap(getPattern(indexed, ignored), getPattern(other, ignored))) return false;
  // If it matches all of these paths as sent, the first of the two rules wins.
  if (coversUnnormalized(other, indexed)) return false;
  // It is never reached behind a rule that matches all of its paths.
  return indexed.index > other.index || !coversUnnormalized(indexed, other);
}

const coversUnnormalized = (wide: IndexedRule, narrow: IndexedRule): boolean =>
  wide.ignores === narrow.ignores &&
  (wide.host === undefined || wide.host === narrow.host) &&
  patternCovers(getPattern(wide, wide.ignores), getPattern(narrow, narrow.ignores));

const getPattern = ({ patterns }: IndexedRule, ignored: Differences): readonly PatternSegment[] =>
  patterns[ignored] ?? [];

/** A rule that requires more than the one found, and matches another spelling of this path only. */
function findStricterRule(
  { stricterRules }: IndexedRule,
  input: MatchInput,
  segments: readonly string[],
): IndexedRule | undefined {
  if (stricterRules === undefined || (stricterRules.plain && isPlainPath(segments))) return undefined;
  const isMatch = (one: IndexedRule): boolean => stricterRules.rules.has(one) && !matchesAsSent(one, segments);
  return findInTrees(stricterRules.trees, input, segments, isMatch);
}

/** Any wanted rule that matches the path, as normalized in these trees. */
function findInTrees(
  trees: readonly RuleTree[],
  { host, method }: MatchInput,
  segments: readonly string[],
  isWanted: (placed: IndexedRule) => boolean,
): IndexedRule | undefined {
  const name = normalizeHost(host);
  const isMatch = (placed: IndexedRule): boolean => isWanted(placed) && allowsMethod(placed.rule, method);
  for (const { ignores, anyHost, byHost } of trees) {
    const path = (ignores & TRAILING_SLASH) === 0 ? segments : stripTrailingSlash(segments);
    const hostRoot = byHost.get(name);
    const found =
      (hostRoot && searchAny(hostRoot, 0, path, ignores, isMatch)) ?? searchAny(anyHost, 0, path, ignores, isMatch);
    if (found !== undefined) return found;
  }
  return undefined;
}

const matchesAsSent = (placed: IndexedRule, segments: readonly string[]): boolean =>
  patternMatches(getPattern(placed, placed.ignores), normalizePath(segments, placed.ignores));

/** Any rule at or below the node that matches. */
function searchAny(
  node: TreeNode,
  at: number,
  path: readonly string[],
  ignores: Differences,
  isMatch: (placed: IndexedRule) => boolean,
): IndexedRule | undefined {
  const rest = node.catchAll.find(isMatch);
  if (rest !== undefined) return rest;
  const sent = path[at];
  if (sent === undefined) return node.exact.find(isMatch);
  const segment = (ignores & LETTER_CASE) === 0 ? sent : foldCase(sent);
  const literal = node.literal.get(segment);
  const found = literal && searchAny(literal, at + 1, path, ignores, isMatch);
  if (found !== undefined || node.wildcard === undefined || segment === '') return found;
  return searchAny(node.wildcard, at + 1, path, ignores, isMatch);
}

function insert(root: TreeNode, indexed: IndexedRule, pattern: readonly PatternSegment[]): void {
  let node = root;
  for (const segment of pattern) {
    if (segment === '**') {
      node.catchAll.push(indexed);
      return;
    }
    node = getOrCreateChild(node, segment, indexed.index);
  }
  node.exact.push(indexed);
}

function getOrCreateChild(node: TreeNode, segment: Exclude<PatternSegment, '**'>, index: number): TreeNode {
  if (segment === '*') return (node.wildcard ??= createNode(index));
  const child = node.literal.get(segment.literal);
  if (child !== undefined) return child;
  const created = createNode(index);
  node.literal.set(segment.literal, created);
  return created;
}

/** The first rule at or below the node that matches and precedes `best`; otherwise `best`. */
function search(
  node: TreeNode,
  at: number,
  path: readonly string[],
  method: string,
  best: IndexedRule | undefined,
): IndexedRule | undefined {
  if (best !== undefined && node.minIndex > best.index) return best;
  let found = findFirstMatch(node.catchAll, method, best);
  const segment = path[at];
  if (segment === undefined) return findFirstMatch(node.exact, method, found);
  const literal = node.literal.get(segment);
  if (literal !== undefined) found = search(literal, at + 1, path, method, found);
  if (node.wildcard !== undefined && segment !== '') found = search(node.wildcard, at + 1, path, method, found);
  return found;
}

function findFirstMatch(
  list: readonly IndexedRule[],
  method: string,
  best: IndexedRule | undefined,
): IndexedRule | undefined {
  for (const placed of list) {
    if (best !== undefined && placed.index > best.index) return best;
    if (allowsMethod(placed.rule, method)) return placed;
  }
  return best;
}

const allowsMethod = ({ methods }: AccessRule, method: string): boolean => methods === undefined || methods.has(method);

/** `path`: of the input, normalized for the rule. */
function findMismatch(indexed: IndexedRule, input: MatchInput, path: readonly string[]): Mismatch | undefined {
  const { rule, host, ignores } = indexed;
  if (!patternMatches(getPattern(indexed, ignores), path)) return 'path';
  if (host !== undefined && host !== normalizeHost(input.host)) return 'host';
  if (!allowsMethod(rule, input.method)) return 'method';
  return input.target.encodedSlash && !rule.encodedSlash ? 'encoded_slash' : undefined;
}
