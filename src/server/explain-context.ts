import type { Settings } from '../config/schema.ts';
import { compileRules } from '../domain/rule-matcher.ts';
import type { ExplainContext } from '../proxy/policy/explain.ts';
import { createHostMatcher, createOwnAuthorityCheck, createServedHosts } from '../proxy/policy/served-hosts.ts';
import { buildRules } from './build-from-settings.ts';
import { getPagesOrigin } from './pages-origin.ts';
import { ServicePaths } from './service-paths.ts';

/** What the proxy decides with, for `gatehouse explain` and the console. */
export function createExplainContext(settings: Settings): ExplainContext {
  const { publicUrl, hosts, trustedIssuers } = settings;
  const rules = compileRules(buildRules(settings));
  const pagesHost = getPagesOrigin(settings).host;
  const paths = new ServicePaths(settings);
  const served = createServedHosts({ settings: hosts, publicUrl, routeHosts: rules.hosts, pagesHost });
  return {
    rules,
    publicUrl,
    trustedIssuers: new Map(Object.entries(trustedIssuers)),
    isOwnAuthority: createOwnAuthorityCheck(publicUrl, rules, createHostMatcher(hosts.allowed, pagesHost)),
    pagesHost,
    isListedHost: (name) => served.isListed(name),
    unlistedHosts: hosts.others,
    isServicePath: (path) => paths.includes(path),
    isPagePath: (path) => /^\/device(?:\/|$)/.test(paths.parse(path) ?? ''),
    isForwardAuthPath: (url) => paths.matchForwardAuth(url) !== undefined,
  };
}
