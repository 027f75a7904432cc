import { execFileSync } from 'node:child_process';
import { mkdirSync, renameSync, rmSync, symlinkSync, unlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { FileWatch, type FileWatchOptions } from '../../src/lib/watch-files.ts';
import { testFolder } from '../support/configuration.ts';
import { until } from '../support/serve-process.ts';

/** Watches without polling, which would hide a missed event. */
function startWatch(paths: readonly string[], options: FileWatchOptions = {}) {
  const calls: (readonly string[])[] = [];
  const marker = join(testFolder(), 'marker');
  let marked = 0;
  let written = 0;
  const watch = new FileWatch(
    [...paths, marker],
    (changed) => {
      if (changed.includes(marker)) marked += 1;
      const others = changed.filter((path) => path !== marker);
      if (others.length > 0) calls.push(others);
    },
    { debounceMs: 20, pollMs: 3_600_000, ...options },
  );
  onTestFinished(() => watch.close());
  const waitForChanges = (count: number): Promise<true> =>
    until(`${count} changes are reported`, () => (calls.length >= count ? true : undefined));
  /** Waits until all changes so far are processed: a later change to a marker file is reported after them. */
  const waitUntilSettled = (): Promise<true> => {
    written += 1;
    const before = marked;
    writeFileSync(marker, String(written));
    return until('the marker is reported', () => (marked > before ? true : undefined));
  };
  return { calls, waitForChanges, waitUntilSettled, watch };
}

test('repeated writes in place are reported', async () => {
  const file = join(testFolder(), 'a.yaml');
  writeFileSync(file, 'one');
  const { calls, waitForChanges } = startWatch([file]);
  for (const [index, text] of ['two', 'three', 'four'].entries()) {
    writeFileSync(file, text);
    await waitForChanges(index + 1);
  }
  expect(calls).toEqual([[file], [file], [file]]);
});

test('a changed large file of the same size is reported, and a pipe without a writer does not block', async () => {
  const directory = testFolder();
  const [file, pipe] = [join(directory, 'large.crl'), join(directory, 'pipe.crl')];
  writeFileSync(file, Buffer.alloc(2_000_000, 'a'));
  execFileSync('mkfifo', [pipe]);
  const { calls, waitForChanges } = startWatch([file, pipe]);
  for (const [index, letter] of ['b', 'c'].entries()) {
    writeFileSync(file, Buffer.alloc(2_000_000, letter));
    await waitForChanges(index + 1);
  }
  expect(calls).toEqual([[file], [file]]);
});

test('repeated replacements by rename are reported', async () => {
  const file = join(testFolder(), 'a.yaml');
  writeFileSync(file, 'one');
  const { calls, waitForChanges } = startWatch([file]);
  for (const [index, text] of ['two', 'three', 'four'].entries()) {
    writeFileSync(`${file}.new`, text);
    renameSync(`${file}.new`, file);
    await waitForChanges(index + 1);
  }
  expect(calls).toHaveLength(3);
});

/** Like the kubelet: creates a new folder and a new link, and renames the link to `..data`. */
function mountConfigMap(place: string, files: Readonly<Record<string, string>>, version: number): void {
  const real = join(place, `..2026_${version}`);
  mkdirSync(real);
  for (const [name, text] of Object.entries(files)) writeFileSync(join(real, name), text);
  symlinkSync(`..2026_${version}`, join(place, '..data_tmp'));
  renameSync(join(place, '..data_tmp'), join(place, '..data'));
  if (version === 1) for (const name of Object.keys(files)) symlinkSync(join('..data', name), join(place, name));
  else rmSync(join(place, `..2026_${version - 1}`), { recursive: true });
}

test('each of five ConfigMap updates is reported once', async () => {
  const directory = testFolder();
  mountConfigMap(directory, { 'gatehouse.yaml': '1', 'other.yaml': 'same' }, 1);
  const file = join(directory, 'gatehouse.yaml');
  const { calls, waitForChanges, waitUntilSettled } = startWatch([file, join(directory, 'other.yaml')]);
  for (let version = 2; version <= 6; version += 1) {
    mountConfigMap(directory, { 'gatehouse.yaml': String(version), 'other.yaml': 'same' }, version);
    await waitForChanges(version - 1);
  }
  await waitUntilSettled();
  expect(calls).toEqual(Array.from({ length: 5 }, () => [file]));
});

test('a ConfigMap update is reported for a path through ..data', async () => {
  const directory = testFolder();
  mountConfigMap(directory, { a: '1' }, 1);
  const { waitForChanges } = startWatch([join(directory, '..data', 'a')]);
  for (let version = 2; version <= 4; version += 1) {
    mountConfigMap(directory, { a: String(version) }, version);
    await waitForChanges(version - 1);
  }
});

test('an update without changes is not reported', async () => {
  const directory = testFolder();
  mountConfigMap(directory, { a: 'same' }, 1);
  const { calls, waitForChanges, waitUntilSettled } = startWatch([join(directory, 'a')]);
  mountConfigMap(directory, { a: 'same' }, 2);
  await waitUntilSettled();
  expect(calls).toEqual([]);
  mountConfigMap(directory, { a: 'other' }, 3);
  await waitForChanges(1);
});

test('writes to the target of a symbolic link, and a changed link, are reported', async () => {
  const [links, real, elsewhere] = [testFolder(), testFolder(), testFolder()];
  const file = join(links, 'a');
  writeFileSync(join(real, 'a'), '1');
  writeFileSync(join(elsewhere, 'b'), '3');
  symlinkSync(join(real, 'a'), file);
  const { waitForChanges } = startWatch([file]);
  writeFileSync(join(real, 'a'), '2');
  await waitForChanges(1);
  symlinkSync(join(elsewhere, 'b'), `${file}.new`);
  renameSync(`${file}.new`, file);
  await waitForChanges(2);
  writeFileSync(join(elsewhere, 'b'), '4');
  await waitForChanges(3);
});

test('deleting and recreating a file is reported', async () => {
  const file = join(testFolder(), 'a');
  writeFileSync(file, 'one');
  const { waitForChanges } = startWatch([file]);
  unlinkSync(file);
  await waitForChanges(1);
  writeFileSync(file, 'one');
  await waitForChanges(2);
});

test('a file created in a folder that did not exist is reported', async () => {
  const directory = testFolder();
  const { waitForChanges, waitUntilSettled } = startWatch([join(directory, 'later', 'a')]);
  mkdirSync(join(directory, 'later'));
  await waitUntilSettled();
  writeFileSync(join(directory, 'later', 'a'), 'here');
  await waitForChanges(1);
});

test('many writes in quick succession are reported as one change', async () => {
  const file = join(testFolder(), 'a');
  writeFileSync(file, '0');
  const { calls, waitForChanges, waitUntilSettled } = startWatch([file], { debounceMs: 100 });
  for (let count = 1; count <= 50; count += 1) writeFileSync(file, String(count));
  await waitForChanges(1);
  await waitUntilSettled();
  expect(calls).toHaveLength(1);
});

test('a file that is written continuously is reported nevertheless', async () => {
  const file = join(testFolder(), 'a');
  writeFileSync(file, '0');
  const { calls } = startWatch([file], { debounceMs: 20 });
  let count = 0;
  let writing = setImmediate(function write() {
    count += 1;
    writeFileSync(file, String(count));
    writing = setImmediate(write);
  });
  onTestFinished(() => clearImmediate(writing));
  await until('the change is reported', () => calls.length > 0);
});

test('polling finds a change without an event', async () => {
  const directory = testFolder();
  const old = join(directory, 'conf');
  mkdirSync(old);
  writeFileSync(join(old, 'a'), '1');
  const { waitForChanges } = startWatch([join(old, 'a')], { pollMs: 50 });
  // The folder itself is replaced, so the watch is on the old one.
  mkdirSync(join(directory, 'next'));
  writeFileSync(join(directory, 'next', 'a'), '2');
  renameSync(old, join(directory, 'gone'));
  renameSync(join(directory, 'next'), old);
  await waitForChanges(1);
});

test('a change during the handling of another is handled afterwards, never concurrently', async () => {
  const file = join(testFolder(), 'a');
  writeFileSync(file, '0');
  let running = 0;
  let most = 0;
  let done = 0;
  const { promise: released, resolve: release } = Promise.withResolvers<void>();
  const watch = new FileWatch(
    [file],
    async () => {
      running += 1;
      most = Math.max(most, running);
      await released;
      running -= 1;
      done += 1;
    },
    { debounceMs: 10, pollMs: 3_600_000 },
  );
  onTestFinished(() => watch.close());
  // A second watcher that gets the same events and reports them later.
  const later = startWatch([file], { debounceMs: 50 });
  writeFileSync(file, '1');
  await until('the first change is being handled', () => running === 1);
  await later.waitUntilSettled();
  writeFileSync(file, '2');
  await later.waitUntilSettled();
  expect({ running, done }).toEqual({ running: 1, done: 0 });
  release();
  await until('both changes are handled', () => done >= 2);
  expect({ done, most }).toEqual({ done: 2, most: 1 });
});

test('a failing handler is reported and the next change is handled', async () => {
  const file = join(testFolder(), 'a');
  writeFileSync(file, '0');
  const errors: unknown[] = [];
  let calls = 0;
  const watch = new FileWatch(
    [file],
    () => {
      calls += 1;
      throw new Error('bad configuration');
    },
    { debounceMs: 10, pollMs: 3_600_000, onError: (error) => errors.push(error) },
  );
  onTestFinished(() => watch.close());
  for (let count = 1; count <= 2; count += 1) {
    writeFileSync(file, String(count));
    await until(`call ${count}`, () => calls >= count);
  }
  expect(errors).toHaveLength(2);
});

test('an updated list of files replaces the old one, and nothing is reported after closing', async () => {
  const directory = testFolder();
  const [a, b] = [join(directory, 'a'), join(directory, 'b')];
  writeFileSync(a, '0');
  writeFileSync(b, '0');
  const { calls, waitForChanges, watch } = startWatch([a]);
  watch.update([b]);
  // A second watcher that gets the same events and reports them later.
  const later = startWatch([a, b], { debounceMs: 50 });
  writeFileSync(a, '1');
  await later.waitForChanges(1);
  expect(calls).toEqual([]);
  writeFileSync(b, '1');
  await waitForChanges(1);
  await later.waitForChanges(2);
  watch.close();
  writeFileSync(b, '2');
  await later.waitForChanges(3);
  expect(calls).toEqual([[b]]);
});
