import { LRUCache } from 'lru-cache';

/**
 * A memory of so many entries, of which the one that was not used for longest goes first. It takes room as it fills:
 * lru-cache with `max` takes the room for all of them at once, and most of ours stay nearly empty.
 */
export const boundedCache = <K extends {}, V extends {}>(most: number): LRUCache<K, V> =>
  new LRUCache<K, V>({ maxSize: most, sizeCalculation: one });

const one = (): number => 1;
