import { expect, test } from 'vitest';
import { computeQuantile, History, quantileOf, readSamples } from '../../src/console/history.ts';
import { mergeSnapshots, type Snapshot } from '../../src/observability/metric-registry.ts';
import { createMetrics } from '../../src/observability/metrics.ts';

const requests = (forwarded: number, refused = 0): Snapshot => ({
  gatehouse_auth_decisions_total: [
    ['decision="forwarded",reason="none"', forwarded],
    ['decision="refused",reason="token_missing"', refused],
  ],
});

test('an interval has the difference of two samples', () => {
  const history = new History();
  history.add(requests(10), 100);
  history.add(requests(30, 4), 110);
  const total = history.getLastMinute();
  expect(total?.seconds).toBe(10);
  expect(Object.fromEntries(total?.decisions ?? [])).toEqual({ forwarded: 20, refused: 4 });
  expect(Object.fromEntries(total?.refusals ?? [])).toEqual({ token_missing: 4 });
});

test('counters that went back, as after a killed worker, and clocks that were set back make nothing negative', () => {
  const history = new History();
  history.add(requests(100), 100);
  history.add(requests(40), 110);
  expect(history.getLastMinute()?.decisions.size).toBe(0);
  history.add(requests(50), 50);
  expect(history.getLastMinute()).toBeUndefined();
  history.add(requests(60), 60);
  expect(history.getLastMinute()?.decisions.get('forwarded')).toBe(10);
});

test('no more than a minute is kept, and the last sample before it', () => {
  const history = new History();
  for (let time = 0; time <= 200; time += 8) history.add(requests(time), time);
  expect(history.getLastMinute()?.seconds).toBe(64);
  history.add(requests(900), 1_000);
  expect(history.getLastMinute()?.seconds).toBe(800);
});

test('quantiles are interpolated as in Prometheus', () => {
  expect(computeQuantile([0, 10, 0, 0], [1, 2, 4], 0.5)).toBe(1.5);
  expect(computeQuantile([10, 0, 0, 10], [1, 2, 4], 0.99)).toBe(4);
  expect(computeQuantile([0, 0, 0, 0], [1, 2, 4], 0.5)).toBeUndefined();
});

test('figures of several processes are added', async () => {
  const workers = [createMetrics(), createMetrics()];
  const history = new History();
  const sample = async (time: number): Promise<void> =>
    history.add(mergeSnapshots(await Promise.all(workers.map((metrics) => metrics.snapshot()))), time);
  await sample(100);
  for (const metrics of workers) {
    metrics.requestStarted();
    metrics.requestCompleted(metrics.getRule(undefined), 'GET', 200, 0.02);
    metrics.countDecision('forwarded');
  }
  await sample(110);
  const total = history.getLastMinute();
  expect(total?.decisions.get('forwarded')).toBe(2);
  expect(total && quantileOf(total, 0.5)).toBeGreaterThan(0.01);
});

test('labels are read back as they were written', async () => {
  const metrics = createMetrics();
  metrics.counter('gatehouse_crl_fetches_total', 'a "quoted"\\ name,\n', 'success').value = 3;
  expect(readSamples(await metrics.snapshot(), 'gatehouse_crl_fetches_total')).toEqual([
    { labels: { url: 'a "quoted"\\ name,\n', outcome: 'success' }, value: 3 },
  ]);
});
