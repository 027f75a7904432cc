import type { Settings } from './schema.ts';

/** Settings, and sections as a whole, that are read once, at start. Everything else follows a reload. */
const READ_AT_START: Readonly<Record<string, (settings: Settings) => unknown>> = {
  'listen.host': ({ listen }) => listen.host,
  'listen.port': ({ listen }) => listen.port,
  'listen.workers': ({ listen }) => listen.workers,
  'listen.behindTls': ({ listen }) => listen.behindTls,
  'listen.http2': ({ listen }) => listen.http2,
  'listen.tls.askCertificate': ({ listen }) => listen.tls?.askCertificate,
  'listen.proxyProtocol': ({ listen }) => listen.proxyProtocol.listed,
  'limits.headers': ({ limits }) => limits.headers,
  'limits.url': ({ limits }) => limits.url,
  'limits.streams': ({ limits }) => limits.streams,
  'limits.headerTimeout': ({ limits }) => limits.headerTimeout,
  'limits.connections': ({ limits }) => limits.connections,
  'admin.host': ({ admin }) => admin.host,
  'admin.port': ({ admin }) => admin.port,
  'admin.hostNames': ({ admin }) => admin.hostNames,
  'admin.tokenFile': ({ admin }) => admin.tokenFile,
  'admin.tls': ({ admin }) => admin.tls,
  store: ({ store }) => store,
  'device.maxPending': ({ device }) => device.maxPending,
  'device.maxPendingPerClient': ({ device }) => device.maxPendingPerClient,
  'log.format': ({ log }) => log.format,
  'log.level': ({ log }) => log.level,
  audit: ({ audit }) => audit,
  tracing: ({ tracing }) => tracing,
};

/** Does a change of the setting at this place, such as `store.tls.ca`, need a restart? */
export const isReadAtStart = (path: string): boolean =>
  Object.keys(READ_AT_START).some((name) => path === name || path.startsWith(`${name}.`));

/** Settings that differ from those of the start, and whose new values are not in force. */
export const needsRestart = (started: Settings, next: Settings): string[] =>
  Object.entries(READ_AT_START).flatMap(([name, read]) =>
    name === 'store' ? changedOf(name, started.store, next.store) : changed(name, read(started), read(next)),
  );

const changed = (name: string, before: unknown, next: unknown): string[] =>
  JSON.stringify(before) === JSON.stringify(next) ? [] : [name];

/** Each setting of a section by its name. */
const changedOf = (section: string, before: object, next: object): string[] => {
  const [old, now] = [new Map(Object.entries(before)), new Map(Object.entries(next))];
  return [...new Set([...old.keys(), ...now.keys()])].flatMap((name) =>
    changed(`${section}.${name}`, old.get(name), now.get(name)),
  );
};

/** Listeners, the store and the log belong to the supervisor where there is one: new workers do not change them. */
export const isOfSupervisor = (setting: string): boolean =>
  /^(?:listen\.(?:host|port|workers|behindTls)|admin\.|store\.|log\.)/.test(setting);
