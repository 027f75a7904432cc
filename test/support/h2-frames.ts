export * from '../attack/h2-frames.ts';
