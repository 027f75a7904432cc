import type { TestProject } from 'vitest/node';
import { type Access, connect } from './api.ts';
import { startControlPlane } from './control-plane.ts';
import { defineKinds } from './custom-resources.ts';

declare module 'vitest' {
  interface ProvidedContext {
    readonly access: Access;
    readonly kubeconfig: string;
  }
}

export default async function setUp(project: TestProject): Promise<() => Promise<void>> {
  const plane = await startControlPlane();
  try {
    await defineKinds(connect(plane.access));
  } catch (error) {
    await plane.stop();
    throw error;
  }
  project.provide('access', plane.access);
  project.provide('kubeconfig', plane.kubeconfig);
  return () => plane.stop();
}
