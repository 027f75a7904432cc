export interface OpenedResource<T> {
  readonly resource: T;
  close(): void;
}

/** Resources that several users share, such as an old and a new configuration during a reload. The last one closes them. */
export abstract class SharedResources<T> {
  readonly #entries = new Map<string, OpenedResource<T> & { users: number }>();

  /** The oldest first. */
  list(): readonly T[] {
    return [...this.#entries.values()].map(({ resource }) => resource);
  }

  release(resource: T): void {
    for (const [id, entry] of this.#entries) {
      if (entry.resource !== resource) continue;
      entry.users -= 1;
      if (entry.users > 0) continue;
      this.#entries.delete(id);
      entry.close();
    }
  }

  close(): void {
    for (const entry of this.#entries.values()) entry.close();
    this.#entries.clear();
  }

  /** Opens the resource unless there is one with this id. Each call needs a `release`. */
  protected share(id: string, open: () => OpenedResource<T>): T {
    let entry = this.#entries.get(id);
    if (entry === undefined) {
      entry = { ...open(), users: 0 };
      this.#entries.set(id, entry);
    }
    entry.users += 1;
    return entry.resource;
  }
}
