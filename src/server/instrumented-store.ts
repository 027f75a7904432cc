import { observe } from '../observability/metric-registry.ts';
import type { Metrics } from '../observability/metrics.ts';
import type { RecordStore, Store } from '../ports/store.ts';

/** Wraps a store with metrics of latency and errors. */
export function instrumentStore<S extends Store>(store: S, metrics: Metrics): S {
  const createTimer = (op: string): (<T>(work: () => Promise<T>) => Promise<T>) => {
    const seconds = metrics.histogram('gatehouse_store_operation_duration_seconds', op);
    const errors = metrics.counter('gatehouse_store_errors_total', op);
    return async (work) => {
      const startedAt = performance.now();
      try {
        return await work();
      } catch (error) {
        errors.value += 1;
        throw error;
      } finally {
        observe(seconds, (performance.now() - startedAt) / 1_000);
      }
    };
  };
  const instrumentRecords = <T>(name: string, recordStore: RecordStore<T>): RecordStore<T> => {
    const read = createTimer(`${name}.read`);
    const create = createTimer(`${name}.create`);
    const replace = createTimer(`${name}.replace`);
    return {
      ...recordStore,
      read: (id) => read(() => recordStore.read(id)),
      create: (...args) => create(() => recordStore.create(...args)),
      replace: (...args) => replace(() => recordStore.replace(...args)),
    };
  };
  const timeAnnounce = createTimer('revocations.announce');
  const { revocations } = store;
  return {
    ...store,
    grants: instrumentRecords('grants', store.grants),
    devices: instrumentRecords('devices', store.devices),
    userCodes: instrumentRecords('userCodes', store.userCodes),
    revocations: {
      ...revocations,
      isRevoked: (bearer) => revocations.isRevoked(bearer),
      getLastNumber: () => revocations.getLastNumber(),
      announce: (revocation) => timeAnnounce(() => revocations.announce(revocation)),
    },
  };
}
