const ALL = process.env['GATEHOUSE_TEST_VARIANTS'] === 'all';

/** The variants that `npm test` runs. `npm run test:full` sets `GATEHOUSE_TEST_VARIANTS=all`, and runs all of them. */
export const chooseVariants = <T>(all: readonly T[], short: readonly T[]): readonly T[] => (ALL ? all : short);
