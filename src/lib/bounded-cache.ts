import { LRUCache } from 'lru-cache';

/** An LRU cache that grows as it fills: with `max`, lru-cache allocates all entries at once, and most caches stay nearly empty. */
export const createBoundedCache = <K extends {}, V extends {}>(maxEntries: number): LRUCache<K, V> =>
  new LRUCache<K, V>({ maxSize: maxEntries, sizeCalculation: () => 1 });
