import { IMAGES } from './images.ts';
import { RESTRICTED } from './shop.ts';

/** Pods of a Redis with several servers, which the chart does not install. */
export const createPod = (name: string, app: string, spec: object) => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name, labels: { app } },
  spec: { automountServiceAccountToken: false, terminationGracePeriodSeconds: 5, ...spec },
});

export const createRedisContainer = (port: number, args: readonly string[]) => ({
  name: 'server',
  image: IMAGES.valkey,
  args,
  ports: [{ containerPort: port }],
  readinessProbe: { tcpSocket: { port }, periodSeconds: 1 },
  resources: { requests: { cpu: '50m' } },
  securityContext: RESTRICTED,
});
