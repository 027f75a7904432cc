import { onTestFinished } from 'vitest';
import type { ResourceScope } from '../../src/lib/shared-resources.ts';

/** A configuration that is in use from the beginning; it is closed after the test. */
export function createActiveScope(): ResourceScope {
  const resources = new AsyncDisposableStack();
  onTestFinished(() => resources.disposeAsync());
  return { resources, onActivate: (task) => task() };
}
