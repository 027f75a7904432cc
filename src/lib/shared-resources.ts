/** What resources are opened for, such as a configuration. */
export interface ResourceScope {
  /** Closes everything that was opened for it, in reverse order. */
  readonly resources: AsyncDisposableStack;
  /** Runs the task once the configuration is in use. Nothing outside of it may change before. */
  readonly onActivate: (task: () => void) => void;
}

export interface OpenedResource<T> {
  readonly resource: T;
  /** Called once, when the first configuration that uses it is activated. */
  start?(): void;
  close?(): void | Promise<void>;
}

interface SharedResource<T> extends OpenedResource<T> {
  users: number;
  isStarted: boolean;
}

/** Resources that several configurations share, such as the old and the new one during a reload. The last one closes them. */
export class SharedResources<T> {
  readonly #entries = new Map<string, SharedResource<T>>();

  /** Those that have started, the oldest first. */
  list(): readonly T[] {
    return [...this.#entries.values()].flatMap(({ resource, isStarted }) => (isStarted ? [resource] : []));
  }

  /** Opens the resource unless there is one with this id. It is released with the scope. */
  share(id: string, open: () => OpenedResource<T>, { resources, onActivate }: ResourceScope): T {
    const entry = this.#entries.get(id) ?? { ...open(), users: 0, isStarted: false };
    this.#entries.set(id, entry);
    entry.users += 1;
    resources.defer(async () => {
      entry.users -= 1;
      if (entry.users > 0 || this.#entries.get(id) !== entry) return;
      this.#entries.delete(id);
      await entry.close?.();
    });
    onActivate(() => {
      if (entry.isStarted) return;
      entry.isStarted = true;
      entry.start?.();
    });
    return entry.resource;
  }

  async close(): Promise<void> {
    const entries = [...this.#entries.values()];
    this.#entries.clear();
    await Promise.all(entries.map(async (entry) => entry.close?.()));
  }
}
