import { type AccessRule, getAcceptedAudiences, getAcceptedIssuers, OWN_ISSUER } from '../../domain/access-rule.ts';
import { parseTarget, type RequestTarget } from '../../domain/request-target.ts';
import { type CompiledRules, normalizeHost } from '../../domain/rule-matcher.ts';
import { listScopeTokens, type Scope, unionScopes } from '../../domain/scope.ts';
import { redactText } from '../../lib/redact.ts';
import { createOriginResolver } from './served-hosts.ts';

/** RFC 9728 §3. */
export const RESOURCE_METADATA_PATH = '/.well-known/oauth-protected-resource';

export interface ResourceMetadataSettings {
  /** `host`: the same description for all paths of a host. `route`: that of the routes that match the path. */
  readonly detail: 'host' | 'route';
  readonly name?: string;
  readonly documentation?: string;
  /** URLs of the trusted issuers, by name. */
  readonly issuers: ReadonlyMap<string, string>;
  /** Are some access tokens bound to client certificates? */
  readonly bindsCertificates: boolean;
  /** Algorithms of DPoP proofs; omitted: DPoP is not supported. */
  readonly proofAlgorithms?: readonly string[] | undefined;
}

interface ResourceMetadataDeps extends ResourceMetadataSettings {
  readonly publicUrl: string;
  readonly rules: CompiledRules;
  /** May clients name this host? */
  readonly isListedHost: (host: string) => boolean;
  /** Paths of the token service. */
  readonly isServicePath?: (path: string) => boolean;
}

const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'] as const;
const MAX_PATH = 1_024;
const RESOURCE_URL = /^(https?:\/\/([^/?#\\]+))(\/[^?#]*)?$/;

/** A long path, or one in which a client sent a secret, gets the URL of the whole host. */
const isRepeatable = (path: string): boolean => path.length <= MAX_PATH && redactText(path) === path;

/**
 * Describes the protected API to clients (RFC 9728). With `detail: host`, there is a document exactly for the paths on which a
 * request without a token gets 401, and it does not depend on the path: it does not reveal which routes exist.
 */
export class ResourceMetadata {
  readonly #deps: ResourceMetadataDeps;
  readonly #getOrigin: (host: string) => string;

  constructor(deps: ResourceMetadataDeps) {
    this.#deps = deps;
    this.#getOrigin = createOriginResolver(deps.publicUrl, deps.isListedHost);
  }

  /** The URL of the document, for a challenge (RFC 9728 §5.1). `path` is canonical. */
  getUrl(host: string, path: string): string {
    const suffix = path === '/' || !isRepeatable(path) ? '' : path;
    return `${this.#getOrigin(host)}${RESOURCE_METADATA_PATH}${suffix}`;
  }

  /** RFC 9728 §2. `path`: what follows the well-known path, in canonical form. Undefined: there is no document. */
  find(host: string, path: string) {
    const name = normalizeHost(host);
    const hostRules = this.#listProtectedRules(name);
    const rules = path === '' ? hostRules : this.#findRules(name, path, hostRules);
    if (rules === undefined || rules.length === 0) return undefined;
    const { issuers, bindsCertificates, proofAlgorithms, name: title, documentation, publicUrl } = this.#deps;
    const accepted = new Set(rules.flatMap((rule) => [...getAcceptedIssuers(rule)]));
    const scopes = listScopeTokens(unionScopes(rules.flatMap(getRequiredScope)));
    return {
      resource: `${this.#getOrigin(host)}${path}`,
      authorization_servers: [...accepted].flatMap((issuer) =>
        issuer === OWN_ISSUER ? publicUrl : (issuers.get(issuer) ?? []),
      ),
      ...(scopes.length > 0 && { scopes_supported: scopes }),
      bearer_methods_supported: ['header' as const],
      tls_client_certificate_bound_access_tokens: bindsCertificates,
      ...(proofAlgorithms !== undefined && { dpop_signing_alg_values_supported: proofAlgorithms }),
      ...(title !== undefined && { resource_name: title }),
      ...(documentation !== undefined && { resource_documentation: documentation }),
    };
  }

  /**
   * The audiences of own tokens that the routes of a resource require (RFC 9728 §3.3: clients request a token for the `resource` of
   * the document). Undefined: no document has this `resource`. As in the document, with `detail: host` they do not depend on the
   * path: `invalid_target`, which a client gets before it has presented a credential, must not reveal them.
   */
  findAudiences(resource: string): ReadonlySet<string> | undefined {
    const [, origin = '', host = '', path = ''] = RESOURCE_URL.exec(resource) ?? [];
    if (origin === '' || this.#getOrigin(host) !== origin) return undefined;
    const name = normalizeHost(host);
    const hostRules = this.#listProtectedRules(name);
    const rules = path === '' ? hostRules : (this.#findRules(name, path, hostRules) ?? []);
    const accepting = rules.filter((rule) => getAcceptedIssuers(rule).has(OWN_ISSUER));
    return accepting.length === 0 ? undefined : new Set(accepting.flatMap((rule) => [...getAcceptedAudiences(rule)]));
  }

  /** Returns undefined if no request for this path gets 401. */
  #findRules(host: string, path: string, hostRules: readonly AccessRule[]): readonly AccessRule[] | undefined {
    const { rules, detail, isServicePath } = this.#deps;
    const target = parsePath(path, rules.encodedSlash);
    if (target === undefined || !isRepeatable(path) || isServicePath?.(path) === true) return undefined;
    const matched = METHODS.map((method) => rules.match({ method, host, target }));
    if (detail === 'route') return [...new Set(matched)].filter(isProtectedRule);
    // Without a rule, an encoded slash is 400.
    const needsToken = matched.some((rule) => (rule === undefined ? !target.encodedSlash : isProtected(rule)));
    return needsToken ? hostRules : undefined;
  }

  #listProtectedRules(host: string): readonly AccessRule[] {
    return this.#deps.rules.rules.filter(
      (rule) => isProtected(rule) && (rule.host === undefined || normalizeHost(rule.host) === host),
    );
  }
}

const isProtected = ({ requirement }: AccessRule): boolean => requirement.kind !== 'public';

const isProtectedRule = (rule: AccessRule | undefined): rule is AccessRule => rule !== undefined && isProtected(rule);

const getRequiredScope = ({ requirement }: AccessRule): Scope[] =>
  requirement.kind === 'scope' ? [requirement.scope] : [];

/** Returns undefined if a request for this path is refused as malformed. */
function parsePath(path: string, encodedSlash: boolean): RequestTarget | undefined {
  const parsed = parseTarget(path, { method: 'GET', isServedAuthority: () => false, encodedSlash });
  return parsed.kind === 'target' && parsed.target.path === path ? parsed.target : undefined;
}
