export * from '../attack/attack-house.ts';
