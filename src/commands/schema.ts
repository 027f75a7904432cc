import { type Command, EXIT } from './command.ts';

export const command: Command = {
  name: 'schema',
  summary: 'prints the JSON Schema of the configuration',
  usage: ['gatehouse schema > gatehouse.schema.json'],
  options: {},
  notes: [
    'For editors and for checks of generated configurations. `gatehouse check` knows more than the schema can say.',
  ],
  async run({ stdout }) {
    const { renderJsonSchema } = await import('../config/reference.ts');
    stdout(renderJsonSchema());
    return EXIT.ok;
  },
};
